"""Runs the HTTP server until it is told to stop, and then lets it end well.

At SIGTERM the worker is not ready at once, but goes on serving: requests that were on their way before the endpoints
changed must not fail. When LINGER_SECONDS have passed and nothing runs any more, or at the deadline, it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn

from tandem_worker.engine.request import Finish
from tandem_worker.engine.thread import Failure
from tandem_worker.server.app import make_app
from tandem_worker.server.worker import Worker

LINGER_SECONDS = 2.0
LAST_ANSWERS_SECONDS = 2


class Server(uvicorn.Server):
    """Leaves the signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """Takes the address, so that a taken one shows before anything is loaded; connections are refused until `run`.

    Raises OSError.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)  # asyncio sends without delay only where the protocol is named
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def run(worker: Worker, bound: socket.socket, drain_seconds: float) -> Failure | None:
    """Returns when the worker has drained, or its engine has failed or stalled."""
    return asyncio.run(_run(worker, bound, drain_seconds))


async def _run(worker: Worker, bound: socket.socket, drain_seconds: float) -> Failure | None:
    config = uvicorn.Config(
        make_app(worker),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=LAST_ANSWERS_SECONDS,
    )
    server = Server(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ending = asyncio.create_task(_end(worker, server, stop, drain_seconds))
    try:
        await server.serve(sockets=[bound])
        return ending.result() if ending.done() else None
    finally:
        ending.cancel()
        worker.engine.stop()
        worker.template.close()


async def _end(worker: Worker, server: uvicorn.Server, stop: asyncio.Event, drain_seconds: float) -> Failure | None:
    while (failure := worker.engine.failure) is None and not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.5)
    worker.draining = True
    lingering = min(LINGER_SECONDS, drain_seconds)
    await asyncio.sleep(lingering)
    if failure is None:  # else nobody is left to finish what runs
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.in_flight.none.wait(), drain_seconds - lingering)
    worker.engine.end_all(Finish.CANCELLED)
    server.should_exit = True
    return failure
