"""What the API server shows, followed by two watches: the objects with their printer columns, and every worker pod.

A pod that came and went is remembered, so that "no worker ever existed" can be told from "none exists now".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from pydantic import BaseModel, ConfigDict, Field

from demo.pairs import Manifest
from tandem_operator import names
from tandem_operator.api import GROUP, PLURAL, VERSION, Condition, SpeculativeDeployment
from tandem_operator.api.status import Counts
from tandem_operator.engines.builtin import read_counts
from tandem_operator.kube import PodObject
from tandem_operator.plan.analysis import evidence
from tandem_worker.contract import WORKER_PORT

NAMESPACE = "default"
_AS_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
_WATCH_SECONDS = 3600


class ActFailed(Exception):
    """An act that did not come to its end: what was waited for, and what was there instead."""


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Row(_Wire):
    cells: tuple[Any, ...]
    object: SpeculativeDeployment


class _Column(_Wire):
    name: str


class _Table(_Wire):
    column_definitions: tuple[_Column, ...] | None = Field(default=None, alias="columnDefinitions")
    rows: tuple[_Row, ...] = ()


class _TableEvent(_Wire):
    type: str
    object: _Table


class _PodEvent(_Wire):
    type: str
    object: PodObject


@dataclass(frozen=True)
class Shown:
    """An object as `kubectl get` prints it, and all of it."""

    columns: dict[str, str]
    resource: SpeculativeDeployment

    def is_true(self, condition: str) -> bool:
        return self.status_of(condition) == "True"

    def status_of(self, condition: str) -> str:
        """`True`, `False` or `Unknown`, of the present spec: what was said of an earlier one counts as Unknown."""
        seen = self._present(condition)
        return seen.status if seen else "Unknown"

    def reason_of(self, condition: str) -> str:
        seen = self._present(condition)
        return seen.reason if seen else ""

    def message_of(self, condition: str) -> str:
        seen = self._present(condition)
        return seen.message if seen else ""

    def _present(self, condition: str) -> Condition | None:
        generation = self.resource.metadata.generation
        conditions = (seen for seen in self.resource.status.conditions if seen.observed_generation == generation)
        return next((seen for seen in conditions if seen.type == condition), None)


@dataclass(frozen=True)
class WorkerPod:
    name: str
    uid: str
    owner: str  # name of the SpeculativeDeployment
    revision: str
    ip: str
    ready: bool
    gone: bool


@dataclass
class World:
    api: client.ApiClient
    http: aiohttp.ClientSession
    objects: dict[str, Shown] = field(default_factory=dict)
    workers: dict[str, WorkerPod] = field(default_factory=dict)  # by uid
    on_change: Callable[[str, Shown | None, Shown], None] = lambda name, before, now: None
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def apply(self, manifest: Manifest) -> None:
        """Server-side, as `kubectl apply --server-side` would. Raises ActFailed with the API server's words."""
        try:
            await client.CustomObjectsApi(self.api).patch_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, PLURAL, manifest["metadata"]["name"], manifest,
                field_manager="demo", force=True, _content_type="application/apply-patch+yaml",
            )  # fmt: skip
        except ApiException as error:
            raise ActFailed(f"the API server refused the object: {error.body or error.reason}") from error

    async def delete(self, name: str) -> None:
        """Its workers end in the background."""
        await client.CustomObjectsApi(self.api).delete_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, name)

    def shown(self, name: str) -> Shown:
        """Raises ActFailed when there is no such object."""
        if name not in self.objects:
            raise ActFailed(f"there is no SpeculativeDeployment {name}")
        return self.objects[name]

    def alive(self, name: str, revision: str = "") -> list[WorkerPod]:
        """Worker pods of an object that exist now; of one revision, if one is named."""
        mine = [pod for pod in self.workers.values() if pod.owner == name and not pod.gone]
        return [pod for pod in mine if not revision or pod.revision == revision]

    async def counts(self, name: str, revision: str = "") -> Counts:
        """Sum of the counters of the ready workers, read from the pods themselves. Raises ActFailed."""
        total = Counts()
        for pod in self.alive(name, revision):
            if pod.ready:
                total = evidence.plus(total, await self.counts_of(pod))
        return total

    async def counts_of(self, pod: WorkerPod) -> Counts:
        try:
            async with self.http.get(f"http://{pod.ip}:{WORKER_PORT}/metrics") as response:
                return read_counts(await response.text())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ActFailed(f"no counters from pod {pod.name}: {error}") from error

    async def until(self, what: str, holds: Callable[[], bool], limit_seconds: float) -> None:
        """Wait until `holds` at some change of what is watched. Raises ActFailed after `limit_seconds`."""
        try:
            async with asyncio.timeout(limit_seconds), self._news:
                await self._news.wait_for(holds)
        except TimeoutError:
            raise ActFailed(f"waited {limit_seconds:.0f} s for {what}") from None

    async def until_object(
        self, name: str, what: str, holds: Callable[[Shown], bool], limit_seconds: float = 180
    ) -> Shown:
        try:
            await self.until(what, lambda: name in self.objects and holds(self.objects[name]), limit_seconds)
        except ActFailed as error:
            conditions = self.objects[name].resource.status.conditions if name in self.objects else []
            said = "; ".join(f"{c.type}={c.status} ({c.reason}: {c.message})" for c in conditions)
            raise ActFailed(f"{error}; the object says: {said or 'nothing yet'}") from None
        return self.objects[name]

    async def follow_objects(self) -> None:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{PLURAL}"
        columns: tuple[str, ...] = ()
        async for line in self._watch(path, {"includeObject": "Object"}, _AS_TABLE):
            event = _TableEvent.model_validate_json(line)
            if event.object.column_definitions:  # only the first event of a watch names them
                columns = tuple(column.name for column in event.object.column_definitions)
            for row in event.object.rows:
                name = row.object.metadata.name
                if event.type == "DELETED":
                    self.objects.pop(name, None)
                    continue
                cells = ("" if cell is None else str(cell) for cell in row.cells)
                before, now = self.objects.get(name), Shown(dict(zip(columns, cells, strict=True)), row.object)
                self.objects[name] = now
                self.on_change(name, before, now)
            await self._notify()

    async def follow_pods(self) -> None:
        query = {"labelSelector": f"{names.ROLE}={names.WORKER}"}
        async for line in self._watch(f"/api/v1/namespaces/{NAMESPACE}/pods", query, {}):
            event = _PodEvent.model_validate_json(line)
            meta = event.object.metadata
            conditions = event.object.status.conditions
            self.workers[meta.uid] = WorkerPod(
                name=meta.name,
                uid=meta.uid,
                owner=meta.labels[names.NAME],
                revision=meta.labels[names.REVISION],
                ip=event.object.status.pod_ip,
                ready=any(c.type == "Ready" and c.status == "True" for c in conditions),
                gone=event.type == "DELETED",
            )
            await self._notify()

    async def _watch(self, path: str, query: dict[str, str], headers: dict[str, str]) -> AsyncIterator[bytes]:
        """Events of a watch, which is opened again when the server ends it: everything is then told anew."""
        while True:
            request = await self.api.param_serialize(
                "GET",
                path,
                query_params=[("watch", "true"), *query.items()],
                header_params=dict(headers),
                auth_settings=["BearerToken"],
            )
            answer = await self.api.call_api(*request, _request_timeout=_WATCH_SECONDS)
            async with answer.response as response:
                if response.status != 200:
                    raise ActFailed(f"the API server refused a watch: {(await response.text())[:300]}")
                async for line in response.content:
                    yield line

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()


@asynccontextmanager
async def watched_world(kubeconfig: str) -> AsyncIterator[World]:
    """A World whose watches run as long as the block. A watch that fails ends the block with its error."""
    await config.load_kube_config(config_file=kubeconfig)
    async with client.ApiClient() as api, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
        world = World(api, http)
        try:
            async with asyncio.TaskGroup() as tasks:
                watches = [tasks.create_task(world.follow_objects()), tasks.create_task(world.follow_pods())]
                yield world
                for watch in watches:
                    watch.cancel()
        except BaseExceptionGroup as group:  # of one kind of error: say it, not that it came from a task
            raise group.exceptions[0] from None
