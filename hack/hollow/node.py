"""The node: pods in, statuses out, and one HTTP server that listens at every worker's address."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
from base64 import urlsafe_b64decode
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from kubernetes.aio import client

from hollow.fates import Fates
from hollow.worker import FILES, Behaviour, HollowWorker
from localcluster.agent.api import Hiccup, Watched, read, timestamp
from localcluster.agent.model import Pod
from tandem_operator import names
from tandem_worker.contract import WORKER_PORT, SpeculationCommand, ValidationReport, Verdict

NAME = "hollow"
WHERE = {"nodeSelector": {"kubernetes.io/hostname": NAME}}
"""`spec.pod` of an object whose pods are to be hollow."""

LEASE_SECONDS, AT_ONCE, LOOK_AGAIN_SECONDS = 10, 16, 0.3


class HollowNode:
    """`network`: the first two numbers of the addresses, as `127.66`; the upper half of it is used."""

    def __init__(self, api: client.ApiClient, network: str, fates: Fates) -> None:
        self._core, self._coordination = client.CoreV1Api(api), client.CoordinationV1Api(api)
        self._network, self._fates = network, fates
        self.workers: dict[str, HollowWorker] = {}  # by address
        self._pods: dict[str, Pod] = {}  # by address
        self._addresses: dict[str, str] = {}  # by uid
        self._sites: dict[str, web.SockSite] = {}  # by uid
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Semaphore(AT_ONCE)
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        self._runner = await self._server()
        mine = functools.partial(
            self._core.list_pod_for_all_namespaces_without_preload_content, field_selector=f"spec.nodeName={NAME}"
        )
        pods = Watched(mine, Pod, self._changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_alive())
                tasks.create_task(pods.run())
                await pods.synced.wait()
                await self._register()
                self.ready.set()
        finally:
            await self._runner.cleanup()

    # --- the node ---

    async def _register(self) -> None:
        labels = {"kubernetes.io/hostname": NAME, "kubernetes.io/os": "linux"}
        node: Any = {"metadata": {"name": NAME, "labels": labels}}
        capacity = {"cpu": "100k", "memory": "1Pi", "pods": "100k", "nvidia.com/gpu": "100k"}
        now = timestamp()
        ready = {"type": "Ready", "status": "True", "reason": "Hollow", "message": "answers for its pods"}
        status: Any = {
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "conditions": [ready | {"lastHeartbeatTime": now, "lastTransitionTime": now}],
            }
        }
        await read(self._core.create_node_without_preload_content(node))
        await read(self._core.patch_node_status_without_preload_content(NAME, status))
        untainted: Any = {"spec": {"taints": None}}
        await read(
            self._core.patch_node_without_preload_content(
                NAME, untainted, _content_type="application/strategic-merge-patch+json"
            )
        )

    async def _keep_alive(self) -> None:
        namespace, made = "kube-node-lease", False
        while True:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            spec = {"holderIdentity": NAME, "leaseDurationSeconds": 40, "renewTime": now}
            lease: Any = {"metadata": {"name": NAME, "namespace": namespace}, "spec": spec}
            try:
                if made:
                    patch = self._coordination.patch_namespaced_lease_without_preload_content
                    await read(patch(NAME, namespace, {"spec": spec}))
                else:
                    await read(self._coordination.create_namespaced_lease_without_preload_content(namespace, lease))
                    made = True
            except Hiccup:
                await asyncio.sleep(1)
            else:
                await asyncio.sleep(LEASE_SECONDS)

    # --- pods ---

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._spawn(self._forget(old.metadata.uid))
        elif new.metadata.deletion_timestamp:
            if old is None or not old.metadata.deletion_timestamp:
                self._spawn(self._end(new))
        elif new.metadata.uid not in self._addresses:
            self._addresses[new.metadata.uid] = self._next_address()
            self._spawn(self._start(new))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next_address(self) -> str:
        count = self._count
        self._count += 1
        return f"{self._network}.{128 + count // 254 % 127}.{count % 254 + 1}"

    async def _start(self, pod: Pod) -> None:
        labels = pod.metadata.labels
        if labels.get(names.ROLE) == names.VALIDATION:
            await self._write(pod, _validated(self._fate(pod)))
            return
        behaviour, uid = self._behaviour(pod), pod.metadata.uid
        address = self._addresses[uid]
        if behaviour.start_seconds:
            await self._write(pod, _running(address, ready=False))
        while behaviour.start_seconds < 0:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            if uid not in self._addresses:
                return
            behaviour = self._behaviour(pod)
        await asyncio.sleep(behaviour.start_seconds)
        arguments = pod.spec.containers[0].args
        has_drafter = any(argument.startswith("--drafter=") for argument in arguments)
        speculates = has_drafter and "--no-speculation" not in arguments
        revision = labels.get(names.REVISION, "")
        self.workers[address] = HollowWorker(uid, revision, behaviour, has_drafter, speculates)
        self._pods[address] = pod
        listener = socket.create_server((address, WORKER_PORT), backlog=32)
        site = self._sites[pod.metadata.uid] = web.SockSite(self._runner, listener)
        await site.start()
        await self._write(pod, _running(address, ready=True))

    def _fate(self, pod: Pod) -> dict[str, Any]:
        return self._fates.of(pod)

    def _behaviour(self, pod: Pod) -> Behaviour:
        env = {variable.name: variable.value for variable in pod.spec.containers[0].env}
        told = {key: value for key, value in self._fate(pod).items() if key != "verdict"}
        return replace(Behaviour.told(env), **told)

    async def _end(self, pod: Pod) -> None:
        options: Any = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        delete = self._core.delete_namespaced_pod_without_preload_content
        await self._insist(lambda: delete(pod.metadata.name, pod.metadata.namespace, body=options))

    async def _forget(self, uid: str) -> None:
        if site := self._sites.pop(uid, None):
            await site.stop()
        address = self._addresses.pop(uid, "")
        self.workers.pop(address, None)
        self._pods.pop(address, None)

    async def _write(self, pod: Pod, status: dict[str, Any]) -> None:
        patch = self._core.patch_namespaced_pod_status_without_preload_content
        body: Any = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        merge = "application/merge-patch+json"
        await self._insist(lambda: patch(pod.metadata.name, pod.metadata.namespace, body, _content_type=merge))

    async def _insist(self, request: Any) -> None:
        """Until it is done, or the pod is gone or another."""
        while True:
            try:
                async with self._writing:
                    await read(request())
                return
            except client.ApiException as error:
                if error.status in (404, 409):
                    return
            except Hiccup:
                pass
            await asyncio.sleep(0.5)

    # --- what workers answer ---

    async def _server(self) -> web.AppRunner:
        app = web.Application()
        app.add_routes(
            [
                web.get("/status", lambda request: _text(self._worker(request).status())),
                web.get("/metrics", lambda request: _text(self._worker(request).metrics())),
                web.post("/admin/speculation", self._speculation),
                web.post("/v1/completions", self._completion),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        return runner

    def _worker(self, request: web.Request) -> HollowWorker:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        found = self.workers.get(address)
        if found is None:
            raise web.HTTPServiceUnavailable
        found.behaviour = replace(self._behaviour(self._pods[address]), self_test=found.behaviour.self_test)
        return found

    async def _speculation(self, request: web.Request) -> web.Response:
        """Carried out without a look at the signature: who may command a worker is tested on real ones."""
        token = request.headers["Authorization"].removeprefix("Bearer ")
        claims = json.loads(_decoded(token.split(".")[1]))
        self._worker(request).carry_out(SpeculationCommand.model_validate(claims))
        return web.Response(text="{}")

    async def _completion(self, request: web.Request) -> web.Response:
        self._worker(request).calibrations += 1
        return web.json_response({"choices": []})


async def _text(text: str) -> web.Response:
    return web.Response(text=text)


def _decoded(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _running(address: str, ready: bool) -> dict[str, Any]:
    now, true = timestamp(), "True" if ready else "False"
    container = {
        "name": "worker",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "image": "hollow",
        "imageID": "hollow",
        "state": {"running": {"startedAt": now}},
    }
    kinds = (("Initialized", "True"), ("PodScheduled", "True"), ("ContainersReady", true), ("Ready", true))
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "conditions": [{"type": kind, "status": status, "lastTransitionTime": now} for kind, status in kinds],
        "containerStatuses": [container],
    }


def _validated(fate: dict[str, Any]) -> dict[str, Any]:
    """The Job's pod has ended."""
    verdict = Verdict(fate.get("verdict", Verdict.FITS))
    misfit = verdict == Verdict.DOES_NOT_FIT
    report = ValidationReport(verdict=verdict, mode="Static", summary=f"hollow: {verdict}", fingerprints=FILES)
    now = timestamp()
    ended = {
        "exitCode": int(misfit),
        "reason": "Error" if misfit else "Completed",
        "message": report.termination_message(),
        "startedAt": now,
        "finishedAt": now,
    }
    container = {
        "name": "validate",
        "ready": False,
        "restartCount": 0,
        "image": "hollow",
        "imageID": "hollow",
        "state": {"terminated": ended},
    }
    return {
        "phase": "Failed" if misfit else "Succeeded",
        "startTime": now,
        "containerStatuses": [container],
    }
