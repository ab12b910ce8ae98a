"""The cluster as plain data: the only place that reads Kubernetes objects, as the store holds them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from kubernetes.aio import client
from pydantic import ValidationError

from tandem_operator import kube, names
from tandem_operator.api import GROUP, PLURAL, VERSION, SpeculativeDeployment
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.route import GATEWAY, GATEWAY_VERSION, HttpRoute
from tandem_operator.plan.observed import Deployment, History, Observed, Pod, ValidationJob
from tandem_operator.plan.revisions import recipe as make_recipe
from tandem_operator.queue import Key
from tandem_operator.store import CHILDREN, OBJECT, Store
from tandem_operator.workers import Workers
from tandem_worker.contract import ValidationReport, WorkerFailure

_Word = TypeVar("_Word", ValidationReport, WorkerFailure)

# A container that is still being set up is no trouble.
_USUAL_WAITS = {"ContainerCreating", "PodInitializing"}


class InvalidObject(Exception):
    """The object, or the record of a revision, does not parse: another operator than this one wrote it."""


@dataclass(frozen=True)
class Sight:
    """What was observed, and where pods can be reached."""

    observed: Observed
    addresses: dict[str, str]  # pod uid -> IP


async def observe(api: client.ApiClient, store: Store, workers: Workers, key: Key) -> Sight | None:
    """None: the object is gone. Raises InvalidObject, and ApiException as the API server gives it."""
    resource = read_resource(store, key)
    if resource is None:
        return None
    core = client.CoreV1Api(api)
    deployments = store.children(kube.DeploymentObject, key)
    records = store.children(kube.ControllerRevisionObject, key)
    jobs = store.children(kube.JobObject, key)
    if _misses_a_report(resource, jobs, store.children(kube.PodObject, key)):
        await _read_pods(core, store, key)
    pods = store.children(kube.PodObject, key)
    config, route = await asyncio.gather(_config(core, resource), _route(api, resource))
    # Children of an object that was deleted and made anew under the same name are not ours.
    uid = resource.metadata.uid
    serving = [pod for pod in pods if pod.metadata.labels.get(names.ROLE) == names.WORKER]
    addresses = {pod.metadata.uid: pod.status.pod_ip for pod in serving if pod.status.pod_ip}
    seen = tuple(_pod(pod) for pod in serving)
    history = tuple(sorted((_history(r, uid) for r in records if r.metadata.ours(uid)), key=lambda h: h.number))
    recipes = {record.revision: record.recipe for record in history}
    present = make_recipe(resource.spec, key.name, None)  # for a worker whose record was deleted
    asked = [pod for pod in seen if pod.ready and pod.uid in addresses]
    answers = await asyncio.gather(
        *(workers.read(addresses[pod.uid], pod, recipes.get(pod.revision, present)) for pod in asked)
    )
    observed = Observed(
        resource=resource,
        pods=seen,
        workers=tuple((pod.uid, answer) for pod, answer in zip(asked, answers, strict=True)),
        deployments=tuple(_deployment(d, uid) for d in deployments if d.metadata.ours(uid)),
        jobs=tuple(_job(job, pods) for job in jobs if job.metadata.owned_by(uid)),
        history=history,
        config=config,
        route=route,
    )
    return Sight(observed, addresses)


def read_resource(store: Store, key: Key) -> SpeculativeDeployment | None:
    """Raises InvalidObject."""
    found = store.json_of(key)
    if found is None:
        return None
    try:
        return SpeculativeDeployment.model_validate_json(found)
    except ValidationError as error:
        raise InvalidObject(str(error)) from error


async def read_anew(api: client.ApiClient, store: Store, key: Key) -> None:
    """Ask the API server for the object itself: its watch may be late, or deaf."""
    read = client.CustomObjectsApi(api).get_namespaced_custom_object
    try:
        found = await read(GROUP, VERSION, key.namespace, PLURAL, key.name)
        store.put(OBJECT, cast(dict[str, Any], found))
    except client.ApiException as error:
        if error.status != 404:
            raise
        if known := store.meta(OBJECT.name, *key):
            store.drop(OBJECT, {"metadata": known.model_dump(mode="json", by_alias=True)})


async def _route(api: client.ApiClient, resource: SpeculativeDeployment) -> HttpRoute | None:
    """None, too, where the Gateway API is not installed."""
    named, namespace = resource.spec.traffic.http_route, resource.metadata.namespace
    if named is None:
        return None
    read = client.CustomObjectsApi(api).get_namespaced_custom_object
    try:
        return HttpRoute.model_validate(await read(GATEWAY, GATEWAY_VERSION, namespace, "httproutes", named.name))
    except client.ApiException as error:
        if error.status == 404:
            return None
        raise


def _misses_a_report(resource: SpeculativeDeployment, jobs: list[kube.JobObject], pods: list[kube.PodObject]) -> bool:
    """A Job is told to have ended and the last word of its pod is not there yet: watches of two kinds have no order."""
    known = resource.status.validation
    for job in (_job(job, pods) for job in jobs if job.metadata.owned_by(resource.metadata.uid)):
        concluded = known is not None and known.key == job.key and known.attempt >= job.attempt
        if job.finished and job.report is None and not concluded:
            return True
    return False


async def _read_pods(core: client.CoreV1Api, store: Store, key: Key) -> None:
    selector = f"{names.NAME}={key.name},{names.MANAGED_BY}={names.FIELD_MANAGER}"
    page = await kube.got(
        kube.RawList, core.list_namespaced_pod_without_preload_content, key.namespace, label_selector=selector
    )
    for body in page.items:
        store.put(CHILDREN["Pod"], body)


async def _config(core: client.CoreV1Api, resource: SpeculativeDeployment) -> tuple[tuple[str, str, str], ...]:
    """What the ConfigMap keys hold that the spec refers to. Only these are read, by name; none is watched."""
    wanted = resource.spec.config_references
    data: dict[str, dict[str, str]] = {}
    for name in {reference.name for reference in wanted}:
        read = core.read_namespaced_config_map_without_preload_content
        try:
            data[name] = (await kube.got(kube.ConfigMapObject, read, name, resource.metadata.namespace)).data
        except client.ApiException as error:
            if error.status != 404:
                raise
    return tuple((r.name, r.key, data[r.name][r.key]) for r in wanted if r.key in data.get(r.name, {}))


def _deployment(item: kube.DeploymentObject, uid: str) -> Deployment:
    failures = (c.message for c in item.status.conditions if c.type == "ReplicaFailure" and c.status == "True")
    return Deployment(
        revision=item.metadata.labels.get(names.REVISION, ""),
        desired=item.spec.replicas,
        ready=item.status.ready_replicas,
        problem=next(failures, ""),
        owned=item.metadata.owned_by(uid),
    )


def _history(item: kube.ControllerRevisionObject, uid: str) -> History:
    try:
        recipe = Recipe.model_validate(item.data)
    except ValidationError as error:
        raise InvalidObject(
            f"its ControllerRevision {item.metadata.name} was written by another operator. Run that one again, or "
            f"delete the record (what it describes can not be started anew then): {error}"
        ) from error
    return History(
        revision=item.metadata.labels.get(names.REVISION, ""),
        number=item.revision,
        recipe=recipe,
        served=item.metadata.annotations.get(names.SERVED) == "true",
        owned=item.metadata.owned_by(uid),
    )


def _pod(pod: kube.PodObject) -> Pod:
    failure, runs_again = _refusal(pod)
    return Pod(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        revision=pod.metadata.labels.get(names.REVISION, ""),
        ready=any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions),
        terminating=pod.metadata.deletion_timestamp is not None,
        trouble=_trouble(pod),
        failure=failure,
        runs_again=runs_again,
        retry=pod.metadata.annotations.get(names.RETRY, ""),
        image=next((container.image_id for container in pod.status.container_statuses), ""),
        restarts=sum(container.restart_count for container in pod.status.containers),
        target_alone=pod.metadata.annotations.get(names.SPECULATION) == "off",
    )


def _trouble(pod: kube.PodObject) -> str:
    """Why the pod does not run, in words; empty when nothing is amiss."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.reason}: {condition.message}"
    for container in pod.status.containers:
        waiting, ended = container.state.waiting, container.ended
        last_words = _last_words(ended) if ended and ended.exit_code != 0 else ""
        if waiting and waiting.reason not in _USUAL_WAITS:
            return "; ".join(filter(None, (f"{waiting.reason} {waiting.message}".strip(), last_words)))
        if last_words:
            return last_words
    return ""


