"""What the HTTP side and the process share about the running worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tandem_worker.contract import Fingerprints, Resolution, SelfTest, SpeculationCommand, WorkerStatus
from tandem_worker.engine.thread import EngineThread
from tandem_worker.server.admin import Gate
from tandem_worker.server.chat import ChatTemplate
from tandem_worker.server.mailbox import Mailbox
from tandem_worker.server.metrics import Metrics
from tandem_worker.server.vocabulary import Vocabulary


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
    """Counts choices of requests from their first to their last byte: `with in_flight.places(choices): ...`."""

    def __init__(self) -> None:
        self.count = 0
        self.none = asyncio.Event()
        self.none.set()

    @contextmanager
    def places(self, choices: int) -> Iterator[None]:
        self.count += choices
        self.none.clear()
        try:
            yield
        finally:
            self.count -= choices
            if not self.count:
                self.none.set()


@dataclass
class Worker:
    identity: Identity
    engine: EngineThread
    metrics: Metrics
    vocabulary: Vocabulary
    template: ChatTemplate
    gate: Gate
    max_waiting: int  # requests behind those that run; more are refused
    speculation_reason: str = ""  # why it is off
    draining: bool = False
    in_flight: InFlight = field(default_factory=InFlight)
    started_at: int = field(default_factory=lambda: int(time.time()))
    _mailbox: Mailbox | None = None

    def mailbox(self) -> Mailbox:
        """Of the running loop."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return self._mailbox

    def unhealthy(self) -> str:
        """Why the process should be replaced, or nothing."""
        failure = self.engine.failure
        return ": ".join(failure) if failure else ""

    def unready(self) -> str:
        """Why no traffic should come, or nothing."""
        return self.unhealthy() or ("Draining: the worker is shutting down" if self.draining else "")

    @property
    def full(self) -> bool:
        return self.in_flight.count >= self.engine.engine.scheduler.max_batch + self.max_waiting

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
