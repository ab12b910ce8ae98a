"""Where the pods find their checkpoints: never two volumes of one claim, for which a kubelet waits for ever
(kubernetes #127004).
"""

from __future__ import annotations

from typing import Any

import pytest

from tandem_operator.api import Metadata, SpeculativeDeployment
from tandem_operator.api.spec import Spec
from tandem_operator.engines.adapter import DRAFTER_MOUNT, TARGET_MOUNT
from tandem_operator.plan.pods import Start, worker_pod
from tandem_operator.plan.revisions import recipe
from tandem_operator.plan.validation_job import validation_job
from unit.world import SETTINGS

Pod = dict[str, Any]


def in_claim(claim: str, path: str) -> dict[str, Any]:
    return {"source": {"pvc": {"claimName": claim, "path": path}}}


def resource(target: dict[str, Any], drafter: dict[str, Any], **fields: Any) -> SpeculativeDeployment:
    metadata = Metadata(name="pair", namespace="default", uid="1", generation=1)
    spec = Spec.model_validate({"target": target, "drafter": drafter, **fields})
    return SpeculativeDeployment(metadata=metadata, spec=spec)


def pods(found: SpeculativeDeployment) -> list[Pod]:
    """Of the validation and of a worker."""
    job: Pod = validation_job(found, SETTINGS, "key", 0)["spec"]["template"]["spec"]
    return [job, worker_pod(found, "rev", recipe(found.spec, "pair", None), Start())]


def claims(pod: Pod) -> list[str]:
    return [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each]


ONE, OTHER = in_claim("models", "target"), in_claim("models", "drafter")


def test_a_pair_in_one_claim_is_one_volume_mounted_at_both_places() -> None:
    for pod in pods(resource(ONE, OTHER)):
        assert claims(pod) == ["models"]
        (container,) = pod["containers"]
        mounts = {m["mountPath"]: m.get("readOnly") for m in container["volumeMounts"] if m["name"] == "target"}
        assert mounts == {TARGET_MOUNT: True, DRAFTER_MOUNT: True}
        assert f"--target={TARGET_MOUNT}/target" in container["args"]
        assert f"--drafter={DRAFTER_MOUNT}/drafter" in container["args"]


def test_a_pair_in_two_claims_is_two_volumes() -> None:
    for pod in pods(resource(ONE, in_claim("drafters", "drafter"))):
        assert claims(pod) == ["models", "drafters"]
        assert [volume["name"] for volume in pod["volumes"]][:2] == ["target", "drafter"]


def test_folders_of_a_node_may_be_the_same() -> None:
    folder = {"source": {"hostPath": {"path": "/models"}}}
    for pod in pods(resource(folder, folder)):
        assert [v["name"] for v in pod["volumes"] if "hostPath" in v] == ["target", "drafter"]


@pytest.mark.parametrize(
    ("kept", "volumes"),
    [("scratch", ["models", "scratch"]), ("models", ["models"])],
    ids=["its own claim", "the pair's"],
)
def test_what_a_probe_keeps_may_lie_in_the_checkpoints_claim(kept: str, volumes: list[str]) -> None:
    probe = {"mode": "Probe", "probe": {"resume": {"claimName": kept}}}
    pod = pods(resource(ONE, OTHER, validation=probe))[0]
    assert claims(pod) == volumes
    (argument,) = (each for each in pod["containers"][0]["args"] if each.startswith("--resume="))
    mounts = pod["containers"][0]["volumeMounts"]
    (mount,) = (m for m in mounts if argument.removeprefix("--resume=").startswith(m["mountPath"] + "/"))
    (volume,) = (v for v in pod["volumes"] if v["name"] == mount["name"])
    assert not mount.get("readOnly")
    assert volume["persistentVolumeClaim"] == {"claimName": kept}, "a read-only volume takes no writes"
    assert all(m["readOnly"] for m in mounts if m["mountPath"] in (TARGET_MOUNT, DRAFTER_MOUNT))


def test_a_worker_of_several_gpus_has_shared_memory_and_its_validation_hears_of_them() -> None:
    gpus = {"engine": {"tensorParallel": 2}, "resources": {"limits": {"nvidia.com/gpu": 2}}}
    job, worker = pods(resource(ONE, OTHER, **gpus))
    (container,) = worker["containers"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in worker["volumes"]
    assert "--tensor-parallel=2" in container["args"]
    assert "--engine-args=--tensor-parallel=2" in job["containers"][0]["args"]


def test_a_worker_of_one_gpu_takes_no_shared_memory() -> None:
    one = {"engine": {"tensorParallel": 1}, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    for fields in (one, {}):
        _, worker = pods(resource(ONE, OTHER, **fields))
        assert "shm" not in [volume["name"] for volume in worker["volumes"]]