def _refusal(pod: kube.PodObject) -> tuple[WorkerFailure | None, bool]:
    """What a container said when it last refused to start, and whether it was started again since."""
    for container in pod.status.containers:
        if container.ended and (failure := _parsed(WorkerFailure, container.ended.message)):
            return failure, container.state.running is not None
    return None, False


def _last_words(ended: kube.Terminated) -> str:
    failure = _parsed(WorkerFailure, ended.message)
    said = f"{failure.reason}: {failure.message}" if failure else ended.message.strip()[-300:]
    return f"{ended.reason} (exit {ended.exit_code}) {said}".strip()


def _report(pod: kube.PodObject) -> ValidationReport | None:
    """The termination message of a container, when it is one."""
    words = (_parsed(ValidationReport, c.ended.message) for c in pod.status.containers if c.ended)
    return next((word for word in words if word), None)


def _parsed(kind: type[_Word], message: str) -> _Word | None:
    try:
        return kind.model_validate_json(message)
    except ValidationError:
        return None


def _job(job: kube.JobObject, pods: list[kube.PodObject]) -> ValidationJob:
    ended = [c for c in job.status.conditions if c.status == "True" and c.type in ("Complete", "Failed")]
    mine = [pod for pod in pods if pod.metadata.owned_by(job.metadata.uid)]
    said = ((pod.metadata.name, r) for pod in mine if (r := _report(pod)))
    speaker, report = next(said, ("", None))
    problem = next((trouble for pod in mine if (trouble := _trouble(pod))), "")
    attempt = job.metadata.labels.get(names.ATTEMPT, "")
    return ValidationJob(
        name=job.metadata.name,
        key=job.metadata.labels.get(names.VALIDATION_KEY, ""),
        attempt=int(attempt) if attempt.isdecimal() else 0,  # by hand; then the Job is applied anew, labels and all
        finished=bool(ended) or report is not None,
        report=report,
        pod=speaker,
        problem=problem or next((c.message or c.reason for c in ended if c.type == "Failed"), ""),
    )
