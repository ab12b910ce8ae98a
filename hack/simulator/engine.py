"""The state of a simulated engine: what it was told, what it has counted, whether it speculates."""

import asyncio
import os
import random
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import Any

from simulator.arguments import Arguments
from simulator.behaviour import Behaviour
from simulator.exposition import exposition_of
from simulator.metrics import with_nan
from simulator.rounds import PLAIN, Drafts, Round
from tandem_worker.contract import (
    SELF_TEST_DRAFTS,
    Fingerprints,
    Origin,
    Resolution,
    SelfTest,
    SelfTestOutcome,
    SpeculationCommand,
    WorkerStatus,
)

UNKNOWN_FINGERPRINT = "sha256:" + "0" * 64

USUAL_RESOLUTION = Resolution(
    capture_indexes=(2, 4, 5),
    fc_input_width=288,
    fc_applied=True,
    norm_before_residual=False,
    loaded=("fc.weight", "lm_head.weight", "norm.weight"),
    shared=("embed_tokens.weight",),
    missing=(),
    dropped=(),
)


def found_fingerprints(arguments: Arguments, behaviour: Behaviour) -> Fingerprints:
    """Without a drafter its fingerprint is empty, as the worker's."""
    drafter = behaviour.drafter_fingerprint or arguments.drafter_fingerprint or UNKNOWN_FINGERPRINT
    return Fingerprints(
        target=behaviour.target_fingerprint or arguments.target_fingerprint or UNKNOWN_FINGERPRINT,
        drafter=drafter if arguments.drafter else "",
    )


class Failed(Exception):
    """The request was told to fail."""


class Engine:
    def __init__(self, arguments: Arguments, behaviour: Behaviour) -> None:
        self.arguments, self.behaviour = arguments, behaviour
        self.can_speculate = arguments.drafter is not None
        self._started_at = time.monotonic()
        self._requests = self._running = 0
        self._told = asyncio.Condition()
        asked = not arguments.no_speculation if behaviour.speculation is None else behaviour.speculation
        self.self_test = self_test(behaviour, asked and self.can_speculate)
        self._reason = self._why_off(asked)
        self.speculating = not self._reason
        self.reset_counters()
        self._exposed = self.metrics.exposition()

    def _why_off(self, asked: bool) -> str:
        """The worker's own words."""
        if not self.can_speculate:
            return "NoDrafter"
        if not asked:
            return "Disabled"
        return "SelfTestFailed" if self.self_test.outcome is SelfTestOutcome.NO_LIFE else ""

    def reset_counters(self) -> None:
        self.metrics = exposition_of(self.arguments)
        self.metrics.switched(self.speculating)
        self.metrics.runs(self._running)

    def _switch(self, enabled: bool, reason: str) -> None:
        self.speculating, self._reason = enabled, "" if enabled else reason
        self.metrics.switched(enabled)

    def carry_out(self, command: SpeculationCommand) -> None:
        self._switch(command.enabled, command.reason)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for what may have to be told first."""
        async with self._told:
            await self._told.wait_for(holds)

    async def tell(self, fields: Mapping[str, Any]) -> None:
        """Raises pydantic.ValidationError. `reset_counters` is an act and not a field."""
        told = dict(fields)
        reset = told.pop("reset_counters", False)
        self.behaviour = self.behaviour.changed(told)
        if reset:
            self.reset_counters()
        if told.get("speculation") is not None:
            self._switch(bool(self.behaviour.speculation) and self.can_speculate, "Disabled")
        self.schedule(told)
        async with self._told:
            self._told.notify_all()

    def schedule(self, fields: Collection[str]) -> None:
        """Sets the clock for those of `fields` that name something to happen later."""
        loop, behaviour = asyncio.get_running_loop(), self.behaviour
        if "die_after_seconds" in fields and behaviour.die_after_seconds is not None:
            loop.call_later(behaviour.die_after_seconds, os._exit, behaviour.die_exit_code)
        if "reset_after_seconds" in fields and behaviour.reset_after_seconds is not None:
            loop.call_later(behaviour.reset_after_seconds, self.reset_counters)

    @property
    def ready(self) -> bool:
        waited_seconds = time.monotonic() - self._started_at
        return not self.behaviour.never_ready and waited_seconds >= self.behaviour.ready_after_seconds

    def status(self) -> WorkerStatus:
        return WorkerStatus(
            revision=self.arguments.revision,
            model=self.arguments.model,
            resolution=(self.behaviour.resolution or USUAL_RESOLUTION) if self.can_speculate else None,
            fingerprints=found_fingerprints(self.arguments, self.behaviour),
            self_test=self.self_test,
            speculation_enabled=self.speculating,
            speculation_reason=self._reason,
            draft_length=self.arguments.draft_length,
        )

    def exposition(self) -> bytes:
        if not self.behaviour.freeze_counters:
            self._exposed = self.metrics.exposition()
        return with_nan(self._exposed) if self.behaviour.metrics_nan else self._exposed

    async def generate(self, origin: Origin, prompt_tokens: int, new_tokens: int) -> AsyncGenerator[int, None]:
        """Yields how many tokens each step emits, in the time that it takes. Raises Failed where it was told to."""
        number, behaviour, arrived_seconds = self._requests, self.behaviour, time.monotonic()
        self._requests += 1
        rounds: list[Round] = []
        outcome = "cancelled"
        self._count_running(+1)
        try:
            await self.until(lambda: not self.behaviour.stall_requests)
            if random.Random(f"{behaviour.seed}:{number}:fails").random() < behaviour.fail_rate:
                outcome = "failed"
                raise Failed
            step_seconds = 1 / behaviour.tokens_per_second
            await asyncio.sleep(step_seconds)
            self.metrics.prefilled(origin, step_seconds)
            yield 1
            drafts = Drafts(
                behaviour.seed, number, behaviour.acceptance, behaviour.correlation, self.arguments.draft_length
            )
            emitted = 1
            while emitted < new_tokens:
                drafting = self.speculating and not self.behaviour.stop_drafts
                done = drafts.round(new_tokens - emitted) if drafting else PLAIN
                cost = behaviour.round_cost if done.drafted else 1.0
                await asyncio.sleep(cost * step_seconds)
                self.metrics.stepped(origin, done, cost * step_seconds, step_seconds)
                rounds.append(done)
                emitted += done.emitted
                yield done.emitted
            outcome = "finished"
        finally:
            self._count_running(-1)
            self.metrics.ended(origin, outcome, prompt_tokens, rounds, time.monotonic() - arrived_seconds)

    def _count_running(self, change: int) -> None:
        self._running += change
        self.metrics.runs(self._running)


def self_test(behaviour: Behaviour, speculates: bool) -> SelfTest:
    outcome = (behaviour.self_test or SelfTestOutcome.ALIVE) if speculates else SelfTestOutcome.NOT_RUN
    if outcome is SelfTestOutcome.NOT_RUN:
        return SelfTest(outcome=outcome)
    accepted = max(1, round(SELF_TEST_DRAFTS * behaviour.acceptance[0])) if outcome is SelfTestOutcome.ALIVE else 0
    return SelfTest(outcome=outcome, drafts=SELF_TEST_DRAFTS, accepted=accepted)
