"""Carrying out a plan: children by server-side apply, deletions, commands, status, and last events.

A child that the API server refuses (an affinity that does not parse, a quota) does not stop the others: it becomes a
condition that carries the server's own words, and the pass is tried again later.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from kubernetes.aio import client

from tandem_operator import names
from tandem_operator.api import GROUP, KIND, PLURAL, VERSION, SpeculativeDeployment, Status
from tandem_operator.api.route import GATEWAY, GATEWAY_VERSION
from tandem_operator.events import Events, words
from tandem_operator.observe import Sight, read_resource
from tandem_operator.plan import Plan
from tandem_operator.plan.conditions import Seen, kstatus, merge
from tandem_operator.plan.decision import Deletion, Event
from tandem_operator.plan.observed import Manifest
from tandem_operator.queue import Key
from tandem_operator.workers import Workers

log = logging.getLogger(__name__)

APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
REFUSED_AGAIN_SECONDS, CONFLICT_AGAIN_SECONDS = 30.0, 0.2
STATUS_TRIES = 8  # against a writer who is as quick as we are


async def apply(
    api: client.ApiClient, workers: Workers, events: Events, sight: Sight, plan: Plan, now: datetime
) -> float | None:
    """Carry out `plan`; returns after how many seconds the next pass is due, None for the usual resync."""
    resource = sight.observed.resource
    wake, status = plan.wake_after_seconds, plan.status
    problems = [problem for manifest in plan.apply if (problem := await _apply_child(api, manifest))]
    told = plan.events
    if problems:
        status, refusal = _refused(resource, status, "; ".join(problems), now)
        told += refusal
        wake = min(wake or REFUSED_AGAIN_SECONDS, REFUSED_AGAIN_SECONDS)
    for deletion in plan.delete:
        await _delete(api, resource.metadata.namespace, deletion)
    for command in plan.commands:
        if address := sight.addresses.get(command.pod_uid):
            problem = await workers.switch(address, command.pod_uid, command.enabled, command.reason)
            log.info("speculation of pod %s -> %s (%s) %s", command.pod_uid, command.enabled, command.reason, problem)
    for uid in plan.calibrate:
        if address := sight.addresses.get(uid):
            workers.replay(address, uid, resource.spec.model_name or resource.metadata.name)
    if status != resource.status and not await write_status(api, resource, status):
        return CONFLICT_AGAIN_SECONDS  # the plan was for an object that is no more as it was: tell nothing of it
    for event in told:  # after status: an event that was told is a transition that was recorded
        await events.tell(resource, event, now)
    await events.tell_answers(resource, status, now)
    return wake


def _refused(
    resource: SpeculativeDeployment, status: Status, message: str, now: datetime
) -> tuple[Status, tuple[Event, ...]]:
    """Status with the condition that says so, and the event, unless it was told before."""
    seen = Seen("Progressing", "False", "ChildRefused", message)
    ready = next(Seen(c.type, c.status, c.reason, c.message) for c in status.conditions if c.type == "Ready")
    conditions = merge(status.conditions, [seen, *kstatus(seen, ready)], resource.metadata.generation, now)
    told = any(c.type == seen.type and c.reason == seen.reason for c in resource.status.conditions)
    event = () if told else (Event("Warning", seen.reason, message),)
    return status.model_copy(update={"conditions": conditions}), event


async def _apply_child(api: client.ApiClient, manifest: Manifest) -> str:
    """What the API server had against it, or an empty string. Raises for anything that is not about the manifest."""
    core, apps, batch = client.CoreV1Api(api), client.AppsV1Api(api), client.BatchV1Api(api)
    policy = client.PolicyV1Api(api)
    patch: dict[str, Callable[..., Awaitable[Any]]] = {
        "Service": core.patch_namespaced_service,
        "ServiceAccount": core.patch_namespaced_service_account,
        "ConfigMap": core.patch_namespaced_config_map,
        "Deployment": apps.patch_namespaced_deployment,
        "ControllerRevision": apps.patch_namespaced_controller_revision,
        "PodDisruptionBudget": policy.patch_namespaced_pod_disruption_budget,
        "Job": batch.patch_namespaced_job,
    }
    kind, name, namespace = manifest["kind"], manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    how: dict[str, Any] = {"field_manager": names.FIELD_MANAGER}
    try:
        if kind == "Scale":  # not through the subresource, which would be one more right
            body = {"spec": manifest["spec"]}
            await apps.patch_namespaced_deployment(name, namespace, body, **how, _content_type=MERGE)
        elif kind == "HTTPRoute":  # the user's: nothing but its rules, and only if nobody wrote it meanwhile
            route = client.CustomObjectsApi(api).patch_namespaced_custom_object
            at = (GATEWAY, GATEWAY_VERSION, namespace, "httproutes", name)
            await route(*at, manifest, **how, _content_type=MERGE)
        else:
            await patch[kind](name, namespace, manifest, **how, force=True, _content_type=APPLY)
    except client.ApiException as error:
        # A field of the wrong type, or one that does not exist, is answered by server-side apply with 500.
        untyped = error.status == 500 and "failed to create typed patch object" in words(error)
        if untyped or (error.status in (400, 403, 409, 422) and not (kind == "HTTPRoute" and error.status == 409)):
            return f"{kind} {name} was refused: {words(error)}"
        raise
    return ""


async def _delete(api: client.ApiClient, namespace: str, deletion: Deletion) -> None:
    apps, core = client.AppsV1Api(api), client.CoreV1Api(api)
    delete: dict[str, Callable[..., Awaitable[Any]]] = {
        "Deployment": apps.delete_namespaced_deployment,
        "Service": core.delete_namespaced_service,
        "ControllerRevision": apps.delete_namespaced_controller_revision,
    }
    try:
        await delete[deletion.kind](deletion.name, namespace, propagation_policy="Background")
    except client.ApiException as error:
        if error.status != 404:
            raise


async def write_status(api: client.ApiClient, resource: SpeculativeDeployment, status: Status) -> bool:
    """Replace the status; False if the object has gone, been made anew, or changed in what the plan is about.

    Replaced, not applied: the version is then held to (of an applied status a uid is ignored), and under an older CRD
    fields that it does not know are dropped, where server-side apply would refuse the whole status.
    """
    metadata = resource.metadata
    key, version = Key(metadata.namespace, metadata.name), metadata.resource_version
    for _ in range(STATUS_TRIES):
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": metadata.name, "resourceVersion": version},
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        try:
            await client.CustomObjectsApi(api).replace_namespaced_custom_object_status(
                GROUP, VERSION, metadata.namespace, PLURAL, metadata.name, body, field_manager=names.FIELD_MANAGER
            )
            return True
        except client.ApiException as error:
            if error.status not in (404, 409):
                raise
        newer = await read_resource(api, key)
        if newer is None or _looked_at(newer) != _looked_at(resource):
            return False
        version = newer.metadata.resource_version
    return False


def _looked_at(resource: SpeculativeDeployment) -> tuple[object, ...]:
    """All of an object that a plan depends on. A writer of other things who never rests (an autoscaler's or a GitOps
    tool's annotations, kserve #3033) must not keep the status from being written, pass after pass."""
    metadata = resource.metadata
    ours = {name: value for name, value in metadata.annotations.items() if name.startswith(f"{GROUP}/")}
    return metadata.uid, metadata.generation, metadata.deletion_timestamp, ours, resource.spec, resource.status
