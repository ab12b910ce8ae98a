"""One container: its process, its probes, its restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from localcluster import processes
from localcluster.agent import probes
from localcluster.agent.environment import ConfigError, Translation, command_line
from localcluster.agent.logfile import tail
from localcluster.agent.model import Container, Probe
from localcluster.agent.status import ContainerReport, Running, State, Terminated, Waiting
from localcluster.images import entry_point
from localcluster.settings import Settings

_MESSAGE_LIMIT_BYTES = 4096
_LOG_MESSAGE_LIMIT_BYTES = 2048
_LOG_MESSAGE_LIMIT_LINES = 80


@dataclass(frozen=True)
class Surroundings:
    """What a container knows of its pod and node."""

    settings: Settings
    folder: Path  # the container's own
    pod_ip: str
    restart_policy: str  # Always, OnFailure, Never
    grace_seconds: float
    variables: Callable[[Container], dict[str, str]]  # raises ConfigError
    platform: Callable[[Container], dict[str, str]]  # no part of the spec, not translated; raises ConfigError
    translation: Callable[[Container], Translation]
    changed: Callable[[], None]  # the report is another
    event: Callable[[str, str, str], None]  # type, reason, message


class ContainerRunner:
    def __init__(self, container: Container, around: Surroundings, is_init: bool = False) -> None:
        self.container = container
        self._around = around
        self._is_init = is_init
        self._state: State = Waiting("PodInitializing")
        self._last: Terminated | None = None
        self._restarts = 0
        self._ready = False
        self._started = False
        self._process: Process | None = None
        self._exited = asyncio.Event()
        self._stopping = asyncio.Event()
        self._translation = Translation({}, around.pod_ip)
        self._target: probes.Target | None = None
        for name in ("home", "tmp", "root", "logs"):
            (around.folder / name).mkdir(parents=True, exist_ok=True)

    def report(self) -> ContainerReport:
        return ContainerReport(
            name=self.container.name,
            image=self.container.image,
            state=self._state,
            last=self._last,
            restarts=self._restarts,
            ready=self._ready,
            started=self._started,
            container_id=f"process://{self._process.pid}" if self._process else "",
        )

    @property
    def succeeded(self) -> bool:
        return isinstance(self._state, Terminated) and self._state.exit_code == 0

    @property
    def running(self) -> bool:
        return isinstance(self._state, Running)

    def log_path(self, previous: bool = False) -> Path:
        return self._around.folder / "logs" / f"{self._restarts - previous}.log"

    async def run(self) -> None:
        """Start it, and again as the restart policy says, until it is stopped or done."""
        delay = 0.0  # the first restart is immediate, as a kubelet's
        while target := await self._prepared():
            began = time.monotonic()
            ended = await self._run_once(target)
            if self._stopping.is_set() or not self._will_restart(ended):
                return
            limit = self._around.settings.restart_delay_limit_seconds
            if time.monotonic() - began > 2 * limit:
                delay = 0.0
            if delay and not await self._back_off(ended, delay):
                return
            delay = min(delay * 2 or self._around.settings.restart_delay_seconds, limit)
            self._last = ended
            self._restarts += 1
            self.log_path(previous=True).with_name(f"{self._restarts - 2}.log").unlink(missing_ok=True)

    async def stop(self, grace_seconds: float) -> None:
        """For good: preStop hook, SIGTERM, and after the grace period SIGKILL."""
        self._stopping.set()
        if not self._process or self._exited.is_set():
            return
        deadline = time.monotonic() + grace_seconds
        self._around.event("Normal", "Killing", f"Stopping container {self.container.name}")
        if (hook := self.container.lifecycle.pre_stop) and self._target and grace_seconds:
            outcome = await probes.check(hook, self._target, grace_seconds)
            if not outcome.success:
                self._around.event("Warning", "FailedPreStopHook", outcome.message)
        await self._end_process(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """At once. For a pod that is gone, or an agent that is."""
        self._stopping.set()
        self._signal_group()

    # --- before the start ---

    async def _prepared(self) -> probes.Target | None:
        """Wait until image and environment are there; None if stopped meanwhile."""
        attempts = 0
        while not self._stopping.is_set():
            command = entry_point(self.container.image, self._around.settings.images)
            if command is None:
                await self._image_is_unknown(attempts)
                attempts += 1
                continue
            try:
                variables = self._around.variables(self.container)
                self._translation = self._around.translation(self.container)
                platform = self._around.platform(self.container)
            except (ConfigError, OSError) as error:
                self._set(Waiting("CreateContainerConfigError", str(error)))
                await self._stopped_within(0.5)
                continue
            self._command = command_line(self.container, command, variables, self._translation)
            translated = {name: self._translation(value) for name, value in variables.items()}
            environment = platform | translated
            folder = self._working_directory()
            return probes.Target(
                self.container, self._around.pod_ip, environment, self._translation, folder, time.monotonic()
            )
        return None

    async def _image_is_unknown(self, attempts: int) -> None:
        image = self.container.image
        message = f'failed to pull and unpack image "{image}": not in the image table of the local cluster: not found'
        if attempts == 0:
            self._around.event("Warning", "Failed", f'Failed to pull image "{image}": {message}')
        self._set(Waiting("ErrImagePull", message))
        if not await self._stopped_within(0.5):
            self._set(Waiting("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {message}'))
            await self._stopped_within(self._delay(attempts))

    def _delay(self, attempts: int) -> float:
        settings = self._around.settings
        return min(settings.restart_delay_seconds * 2.0 ** min(attempts, 20), settings.restart_delay_limit_seconds)

    def _working_directory(self) -> Path:
        wanted = Path(self._translation(self.container.working_dir)) if self.container.working_dir else None
        return wanted if wanted and wanted.is_dir() else self._around.folder / "root"

    # --- from start to end ---

    async def _run_once(self, target: probes.Target) -> Terminated:
        started_at = datetime.now(UTC)
        self._process = None
        self._exited.clear()
        self.termination_file.write_bytes(b"")
        try:
            with self.log_path().open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    env=dict(target.variables),
                    cwd=target.folder,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=processes.dies_with_parent(),
                )
        except OSError as error:
            return self._end(Terminated(128, "StartError", str(error), started_at, datetime.now(UTC)))
        self._target = target
        self._started = self.container.startup_probe is None
        self._ready = not self._is_init and self._started and self.container.readiness_probe is None
        self._set(Running(started_at))
        self._around.event("Normal", "Started", f"Started container {self.container.name}")
        if self._stopping.is_set():  # stop() came between the decision to start and the start
            self._signal_group()
        probing = asyncio.create_task(self._probe(target))
        try:
            code = await self._process.wait()
        finally:
            probing.cancel()
            self._signal_group()
        self._exited.set()
        exit_code = 128 - code if code < 0 else code
        reason = "Completed" if exit_code == 0 else "Error"
        return self._end(Terminated(exit_code, reason, self._message(exit_code), started_at, datetime.now(UTC)))

    def _end(self, terminated: Terminated) -> Terminated:
        self._started = False
        self._ready = self._is_init and terminated.exit_code == 0
        self._set(terminated)
        return terminated

    @property
    def termination_file(self) -> Path:
        return self._around.folder / "termination-log"

    def _message(self, exit_code: int) -> str:
        message = b""
        with contextlib.suppress(OSError), self.termination_file.open("rb") as file:
            message = file.read(_MESSAGE_LIMIT_BYTES)
        if not message and exit_code and self.container.termination_message_policy == "FallbackToLogsOnError":
            message = tail(self.log_path(), _LOG_MESSAGE_LIMIT_BYTES, _LOG_MESSAGE_LIMIT_LINES)
        return message.decode(errors="replace")

    async def _probe(self, target: probes.Target) -> None:
        container = self.container
        if container.startup_probe:
            await probes.watch(container.startup_probe, target, self._on_startup, until_success=True)
        watches = []
        if container.readiness_probe:
            watches.append(probes.watch(container.readiness_probe, target, self._on_readiness))
        if container.liveness_probe:
            watches.append(probes.watch(container.liveness_probe, target, self._on_liveness))
        await asyncio.gather(*watches)

    async def _on_startup(self, success: bool, message: str) -> None:
        if success:
            self._started = True
            self._ready = not self._is_init and self.container.readiness_probe is None
            self._around.changed()
        elif self.container.startup_probe:
            await self._unhealthy("Startup", self.container.startup_probe, message)

    async def _on_readiness(self, success: bool, message: str) -> None:
        if not success:
            self._around.event("Warning", "Unhealthy", f"Readiness probe failed: {message}")
        if success != self._ready:
            self._ready = success
            self._around.changed()

    async def _on_liveness(self, success: bool, message: str) -> None:
        if not success and self.container.liveness_probe:
            await self._unhealthy("Liveness", self.container.liveness_probe, message)

    async def _unhealthy(self, kind: str, probe: Probe, message: str) -> None:
        self._around.event("Warning", "Unhealthy", f"{kind} probe failed: {message}")
        killing = f"Container {self.container.name} failed {kind.lower()} probe, will be restarted"
        self._around.event("Normal", "Killing", killing)
        grace = probe.termination_grace_period_seconds
        await self._end_process(self._around.grace_seconds if grace is None else grace)

    async def _end_process(self, grace_seconds: float) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            await asyncio.wait_for(self._exited.wait(), grace_seconds)
        except TimeoutError:
            self._signal_group()
            await self._exited.wait()

    def _signal_group(self) -> None:
        """SIGKILL to the process and its children: with a container's first process all others end."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    # --- after the end ---

    def _will_restart(self, ended: Terminated) -> bool:
        policy = self._around.restart_policy
        return policy == "Always" or (policy == "OnFailure" and ended.exit_code != 0)

    async def _back_off(self, ended: Terminated, delay: float) -> bool:
        """Wait as CrashLoopBackOff; False if stopped meanwhile."""
        before = self._last
        self._last = ended
        message = f"back-off {delay:g}s restarting failed container={self.container.name}"
        self._set(Waiting("CrashLoopBackOff", message))
        self._around.event("Warning", "BackOff", message)
        if await self._stopped_within(delay):
            self._last = before
            self._set(ended)
            return False
        return True

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _set(self, state: State) -> None:
        self._state = state
        self._around.changed()
