"""Carrying out a plan: children by server-side apply, deletions, commands, and last the status.

A child that the API server refuses (an affinity that does not parse, a quota) does not stop the others: it becomes a
condition that carries the server's own words, and the pass is tried again later.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Any, NamedTuple, cast

from kubernetes.aio import client

from tandem_operator import names
from tandem_operator.api import GROUP, KIND, PLURAL, VERSION, SpeculativeDeployment, Status
from tandem_operator.observe import Sight, read_anew, read_resource
from tandem_operator.plan import Plan
from tandem_operator.plan.conditions import Seen, kstatus, merge
from tandem_operator.plan.decision import Command, Event
from tandem_operator.queue import Key
from tandem_operator.store import OBJECT, Store
from tandem_operator.workers import Workers
from tandem_operator.writer import Changed, Writer

log = logging.getLogger(__name__)

REFUSED_AGAIN_SECONDS, AGAIN_SECONDS = 30.0, 0.1
STATUS_TRIES = 8  # against a writer who is as quick as we are


class Applied(NamedTuple):
    """What stands in status now, what is to be told of it, and after how many seconds the next pass is due; None: at
    the usual resync."""

    status: Status
    events: tuple[Event, ...]
    again_seconds: float | None


async def apply(
    api: client.ApiClient, store: Store, writer: Writer, workers: Workers, sight: Sight, plan: Plan, now: datetime
) -> Applied | None:
    """Carry out `plan`. None: the object is no more what the plan was made for, so its status is as it was; nothing is
    to be told, and another plan is due soon."""
    resource = sight.observed.resource
    writer.seen(resource, frozenset(pod.uid for pod in sight.observed.pods))
    refused = await _children(api, store, writer, resource, plan)
    if refused is None:
        return None
    wake, status, told = plan.wake_after_seconds, plan.status, plan.events
    if refused:
        status, refusal = _refused(resource, status, refused, now)
        told += refusal
        wake = min(wake or REFUSED_AGAIN_SECONDS, REFUSED_AGAIN_SECONDS)
    await _commands(workers, sight, plan)
    if status != resource.status and not await write_status(api, store, resource, status):
        return None
    changed = writer.changed(Key(resource.metadata.namespace, resource.metadata.name))
    if changed or _without_figures(status) != _without_figures(resource.status):
        wake = min(wake or AGAIN_SECONDS, AGAIN_SECONDS)  # what was written may call for more, and nobody else tells
    return Applied(status, told, wake)


async def _children(
    api: client.ApiClient, store: Store, writer: Writer, resource: SpeculativeDeployment, plan: Plan
) -> str | None:
    """What the API server refused, in its words; empty if nothing. None: the object has changed meanwhile."""
    problems = []
    try:
        for manifest in plan.apply:
            if writer.would_adopt(manifest) and not await _still_there(api, store, resource):
                return None
            if problem := await writer.apply(manifest):
                problems.append(problem)
    except Changed:
        return None
    for deletion in plan.delete:
        await writer.delete(resource.metadata.namespace, deletion)
    return "; ".join(problems)


async def _commands(workers: Workers, sight: Sight, plan: Plan) -> None:
    """To all workers at once: some may not answer, and the status waits."""

    async def switch(command: Command, address: str) -> None:
        problem = await workers.switch(address, command.pod_uid, command.enabled, command.reason)
        log.info("speculation of pod %s -> %s (%s) %s", command.pod_uid, command.enabled, command.reason, problem)

    reachable = [(command, sight.addresses.get(command.pod_uid)) for command in plan.commands]
    await asyncio.gather(*(switch(command, address) for command, address in reachable if address))
    resource = sight.observed.resource
    for uid in plan.calibrate:
        if address := sight.addresses.get(uid):
            workers.replay(address, uid, resource.spec.model_name or resource.metadata.name)


async def _still_there(api: client.ApiClient, store: Store, resource: SpeculativeDeployment) -> bool:
    """Asked before a child without an owner is taken over: it may have none because the object was just deleted with
    `--cascade=orphan`, which the children's watch can tell first. Kubernetes' own controllers ask, too."""
    key = Key(resource.metadata.namespace, resource.metadata.name)
    await read_anew(api, store, key)
    newer = read_resource(store, key)
    return newer is not None and newer.metadata.uid == resource.metadata.uid and not newer.metadata.deletion_timestamp


def _without_figures(status: Status) -> Status:
    return status.model_copy(update={"windows": [], "unread": [], "measurements": [], "acceptance": None})


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


async def write_status(api: client.ApiClient, store: Store, resource: SpeculativeDeployment, status: Status) -> bool:
    """Replace the status; False if the object has gone, been made anew, or changed in what the plan is about.

    Replaced, not applied: the version is then held to (of an applied status a uid is ignored), and under an older CRD
    fields that it does not know are dropped, where server-side apply would refuse the whole status.
    """
    metadata, objects = resource.metadata, client.CustomObjectsApi(api)
    where = (GROUP, VERSION, metadata.namespace, PLURAL, metadata.name)
    key, version = Key(metadata.namespace, metadata.name), metadata.resource_version
    for _ in range(STATUS_TRIES):
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": metadata.name, "resourceVersion": version},
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        try:
            written = await objects.replace_namespaced_custom_object_status(
                *where, body, field_manager=names.FIELD_MANAGER
            )
            store.put(OBJECT, cast(dict[str, Any], written))
            return True
        except client.ApiException as error:
            if error.status not in (404, 409):
                raise
        await read_anew(api, store, key)
        newer = read_resource(store, key)
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
