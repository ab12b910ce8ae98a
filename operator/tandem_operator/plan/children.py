"""The manifests of everything the operator creates, from plain data. Applied server-side under one field manager.

A worker Deployment is built from its recipe, never from the present spec, so an old revision can run again. All pods
meet the restricted Pod Security standard and carry no API token.
"""

from __future__ import annotations

from typing import Any

from tandem_operator import names
from tandem_operator.api import GROUP, KIND, VERSION, SpeculativeDeployment
from tandem_operator.api.base import ApiModel
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.spec import Source
from tandem_operator.engines import builtin
from tandem_operator.plan.observed import Manifest, Settings
from tandem_worker.contract import WORKER_PORT

SERVICE_PORT = 80
JOB_KEPT_SECONDS = 3600
DRAIN_SECONDS = 30


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


def service(resource: SpeculativeDeployment) -> Manifest:
    """One stable address; every ready worker of any revision is behind it, so shares are shares of replicas."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(resource, resource.metadata.name, {}),
        "spec": {
            "selector": names.worker_selector(resource.metadata.name),
            "ports": [
                {"name": names.PORT_NAME, "port": SERVICE_PORT, "targetPort": names.PORT_NAME, "protocol": "TCP"}
            ],
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
    resource: SpeculativeDeployment, settings: Settings, revision: str, recipe: Recipe, replicas: int, retry: str = ""
) -> Manifest:
    """The workers of one revision. A new `retry` starts them anew, so that their self-test runs again."""
    name = resource.metadata.name
    rollout = resource.spec.rollout
    selector = {**names.worker_selector(name), names.REVISION: revision}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(resource, names.child(name, revision), {names.REVISION: revision}),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "progressDeadlineSeconds": rollout.progress_deadline_seconds,
            # Within a revision only a retry, or another version of the operator, alters the template.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
            },
            "template": {
                "metadata": {
                    "labels": {**recipe.pod.labels, **names.common_labels(name), **selector},
                    "annotations": recipe.pod.annotations | ({names.RETRY: retry} if retry else {}),
                },
                "spec": _worker_pod(resource, settings, revision, recipe),
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
        f"--min-accept-length={spec.guard.min_accept_length:g}",
        f"--termination-message={builtin.TERMINATION_LOG}",
    ]
    if spec.drafter.trained_on:
        arguments.append("--trained-on=" + ",".join(map(str, spec.drafter.trained_on.capture_indexes)))
    sources = {"target": spec.target.source, "drafter": spec.drafter.source}
    container = {
        **_container("validate", settings.worker_image, arguments, sources),
        "resources": _dump(spec.resources) if spec.validation.mode == "Probe" else {},
    }
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
                "spec": {
                    **_pod(spec.pod, [container], sources),
                    "restartPolicy": "Never",
                },
            },
        },
    }


def _worker_pod(resource: SpeculativeDeployment, settings: Settings, revision: str, recipe: Recipe) -> Manifest:
    sources = {"target": recipe.target}
    if recipe.drafter and recipe.speculates:
        sources["drafter"] = recipe.drafter
    drafter_folder = _folder(recipe.drafter, "drafter") if recipe.drafter else None
    arguments = builtin.serve_arguments(recipe, revision, _folder(recipe.target, "target"), drafter_folder)
    container = _container("worker", recipe.engine.image or settings.worker_image, arguments, sources)
    container |= {
        "ports": [{"name": names.PORT_NAME, "containerPort": WORKER_PORT, "protocol": "TCP"}],
        "resources": _dump(recipe.resources),
        **builtin.probes(resource.spec.rollout.progress_deadline_seconds),
    }
    own = [_field("POD_IP", "status.podIP"), _field("POD_UID", "metadata.uid")]
    container["env"] = [*own, *map(_dump, recipe.pod.env)]
    container["volumeMounts"] += [{"name": "operator-key", "mountPath": builtin.KEY_MOUNT, "readOnly": True}]
    pod = _pod(recipe.pod, [container], sources)
    pod["volumes"] += [{"name": "operator-key", "configMap": {"name": names.operator_key(resource.metadata.name)}}]
    pod["terminationGracePeriodSeconds"] = DRAIN_SECONDS
    return pod


def _container(name: str, image: str, arguments: list[str], sources: dict[str, Source]) -> Manifest:
    mounts = [{"name": volume, "mountPath": _mount(volume), "readOnly": True} for volume in sources]
    return {
        "name": name,
        "image": image,
        "args": arguments,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
        "terminationMessagePath": builtin.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _pod(pod: ApiModel, containers: list[Manifest], sources: dict[str, Source]) -> Manifest:
    chosen = _dump(pod)
    for name in ("labels", "annotations", "env"):
        chosen.pop(name, None)
    volumes = [_volume(name, source) for name, source in sources.items()]
    return {
        **chosen,
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
    return {"target": builtin.TARGET_MOUNT, "drafter": builtin.DRAFTER_MOUNT}[volume]


def _folder(source: Source, volume: str) -> str:
    inside = source.pvc.path.strip("/") if source.pvc else ""
    return f"{_mount(volume)}/{inside}".rstrip("/")


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _dump(model: ApiModel) -> dict[str, Any]:
    dumped = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: value for key, value in dumped.items() if value not in ({}, [])}
