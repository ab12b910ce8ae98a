"""The operator's parts together: kopf wakes the queue, the queue runs reconciles, a list catches what kopf missed."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import kopf
from kubernetes.aio import client, config

from tandem_operator import handlers, kube, web
from tandem_operator import plan as planning
from tandem_operator.api import GROUP, PLURAL, VERSION
from tandem_operator.crd_check import crd_problem
from tandem_operator.lease import Lease, LeaseLost
from tandem_operator.metrics import Metrics
from tandem_operator.queue import Key, WorkQueue
from tandem_operator.reconcile import Reconciler
from tandem_operator.settings import Settings
from tandem_operator.signing import Signer
from tandem_operator.workers import Workers

log = logging.getLogger(__name__)

LIST_EVERY_SECONDS, WITHOUT_CRD_SECONDS, LAG_LOOKED_AT_SECONDS = 60.0, 3.0, 1.0


async def run(settings: Settings) -> None:
    """Until cancelled or told to stop by a signal."""
    async with connection() as api, aiohttp.ClientSession() as session:
        signer, metrics = Signer(), Metrics()
        workers = Workers(session, signer)
        for_plan = planning.Settings(settings.worker_image, settings.allowed_host_paths, signer.public_key_pem)
        queue = WorkQueue(Reconciler(api, workers, for_plan, metrics), settings.workers, settings.resync_seconds)
        lister = Lister(api, queue, settings.namespaces, metrics)
        runner = await web.serve(settings.http_host, settings.http_port, metrics, queue, lister.ailment)
        try:
            async with leading(api, settings) as keep, asyncio.TaskGroup() as group:
                parts = (keep, queue.run(), lister.run(), measure_lag(metrics))
                others = [group.create_task(part) for part in parts]
                await lister.crd_found.wait()  # kopf resolves the kinds that it watches once
                await _run_kopf(queue, settings)
                for task in others:  # kopf returns when a signal asks the process to stop
                    task.cancel()
        except* LeaseLost as lost:
            log.error("%s: this operator ends, so that two never act at once", lost.exceptions[0])
            raise SystemExit(1) from None
        finally:
            await runner.cleanup()


@asynccontextmanager
async def leading(api: client.ApiClient, settings: Settings) -> AsyncIterator[Coroutine[Any, Any, None]]:
    """While the block runs this operator is the one that acts, as long as what is given to it runs beside."""
    if not settings.lease_namespace:
        log.warning("no --lease-namespace: nothing keeps a second operator from acting on the same objects")
        yield asyncio.sleep(math.inf)
        return
    lease = Lease(api, settings.lease_namespace, settings.identity or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    await lease.acquire()
    try:
        yield lease.keep()
    finally:
        await lease.release()


async def measure_lag(metrics: Metrics) -> None:
    """Until cancelled. A late loop is what a blocking call or a starved pod looks like."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_LOOKED_AT_SECONDS
        await asyncio.sleep(LAG_LOOKED_AT_SECONDS)
        metrics.loop_lag.observe(max(0.0, loop.time() - due))


@asynccontextmanager
async def connection() -> AsyncIterator[client.ApiClient]:
    """In a pod by its service account; elsewhere by KUBECONFIG."""
    configuration = client.Configuration()
    if "KUBECONFIG" in os.environ:
        await config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=configuration)
    else:
        config.load_incluster_config(client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        yield api


class Lister:
    """Lists the objects now and then, so that a watch that has gone deaf delays us by a minute and no more.

    It looks at the CRD too: a missing one is waited for, an older one is said aloud.
    """

    def __init__(self, api: client.ApiClient, queue: WorkQueue, namespaces: tuple[str, ...], metrics: Metrics) -> None:
        self._api, self._queue, self._namespaces, self._metrics = api, queue, namespaces, metrics
        self._objects = client.CustomObjectsApi(api)
        self._tried_seconds = asyncio.get_running_loop().time()
        self._problem = ""
        self.crd_found = asyncio.Event()

    def ailment(self) -> str:
        now = asyncio.get_running_loop().time()
        return web.ailment(self._queue, self._tried_seconds, now, LIST_EVERY_SECONDS)

    async def run(self) -> None:
        while True:
            try:
                await self._check_crd()
                for item in await self._list():
                    self._queue.add(Key(item.metadata.namespace, item.metadata.name))
                self.crd_found.set()
            except (client.ApiException, aiohttp.ClientError, TimeoutError) as error:
                log.warning("the objects could not be listed: %s", error)
            self._tried_seconds = asyncio.get_running_loop().time()
            await asyncio.sleep(LIST_EVERY_SECONDS if self.crd_found.is_set() else WITHOUT_CRD_SECONDS)

    async def _check_crd(self) -> None:
        problem = await crd_problem(self._api)
        self._metrics.crd_is_own.set(not problem)
        if problem and problem != self._problem:
            log.error(problem)
        self._problem = problem

    async def _list(self) -> list[kube.CustomObject]:
        kind = kube.CustomObject
        if not self._namespaces:
            everywhere = self._objects.list_cluster_custom_object_without_preload_content
            return await kube.listed(kind, everywhere, GROUP, VERSION, PLURAL)
        one = self._objects.list_namespaced_custom_object_without_preload_content
        parts = [await kube.listed(kind, one, GROUP, VERSION, name, PLURAL) for name in self._namespaces]
        return [item for part in parts for item in part]


async def _run_kopf(queue: WorkQueue, settings: Settings) -> None:
    registry = handlers.registry(queue)

    async def login(**_: Any) -> kopf.ConnectionInfo | None:
        """The same credentials as our own client; kopf asks again when they expire."""
        async with connection() as api:
            conf = api.configuration
            bearer = (conf.api_key or {}).get("BearerToken", "").removeprefix("Bearer ")
            return kopf.ConnectionInfo(server=conf.host, ca_path=conf.ssl_ca_cert, token=bearer or None)

    kopf.on.login(registry=registry)(login)
    await kopf.operator(
        registry=registry,
        settings=handlers.kopf_settings(),
        standalone=True,
        # Else kopf asks for the user's name, and in a container the user has none.
        identity=settings.identity or socket.gethostname(),  # type: ignore[arg-type]
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
