"""The manifests of everything the operator creates, from plain data. Applied server-side under one field manager.

A worker Deployment is built from its recipe, never from the present spec, so an old revision can run again. All pods
meet the restricted Pod Security standard and carry no API token.
"""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from tandem_operator import names
from tandem_operator.api import GROUP, KIND, VERSION, SpeculativeDeployment
from tandem_operator.api.base import ApiModel
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.spec import Probe, Source, Spec
from tandem_operator.engines import Adapter, Launch, adapter_of
from tandem_operator.engines.adapter import (
    DRAFTER_MOUNT,
    ENVIRONMENT,
    KEY_MOUNT,
    TARGET_MOUNT,
    TERMINATION_LOG,
    UNPRIVILEGED,
    probes,
)
from tandem_operator.plan.observed import Manifest, Settings
from tandem_operator.plan.revisions import deadline_seconds
from tandem_operator.plan.revisions import recipe as make_recipe
from tandem_worker.contract import WORKER_PORT

SERVICE_PORT = 80
JOB_KEPT_SECONDS = 3600
PROMPTS_MOUNT, PROMPTS_FILE = "/etc/tandem/prompts", "prompts.jsonl"


def _metadata(resource: SpeculativeDeployment, name: str, labels: dict[str, str]) -> Manifest:
    owner = {  # no blockOwnerDeletion: it would need the right to update finalizers, and deletion must never wait
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": resource.metadata.name,
        "uid": resource.metadata.uid,
        "controller": True,
    }
    return {
        "name": name,
        "namespace": resource.metadata.namespace,
        "labels": {**names.common_labels(resource.metadata.name), **labels},
        "ownerReferences": [owner],
    }


def service(resource: SpeculativeDeployment, revision: str = "") -> Manifest:
    """One stable address; every ready worker of any revision is behind it, so shares are shares of replicas. With
    `revision`: of its workers alone, for a route to weigh."""
    name = resource.metadata.name
    only = {names.REVISION: revision} if revision else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(resource, names.child(name, revision) if revision else name, only),
        "spec": {
            "selector": {**names.worker_selector(name), **only},
            "ports": [
                {"name": names.PORT_NAME, "port": SERVICE_PORT, "targetPort": names.PORT_NAME, "protocol": "TCP"}
            ],
        },
    }


