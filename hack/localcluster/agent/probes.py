"""Startup, readiness and liveness probes, and the other handlers that look like them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from localcluster import processes
from localcluster.agent.environment import Translation
from localcluster.agent.model import Container, Handler, HttpAction, Probe

_MESSAGE_LIMIT = 1000


@dataclass(frozen=True)
class Target:
    """The running container that a handler is about."""

    container: Container
    pod_ip: str
    variables: Mapping[str, str]
    translation: Translation
    folder: Path
    started: float  # time.monotonic()


@dataclass(frozen=True)
class Outcome:
    success: bool
    message: str = ""


async def check(handler: Handler, target: Target, timeout_seconds: float) -> Outcome:
    """Run a handler once. Never raises."""
    try:
        return await asyncio.wait_for(_check(handler, target), timeout_seconds)
    except TimeoutError:
        return Outcome(False, f"no answer within {timeout_seconds:g} s")
    except (OSError, aiohttp.ClientError) as error:
        return Outcome(False, str(error) or type(error).__name__)


async def _check(handler: Handler, target: Target) -> Outcome:
    if handler.exec:
        return await _run(handler.exec.command, target)
    if handler.http_get:
        return await _get(handler.http_get, target)
    if handler.tcp_socket:
        port = target.container.port_number(handler.tcp_socket.port)
        _, writer = await asyncio.open_connection(handler.tcp_socket.host or target.pod_ip, port)
        writer.close()
        return Outcome(True)
    if handler.sleep:
        await asyncio.sleep(handler.sleep.seconds)
        return Outcome(True)
    return Outcome(False, "this kind of probe is not known to the local cluster's node agent")


async def _run(command: list[str], target: Target) -> Outcome:
    process = await asyncio.create_subprocess_exec(
        *(target.translation(part) for part in command),
        env=dict(target.variables),
        cwd=target.folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=processes.dies_with_parent(),
    )
    try:
        output, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return Outcome(process.returncode == 0, output.decode(errors="replace")[:_MESSAGE_LIMIT])


async def _get(action: HttpAction, target: Target) -> Outcome:
    host = action.host or target.pod_ip
    url = f"{action.scheme.lower()}://{host}:{target.container.port_number(action.port)}/{action.path.lstrip('/')}"
    headers = {"User-Agent": "kube-probe/1.34"} | {header.name: header.value for header in action.http_headers}
    # A new connection each time and no certificate check, as a kubelet does.
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.get(url, headers=headers, ssl=False) as answer,
    ):
        if 200 <= answer.status < 400:
            return Outcome(True)
        return Outcome(False, f"HTTP probe failed with statuscode: {answer.status}")


async def watch(
    probe: Probe, target: Target, on_change: Callable[[bool, str], Awaitable[None]], until_success: bool = False
) -> None:
    """Probe for ever, or until it succeeds; `on_change(success, message)` each time a threshold is reached."""
    await asyncio.sleep(target.started + probe.initial_delay_seconds - time.monotonic())
    streak = 0  # successes in a row, or minus the failures in a row
    while True:
        outcome = await check(probe, target, probe.timeout_seconds)
        streak = max(streak, 0) + 1 if outcome.success else min(streak, 0) - 1
        if streak == probe.success_threshold:
            await on_change(True, "")
            if until_success:
                return
        elif -streak >= probe.failure_threshold:
            await on_change(False, outcome.message)
        await asyncio.sleep(probe.period_seconds)
