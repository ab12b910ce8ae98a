"""What is in the pods: containers, volumes, how workers are started.

All of them meet the restricted Pod Security standard and carry no API token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tandem_operator import names
from tandem_operator.api import SpeculativeDeployment
from tandem_operator.api.base import ApiModel
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.spec import Source
from tandem_operator.engines import Adapter, Launch, adapter_of
from tandem_operator.engines.adapter import (
    DRAFTER_MOUNT,
    ENVIRONMENT,
    KEY_MOUNT,
    TARGET_MOUNT,
    TERMINATION_LOG,
    UNPRIVILEGED,
    WITHDRAWN_SECONDS,
    probes,
)
from tandem_operator.plan.observed import Manifest
from tandem_worker.contract import WORKER_PORT


class Start(NamedTuple):
    """How the workers of a revision are started, beside its recipe. A change starts them anew."""

    retry: str = ""  # a new one lets a self-test run again
    target_alone: bool = False  # without the drafter

    def of(self, recipe: Recipe) -> Start:
        """A worker that takes commands keeps its drafter; it is switched off where it runs."""
        cooperates = adapter_of(recipe.engine, recipe.speculation).cooperates
        return self._replace(target_alone=self.target_alone and not cooperates)

    @property
    def annotations(self) -> dict[str, str]:
        told = {names.RETRY: self.retry, names.SPECULATION: "off" if self.target_alone else ""}
        return {name: value for name, value in told.items() if value}


def worker_pod(resource: SpeculativeDeployment, revision: str, recipe: Recipe, start: Start) -> Manifest:
    sources = {"target": recipe.target}
    drafter_folder = ""
    if recipe.drafter and recipe.speculates and not start.target_alone:
        sources["drafter"] = recipe.drafter
        drafter_folder = folder_of(recipe.drafter, "drafter")
    adapter = adapter_of(recipe.engine, recipe.speculation)
    launch = Launch(recipe, revision, folder_of(recipe.target, "target"), drafter_folder)
    image = recipe.engine.image or adapter.image or recipe.worker_image
    container = make_container("worker", image, adapter.arguments(launch), sources)
    container |= {
        "ports": [{"name": names.PORT_NAME, "containerPort": WORKER_PORT, "protocol": "TCP"}],
        "resources": dump(recipe.resources),
        **probes(adapter.paths, recipe.start_up_seconds),
    }
    own = [_field("POD_IP", "status.podIP"), _field("POD_UID", "metadata.uid")]
    container["env"] = [*own, *map(dump, recipe.engine.env), *map(dump, recipe.pod.env)]
    pod = make_pod(resource.metadata.name, recipe.pod, [container], sources)
    if not adapter.cooperates or (recipe.engine.tensor_parallel or 1) > 1:
        _share_memory(pod)
    if adapter.cooperates:
        _take_commands(pod, resource.metadata.name)
    else:
        _host_engine(pod, adapter, launch, sources)
    return pod


def _take_commands(pod: Manifest, name: str) -> None:
    """Tandem's own worker obeys whoever signs with the operator's key."""
    pod["containers"][0]["volumeMounts"] += [{"name": "operator-key", "mountPath": KEY_MOUNT, "readOnly": True}]
    pod["volumes"] += [{"name": "operator-key", "configMap": {"name": names.operator_key(name)}}]


def _share_memory(pod: Manifest) -> None:
    """For an engine of several processes: what runtimes give is too little for NCCL (production-stack #276)."""
    pod["containers"][0]["volumeMounts"] += [{"name": "shm", "mountPath": "/dev/shm"}]
    pod["volumes"] += [{"name": "shm", "emptyDir": {"medium": "Memory"}}]


def _host_engine(pod: Manifest, adapter: Adapter, launch: Launch, sources: dict[str, Source]) -> None:
    """What another engine needs: a user that is not root, a home, time until nobody sends requests any more, and
    somebody who looks whether the files are those that were validated."""
    container = pod["containers"][0]
    container["command"] = adapter.command
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": WITHDRAWN_SECONDS}}}  # no shell is needed in the image
    given = {variable["name"] for variable in container["env"]}
    container["env"] += [{"name": n, "value": v} for n, v in ENVIRONMENT.items() if n not in given]
    container["securityContext"] |= {"runAsUser": UNPRIVILEGED, "runAsGroup": UNPRIVILEGED}
    prints = launch.recipe.fingerprints
    if prints is None:
        return
    arguments = ["verify", f"--target={launch.target_folder}", f"--target-fingerprint={prints.target}"]
    if launch.drafter_folder:
        arguments += [f"--drafter={launch.drafter_folder}", f"--drafter-fingerprint={prints.drafter}"]
    arguments.append(f"--termination-message={TERMINATION_LOG}")
    pod["initContainers"] = [make_container("verify", launch.recipe.worker_image, arguments, sources)]


def make_container(name: str, image: str, arguments: list[str], sources: dict[str, Source]) -> Manifest:
    mounts = [{"name": _volume_of(part, sources), "mountPath": _mount(part), "readOnly": True} for part in sources]
    return {
        "name": name,
        "image": image,
        "args": arguments,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def make_pod(owner: str, pod: ApiModel, containers: list[Manifest], sources: dict[str, Source]) -> Manifest:
    chosen = dump(pod)
    for apart in ("labels", "annotations", "env"):
        chosen.pop(apart, None)
    volumes = [_volume(part, source) for part, source in sources.items() if _volume_of(part, sources) == part]
    return {
        **chosen,
        "serviceAccountName": names.worker_account(owner),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": containers,
        "volumes": [*volumes, {"name": "tmp", "emptyDir": {}}],
    }


def _volume(name: str, source: Source) -> Manifest:
    if source.host_path:  # no `type`: a missing folder is then named by the validation, not by a pod that never starts
        return {"name": name, "hostPath": {"path": source.host_path.path}}
    assert source.pvc is not None, "the CRD lets through exactly one source"
    return {"name": name, "persistentVolumeClaim": {"claimName": source.pvc.claim_name, "readOnly": True}}


def _volume_of(part: str, sources: dict[str, Source]) -> str:
    """The volume that a part is in: its own, or the target's for a drafter in the same claim. A pod with two volumes of
    one claim stays in ContainerCreating for ever, and no event says why (kubernetes #127004)."""
    claims = {name: source.pvc.claim_name for name, source in sources.items() if source.pvc}
    return next((name for name, claim in claims.items() if claim == claims.get(part)), part)


def _mount(volume: str) -> str:
    return {"target": TARGET_MOUNT, "drafter": DRAFTER_MOUNT}[volume]


def folder_of(source: Source, volume: str) -> str:
    inside = source.pvc.path.strip("/") if source.pvc else ""
    return f"{_mount(volume)}/{inside}".rstrip("/")


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def dump(model: ApiModel) -> dict[str, Any]:
    dumped = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: value for key, value in dumped.items() if value not in ({}, [])}
