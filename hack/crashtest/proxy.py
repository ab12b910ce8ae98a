"""A proxy between one operator and the API server, which counts the operator's writes and can do it any harm.

The operator reaches it by plain HTTP and its own kubeconfig; it reaches the API server as administrator.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import aiohttp
import yaml
from aiohttp import web

from localcluster import Cluster

WRITES = ("POST", "PUT", "PATCH", "DELETE")
_OWN_HEADERS = ("host", "content-length", "transfer-encoding", "connection", "authorization", "content-encoding")
_UNCOUNTED = "/leases"
"""Renewals come by the clock, and would give every other write another number each time."""


@dataclass
class Fault:
    """What is done to the requests that match, `times` times.

    reset     the connection breaks before the API server is reached
    lost      the API server carries the request out, and the connection breaks before its answer
    hang      no answer ever comes, the connection stays
    delay     the answer takes `seconds` longer
    refuse    the proxy answers with `code`
    gone      a watch gets `410 Gone` as its first event, and nothing else
    deaf      a watch stays connected and never tells anything
    """

    kind: Literal["reset", "lost", "hang", "delay", "refuse", "gone", "deaf"]
    matches: Callable[[web.Request], bool]
    times: float = 1
    code: int = 500
    seconds: float = 1.0
    headers: dict[str, str] = field(default_factory=dict)
    done: int = 0


def writes_of(*parts: str) -> Callable[[web.Request], bool]:
    """Writing requests whose path holds all of `parts`."""
    return lambda request: request.method in WRITES and all(part in request.path for part in parts)


def watches_of(plural: str) -> Callable[[web.Request], bool]:
    return lambda request: request.query.get("watch") == "true" and request.path.endswith(f"/{plural}")


def any_request(request: web.Request) -> bool:
    return True


@dataclass
class Proxy:
    server: str
    trusted: ssl.SSLContext
    token: str
    url: str = ""
    writes: int = 0  # requests that the API server was to carry out, in the order of their coming
    log: list[str] = field(default_factory=list)  # the writes, in words
    faults: list[Fault] = field(default_factory=list)
    kill_at: tuple[int, Literal["before", "after"]] | None = None
    killed_at: str = ""  # that write, in words
    kill: Callable[[], None] = lambda: None

    @classmethod
    @asynccontextmanager
    async def started(cls, cluster: Cluster) -> AsyncIterator[Proxy]:
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        trusted = ssl.create_default_context(cafile=server["certificate-authority"])
        proxy = cls(server["server"], trusted, user["token"])
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", proxy._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        ) as proxy._session:
            try:
                yield proxy
            finally:
                await runner.cleanup()

    _session: aiohttp.ClientSession = field(init=False, repr=False)

    def write_kubeconfig(self, path: Path) -> Path:
        context = {"cluster": "proxy", "user": "operator"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "operator", "user": {"token": "taken from the proxy"}}],
            "contexts": [{"name": "proxy", "context": context}],
            "current-context": "proxy",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def harm(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    def _fault_of(self, request: web.Request) -> Fault | None:
        for fault in self.faults:
            if fault.done < fault.times and fault.matches(request):
                fault.done += 1
                return fault
        return None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        counted = request.method in WRITES and _UNCOUNTED not in request.path
        if counted:
            self.writes += 1
            self.log.append(f"{request.method} {request.path.rpartition('/namespaces/')[2].partition('/')[2]}")
        number = self.writes
        if counted and self.kill_at == (number, "before"):
            self._die()
            return _broken(request)
        if fault := self._fault_of(request):
            if fault.kind == "reset":
                return _broken(request)
            if fault.kind == "hang":
                await asyncio.Event().wait()
            if fault.kind == "delay":
                await asyncio.sleep(fault.seconds)
            if fault.kind == "refuse":
                return _refused(fault)
            if fault.kind in ("gone", "deaf"):
                return await _watch_that_is(fault.kind, request)
        async with self._session.request(
            request.method,
            self.server + request.path_qs,
            headers={
                **{k: v for k, v in request.headers.items() if k.lower() not in _OWN_HEADERS},
                "Authorization": f"Bearer {self.token}",
            },
            data=await request.read() or None,
            ssl=self.trusted,
        ) as answer:
            if counted and self.kill_at == (number, "after"):
                await answer.read()
                self._die()
            if fault and fault.kind == "lost":
                await answer.read()
                return _broken(request)
            return await _passed_on(request, answer)

    def _die(self) -> None:
        self.kill_at, self.killed_at = None, self.log[-1]
        self.kill()


async def _passed_on(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {k: v for k, v in answer.headers.items() if k.lower() not in _OWN_HEADERS}
    response = web.StreamResponse(status=answer.status, headers=headers)
    with contextlib.suppress(ConnectionError, aiohttp.ClientError):
        await response.prepare(request)
        async for part in answer.content.iter_any():
            await response.write(part)
        await response.write_eof()
    return response


def _broken(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def _refused(fault: Fault) -> web.Response:
    body = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": fault.code,
        "message": f"the proxy says {fault.code}",
    }
    return web.json_response(body, status=fault.code, headers=fault.headers)


async def _watch_that_is(kind: str, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    if kind == "deaf":
        await asyncio.Event().wait()
    status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}
    event = {"type": "ERROR", "object": status | {"message": "too old resource version"}}
    await response.write(json.dumps(event).encode() + b"\n")
    return response
