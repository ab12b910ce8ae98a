"""What a spec says of the probe reaches the validation's pod, and where its report lies reaches the status."""

from __future__ import annotations

from typing import Any

import pytest

from tandem_operator.api import Metadata, SpeculativeDeployment
from tandem_operator.plan.validation import key_of
from tandem_operator.plan.validation_job import validation_job
from unit.world import SETTINGS, World, spec

CHOSEN = {"prompts": {"name": "our-texts"}, "continuationTokens": 32, "minAcceptLength": 2.25}


def resource(**validation: object) -> SpeculativeDeployment:
    metadata = Metadata(name="pair", namespace="default", uid="1", generation=1)
    return SpeculativeDeployment(metadata=metadata, spec=spec(validation=validation))


def pod_of(found: SpeculativeDeployment) -> dict[str, Any]:
    pod: dict[str, Any] = validation_job(found, SETTINGS, "key", 0)["spec"]["template"]["spec"]
    return pod


def test_the_texts_of_a_configmap_reach_the_probe_and_nothing_else_of_it() -> None:
    pod = pod_of(resource(mode="Probe", probe=CHOSEN))
    (container,) = pod["containers"]
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "prompts")
    items = [{"key": "prompts.jsonl", "path": "prompts.jsonl"}]
    assert volume["configMap"] == {"name": "our-texts", "items": items}
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "prompts")
    assert mount["readOnly"]
    assert f"--prompts={mount['mountPath']}/prompts.jsonl" in container["args"]
    assert "--continuation=32" in container["args"]
    assert "--min-accept-length=2.25" in container["args"]


def test_without_a_word_the_shipped_texts_and_the_guards_floor_count() -> None:
    pod = pod_of(resource(mode="Probe"))
    (container,) = pod["containers"]
    assert not any(argument.startswith(("--prompts", "--continuation")) for argument in container["args"])
    assert "--min-accept-length=1.3" in container["args"]
    assert "prompts" not in [volume["name"] for volume in pod["volumes"]]


@pytest.mark.parametrize(("path", "folder"), [("", "pair"), ("probes/of-mine", "probes/of-mine/pair")])
def test_what_a_probe_has_reached_outlives_an_evicted_pod_in_a_claim(path: str, folder: str) -> None:
    found = resource(mode="Probe", probe={"resume": {"claimName": "scratch", "path": path}})
    job = validation_job(found, SETTINGS, "key", 0)["spec"]
    evicted = {"type": "DisruptionTarget", "status": "True"}
    assert {"action": "Ignore", "onPodConditions": [evicted]} in job["podFailurePolicy"]["rules"]  # a new pod is made
    pod = pod_of(found)
    (container,) = pod["containers"]
    assert {"name": "reached", "persistentVolumeClaim": {"claimName": "scratch"}} in pod["volumes"]
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "reached")
    assert not mount.get("readOnly")
    assert f"--resume={mount['mountPath']}/{folder}" in container["args"]
    assert pod["securityContext"]["fsGroup"] == 65532  # the image's user may write
    assert pod["securityContext"]["runAsNonRoot"]
    assert key_of(found) == key_of(resource(mode="Probe", probe={}))  # where it is kept changes no verdict


def test_a_probe_without_a_claim_keeps_nothing() -> None:
    pod = pod_of(resource(mode="Probe"))
    assert not any(argument.startswith("--resume") for argument in pod["containers"][0]["args"])
    assert "fsGroup" not in pod["securityContext"]


def test_another_text_or_floor_is_another_validation_and_a_static_one_does_not_care() -> None:
    keys = [key_of(resource(mode="Probe", probe=probe)) for probe in (None, CHOSEN, CHOSEN | {"minAcceptLength": 2})]
    keys.append(key_of(resource(mode="Probe", probe=CHOSEN | {"prompts": {"name": "others"}})))
    assert len(set(keys)) == 4
    assert key_of(resource(mode="Static")) not in keys


def test_the_status_says_whose_log_holds_the_report() -> None:
    world = World(spec(validation={"mode": "Probe"})).run(5)
    validation = world.status.validation
    assert validation is not None
    (job,) = world.jobs
    assert validation.report == f"pod/{job}-x7k2p"