def worker_account(resource: SpeculativeDeployment) -> Manifest:
    """Their own, so that nothing granted to the namespace's default account reaches workers and Jobs."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(resource, names.worker_account(resource.metadata.name), {}),
        "automountServiceAccountToken": False,
    }


def disruption_budget(resource: SpeculativeDeployment) -> Manifest:
    """How many workers a drain of nodes may take at once; one, where a rollout may take none. Broken ones may always
    go."""
    name = resource.metadata.name
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(resource, name, {}),
        "spec": {
            "maxUnavailable": max(1, resource.spec.rollout.max_unavailable),
            "selector": {"matchLabels": names.worker_selector(name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def operator_key(resource: SpeculativeDeployment, settings: Settings) -> Manifest:
    """The public half only; the kubelet brings a new one to running pods without a restart."""
    name = resource.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(resource, names.operator_key(name), {}),
        "data": {names.KEY_FILE: settings.public_key_pem},
    }


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


def controller_revision(
    resource: SpeculativeDeployment, revision: str, number: int, recipe: Recipe, served: bool
) -> Manifest:
    """The record of a revision: its recipe, and whether it once was stable and so may be returned to."""
    name = resource.metadata.name
    metadata = _metadata(resource, names.child(name, revision), {names.REVISION: revision})
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {**metadata, "annotations": {names.SERVED: "true" if served else "false"}},
        "revision": number,
        "data": recipe.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def deployment(
    resource: SpeculativeDeployment,
    settings: Settings,
    revision: str,
    recipe: Recipe,
    replicas: int,
    start: Start | None = None,
) -> Manifest:
    """The workers of one revision."""
    name = resource.metadata.name
    start = (start or Start()).of(recipe)
    rollout = resource.spec.rollout
    selector = {**names.worker_selector(name), names.REVISION: revision}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(resource, names.child(name, revision), {names.REVISION: revision}),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "progressDeadlineSeconds": deadline_seconds(resource.spec, recipe),
            # Within a revision only its start, or another version of the operator, alters the template.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
            },
            "template": {
                "metadata": {
                    "labels": {**recipe.pod.labels, **names.common_labels(name), **selector},
                    "annotations": recipe.pod.annotations | start.annotations,
                },
                "spec": _worker_pod(resource, settings, revision, recipe, start),
            },
        },
    }


def fewer(resource: SpeculativeDeployment, revision: str, replicas: int) -> Manifest:
    """A Deployment of which nothing but the count is touched."""
    metadata = _metadata(resource, names.child(resource.metadata.name, revision), {names.REVISION: revision})
    return {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": replicas}}


def validation_job(resource: SpeculativeDeployment, settings: Settings, key: str, attempt: int) -> Manifest:
    """Runs `tandem-worker validate` once. A verdict (exit 1 and 2) is an answer, not a failure to be tried again."""
    name, spec = resource.metadata.name, resource.spec
    assert spec.drafter is not None, "only a pair is validated"
    target_folder, drafter_folder = _folder(spec.target.source, "target"), _folder(spec.drafter.source, "drafter")
    arguments = [
        "validate",
        f"--target={target_folder}",
        f"--drafter={drafter_folder}",
        f"--mode={spec.validation.mode}",
        f"--draft-length={spec.speculation.draft_length}",
        f"--min-accept-length={probe_floor(spec):g}",
        f"--termination-message={TERMINATION_LOG}",
        *_engine_arguments(spec, Launch(make_recipe(spec, name, None), "", target_folder, drafter_folder)),
    ]
    if spec.drafter.trained_on:
        arguments.append("--trained-on=" + ",".join(map(str, spec.drafter.trained_on.capture_indexes)))
    sources = {"target": spec.target.source, "drafter": spec.drafter.source}
    container = {
        **_container("validate", settings.worker_image, arguments, sources),
        "resources": _dump(spec.resources) if spec.validation.mode == "Probe" else {},
    }
    pod = _pod(name, spec.pod, [container], sources)
    if spec.validation.probe:
        _give_prompts(spec.validation.probe, container, pod)
    labels = {
        names.ROLE: names.VALIDATION,
        names.VALIDATION_KEY: key,
        names.ATTEMPT: str(attempt),
    }
    verdicts = {"containerName": "validate", "operator": "In", "values": [1, 2]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(resource, names.validation_job(name, key, attempt), labels),
        "spec": {
            "backoffLimit": 3,
            "ttlSecondsAfterFinished": JOB_KEPT_SECONDS,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": verdicts},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": {
                "metadata": {"labels": {**spec.pod.labels, **names.common_labels(name), **labels}},
                "spec": {**pod, "restartPolicy": "Never"},
            },
        },
    }


def probe_floor(spec: Spec) -> float:
    """The accept length that the probe asks for."""
    probe = spec.validation.probe
    return spec.guard.min_accept_length if probe is None or probe.min_accept_length is None else probe.min_accept_length


def _give_prompts(probe: Probe, container: Manifest, pod: Manifest) -> None:
    if probe.continuation_tokens:
        container["args"].append(f"--continuation={probe.continuation_tokens}")
    if probe.prompts:
        items = [{"key": probe.prompts.key, "path": PROMPTS_FILE}]
        pod["volumes"].append({"name": "prompts", "configMap": {"name": probe.prompts.name, "items": items}})
        container["volumeMounts"].append({"name": "prompts", "mountPath": PROMPTS_MOUNT, "readOnly": True})
        container["args"].append(f"--prompts={PROMPTS_MOUNT}/{PROMPTS_FILE}")


def _engine_arguments(spec: Spec, launch: Launch) -> list[str]:
    """What `validate` is told of the engine: the very arguments that a worker gets, since they can defeat a pair."""
    engine, adapter = spec.engine, adapter_of(spec.engine, spec.speculation)
    told = [f"--context-length={engine.context_length}"] if engine.context_length else []
    arguments, env = engine.args, engine.env
    if not adapter.cooperates:
        told.append(f"--engine={engine.type}@{engine.version}")
        arguments, env = adapter.arguments(launch), [*engine.env, *spec.pod.env]
    if arguments:
        told.append(f"--engine-args={shlex.join(arguments)}")
    return [*told, *(f"--engine-env={each.name}={each.value}" for each in env if each.value is not None)]


def _worker_pod(
    resource: SpeculativeDeployment, settings: Settings, revision: str, recipe: Recipe, start: Start
) -> Manifest:
    sources = {"target": recipe.target}
    drafter_folder = ""
    if recipe.drafter and recipe.speculates and not start.target_alone:
        sources["drafter"] = recipe.drafter
        drafter_folder = _folder(recipe.drafter, "drafter")
    adapter = adapter_of(recipe.engine, recipe.speculation)
    launch = Launch(recipe, revision, _folder(recipe.target, "target"), drafter_folder)
    image = recipe.engine.image or adapter.image or settings.worker_image
    container = _container("worker", image, adapter.arguments(launch), sources)
    container |= {
        "ports": [{"name": names.PORT_NAME, "containerPort": WORKER_PORT, "protocol": "TCP"}],
        "resources": _dump(recipe.resources),
        **probes(adapter.paths, recipe.start_up_seconds),
    }
    own = [_field("POD_IP", "status.podIP"), _field("POD_UID", "metadata.uid")]
    container["env"] = [*own, *map(_dump, recipe.engine.env), *map(_dump, recipe.pod.env)]
    pod = _pod(resource.metadata.name, recipe.pod, [container], sources)
    if adapter.cooperates:
        _take_commands(pod, resource.metadata.name)
    else:
        _host_engine(pod, adapter, settings, launch, sources)
    return pod


def _take_commands(pod: Manifest, name: str) -> None:
    """Tandem's own worker obeys whoever signs with the operator's key."""
    pod["containers"][0]["volumeMounts"] += [{"name": "operator-key", "mountPath": KEY_MOUNT, "readOnly": True}]
    pod["volumes"] += [{"name": "operator-key", "configMap": {"name": names.operator_key(name)}}]


def _host_engine(
    pod: Manifest, adapter: Adapter, settings: Settings, launch: Launch, sources: dict[str, Source]
) -> None:
    """What another engine needs: a user that is not root, a home, shared memory for its processes (production-stack
    #276), and somebody who looks whether the files are those that were validated."""
    container = pod["containers"][0]
    container["command"] = adapter.command
    given = {variable["name"] for variable in container["env"]}
    container["env"] += [{"name": n, "value": v} for n, v in ENVIRONMENT.items() if n not in given]
    container["securityContext"] |= {"runAsUser": UNPRIVILEGED, "runAsGroup": UNPRIVILEGED}
    container["volumeMounts"] += [{"name": "shm", "mountPath": "/dev/shm"}]
    pod["volumes"] += [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    prints = launch.recipe.fingerprints
    if prints is None:
        return
    arguments = ["verify", f"--target={launch.target_folder}", f"--target-fingerprint={prints.target}"]
    if launch.drafter_folder:
        arguments += [f"--drafter={launch.drafter_folder}", f"--drafter-fingerprint={prints.drafter}"]
    arguments.append(f"--termination-message={TERMINATION_LOG}")
    pod["initContainers"] = [_container("verify", settings.worker_image, arguments, sources)]


def _container(name: str, image: str, arguments: list[str], sources: dict[str, Source]) -> Manifest:
    mounts = [{"name": volume, "mountPath": _mount(volume), "readOnly": True} for volume in sources]
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


def _pod(owner: str, pod: ApiModel, containers: list[Manifest], sources: dict[str, Source]) -> Manifest:
    chosen = _dump(pod)
    for apart in ("labels", "annotations", "env"):
        chosen.pop(apart, None)
    volumes = [_volume(name, source) for name, source in sources.items()]
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


def _mount(volume: str) -> str:
    return {"target": TARGET_MOUNT, "drafter": DRAFTER_MOUNT}[volume]


def _folder(source: Source, volume: str) -> str:
    inside = source.pvc.path.strip("/") if source.pvc else ""
    return f"{_mount(volume)}/{inside}".rstrip("/")


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _dump(model: ApiModel) -> dict[str, Any]:
    dumped = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: value for key, value in dumped.items() if value not in ({}, [])}
