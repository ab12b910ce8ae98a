"""What the HTTP side and the process share about the running worker."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from tandem_worker.contract import Fingerprints, Resolution, SelfTest, SpeculationCommand, WorkerStatus
from tandem_worker.engine.thread import EngineThread
from tandem_worker.server.admin import Gate
from tandem_worker.server.completions import Vocabulary
from tandem_worker.server.metrics import Metrics

HEARTBEAT_LIMIT_SECONDS = 20
"""One step of the largest prompt chunk on a busy CPU stays far below."""


@dataclass(frozen=True)
class Identity:
    """Fixed at start."""

    revision: str
    model: str
    draft_length: int
    fingerprints: Fingerprints
    resolution: Resolution | None
    self_test: SelfTest


class InFlight:
    """Counts requests from their first to their last byte: `with in_flight: ...`."""

    def __init__(self) -> None:
        self._count = 0
        self.none = asyncio.Event()
        self.none.set()

    def __enter__(self) -> None:
        self._count += 1
        self.none.clear()

    def __exit__(self, *failure: object) -> None:
        self._count -= 1
        if not self._count:
            self.none.set()


@dataclass
class Worker:
    identity: Identity
    engine: EngineThread
    metrics: Metrics
    vocabulary: Vocabulary
    gate: Gate
    speculation_reason: str = ""  # why it is off
    draining: bool = False
    in_flight: InFlight = field(default_factory=InFlight)
    started_at: int = field(default_factory=lambda: int(time.time()))

    def unhealthy(self) -> str:
        """Why the process should be replaced, or nothing."""
        silent_seconds = time.monotonic() - self.engine.heartbeat
        if self.engine.broken:
            return f"{self.engine.reason}: {self.engine.broken}"
        if silent_seconds > HEARTBEAT_LIMIT_SECONDS:
            return f"EngineStalled: no step has begun for {silent_seconds:.0f} s"
        return ""

    def unready(self) -> str:
        """Why no traffic should come, or nothing."""
        return self.unhealthy() or ("Draining: the worker is shutting down" if self.draining else "")

    def set_speculation(self, enabled: bool, reason: str) -> None:
        self.engine.switch(enabled)
        self.speculation_reason = "" if enabled else reason
        self.metrics.speculating.set(enabled)

    def carry_out(self, command: SpeculationCommand) -> None:
        self.set_speculation(command.enabled, command.reason)

    def status(self) -> WorkerStatus:
        identity = self.identity
        return WorkerStatus(
            revision=identity.revision,
            model=identity.model,
            resolution=identity.resolution,
            fingerprints=identity.fingerprints,
            self_test=identity.self_test,
            speculation_enabled=not self.speculation_reason,
            speculation_reason=self.speculation_reason,
            draft_length=identity.draft_length,
            degraded=self.engine.engine.degraded,
        )
