"""The operator's parts together: kopf wakes the queue, the queue runs reconciles, a list catches what kopf missed."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import kopf
from kubernetes.aio import client, config

from tandem_operator import handlers, names, web
from tandem_operator import plan as planning
from tandem_operator.lease import Lease, LeaseLost
from tandem_operator.lister import Lister
from tandem_operator.metrics import Metrics
from tandem_operator.queue import WorkQueue
from tandem_operator.reconcile import Reconciler
from tandem_operator.settings import Settings
from tandem_operator.signing import Signer
from tandem_operator.store import Store
from tandem_operator.workers import Workers

log = logging.getLogger(__name__)

LAG_LOOKED_AT_SECONDS = 0.1
REQUEST_SECONDS = 30.0  # until an answer of the API server is given up


async def run(settings: Settings) -> None:
    """Until cancelled or told to stop by a signal."""
    end_when_told()
    async with connection() as api, to_workers() as session:
        signer, metrics = Signer(), Metrics()
        workers = Workers(session, signer)
        for_plan = planning.Settings(settings.worker_image, settings.allowed_host_paths, signer.public_key_pem)
        store = Store()
        reconciler = Reconciler(api, store, workers, for_plan, metrics)
        queue = WorkQueue(reconciler, settings.workers, settings.resync_seconds)
        lister = Lister(api, store, queue, settings.namespaces, metrics)
        runner = await web.serve(settings.http_host, settings.http_port, metrics, queue, lister.ailment)
        try:
            async with leading(api, settings) as keep, asyncio.TaskGroup() as group:
                parts = (keep, queue.run(), lister.run(), measure_lag(metrics))
                others = [group.create_task(part) for part in parts]
                await lister.crd_found.wait()  # kopf resolves the kinds that it watches once
                spare_the_collector()
                await _run_kopf(store, queue, settings)
                for task in others:  # kopf returns when a signal asks the process to stop
                    task.cancel()
        except* LeaseLost as lost:
            log.error("%s: this operator ends, so that two never act at once", lost.exceptions[0])
            raise SystemExit(1) from None
        finally:
            await runner.cleanup()


def end_when_told() -> None:
    """SIGTERM cancels the task that runs; kopf, once it runs, listens itself. The first process of a container has to
    ask for that: for it the kernel drops signals that it has no handler for."""
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


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


def spare_the_collector() -> None:
    """Python's garbage collector stops everything while it looks at all there is: 0.2 s for a thousand objects, and by
    default every other second, for what a pass holds while it waits for its workers looks long-lived to it. Here nearly
    everything is freed as its last reference goes, so it may look seldom.
    """
    gc.collect()
    gc.freeze()  # what the imports made stays for good
    gc.set_threshold(20_000, 20, 50)


async def measure_lag(metrics: Metrics) -> None:
    """Until cancelled. A late loop is what a blocking call or a starved pod looks like."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_LOOKED_AT_SECONDS
        await asyncio.sleep(LAG_LOOKED_AT_SECONDS)
        metrics.loop_lag.observe(max(0.0, loop.time() - due))


def to_workers() -> aiohttp.ClientSession:
    """No connection is kept: the next look at a worker comes later than a server keeps one open. How many there are is
    bounded where they are made."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))


class Client(client.ApiClient):
    """Whose requests end: in the five minutes that the library waits, the liveness probe would end the operator."""

    async def call_api(self, *request: Any, _request_timeout: float | None = None, **how: Any) -> Any:
        how["_request_timeout"] = _request_timeout or REQUEST_SECONDS
        return await super().call_api(*request, **how)


@asynccontextmanager
async def connection() -> AsyncIterator[client.ApiClient]:
    """In a pod by its service account; elsewhere by KUBECONFIG."""
    configuration = client.Configuration()
    if "KUBECONFIG" in os.environ:
        await config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=configuration)
    else:
        config.load_incluster_config(client_configuration=configuration)
    async with Client(configuration) as api:
        api.user_agent = names.FIELD_MANAGER  # who asked, in the API server's audit log
        yield api


def bare_token(header: str) -> str | None:
    """What the client would send as `Authorization`, without the scheme: `Bearer` from a kubeconfig, `bearer` from a
    pod's service account."""
    return header.rpartition(" ")[2] or None


async def _run_kopf(store: Store, queue: WorkQueue, settings: Settings) -> None:
    registry = handlers.registry(store, queue)

    async def login(**_: Any) -> kopf.ConnectionInfo | None:
        """The same credentials as our own client; kopf asks again when they expire."""
        async with connection() as api:
            conf = api.configuration
            token = bare_token((conf.api_key or {}).get("BearerToken", ""))
            return kopf.ConnectionInfo(server=conf.host, ca_path=conf.ssl_ca_cert, token=token)

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
