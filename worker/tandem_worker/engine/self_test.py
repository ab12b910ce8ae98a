"""Start-up: what was really wired, whether the drafter is alive, and how long a plain step takes.

Nothing here reaches the engine's counters. The test asks one question only, whether anything is accepted at all; how
much is enough is decided by the operator, from real traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from tandem_worker.contract import SELF_TEST_DRAFTS, Origin, SelfTest, SelfTestOutcome
from tandem_worker.engine.engine import Engine
from tandem_worker.engine.record import NoRecord, Phase, Recorder
from tandem_worker.engine.request import Request, Sampling
from tandem_worker.engine.runner import EngineBroken
from tandem_worker.engine.speedup import Speedup

TEXTS = ("The", "1, 2, 3,", "Q: What is", '{"name": "', "def ", "Last year")
TOKENS = 48
"""Generated per text and round of the test."""


@dataclass(frozen=True)
class Seen:
    """What went into `fc` in a real forward."""

    capture_indexes: tuple[int, ...] = ()  # -1: a slot that holds no stream of the target
    fc_input_width: int = 0

    @property
    def fc_applied(self) -> bool:
        return self.fc_input_width > 0


@dataclass
class Counts(NoRecord):
    drafts: int = 0
    accepted: int = 0
    speedup: Speedup = field(default_factory=Speedup)

    def stepped(self, phase: Phase, batch: int, seconds: float) -> None:
        self.speedup.stepped(phase, batch, seconds)

    def drafted(self, origin: Origin, length: int, accepted: int) -> None:
        self.drafts += 1
        self.accepted += accepted


@contextmanager
def recorded_by(engine: Engine, recorder: Recorder) -> Iterator[None]:
    """Nobody but `recorder` hears of what the engine does."""
    before, engine.recorder = engine.recorder, recorder
    try:
        yield
    finally:
        engine.recorder = before


def generate(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> None:
    """On through end tokens. Raises EngineBroken when one of the texts fails."""
    submitted = []
    for prompt in prompts:
        room = engine.context_limit - len(prompt)
        if room > 0:
            sampling = Sampling(min(tokens, room), ignore_eos=True)
            submitted.append(Request(tuple(prompt), sampling, lambda tokens, finish: None))
            engine.submit(submitted[-1])
    while not engine.idle:
        engine.step()
    if errors := [request.error for request in submitted if request.error]:
        raise EngineBroken(errors[0])


def observe(engine: Engine, prompt: Sequence[int]) -> Seen:
    """Runs `prompt` and compares what enters `fc`, slot by slot, with what entered each of the target's layers."""
    engine.switch(True)
    with recorded_by(engine, NoRecord()), engine.observed() as observed:
        generate(engine, [prompt], 1)
    if observed.fc_input is None:
        return Seen()
    slots = observed.fc_input.split(engine.hidden_size, -1)
    indexes = tuple(next((i for i, x in observed.streams.items() if torch.equal(x, slot)), -1) for slot in slots)
    return Seen(indexes, observed.fc_input.shape[-1])


def self_test(engine: Engine, prompts: Sequence[Sequence[int]]) -> SelfTest:
    """Greedy text after each prompt until enough drafts were verified. Raises EngineBroken."""
    counts, tokens = Counts(), TOKENS
    engine.switch(True)
    with recorded_by(engine, counts):
        while (before := counts.drafts) < SELF_TEST_DRAFTS:
            generate(engine, prompts, tokens)
            if counts.drafts == before:
                raise EngineBroken(
                    f"no draft of {engine.length} tokens fits a context of {engine.context_limit}: "
                    "ask for shorter drafts (draftLength) or a longer context (contextLength)"
                )
    outcome = SelfTestOutcome.ALIVE if counts.accepted else SelfTestOutcome.NO_LIFE
    return SelfTest(outcome=outcome, drafts=counts.drafts, accepted=counts.accepted)


def time_plain_steps(engine: Engine, prompt: Sequence[int], speedup: Speedup) -> None:
    """Of one request alone, told to `speedup` only. Raises EngineBroken."""
    engine.switch(False)
    with recorded_by(engine, Counts(speedup=speedup)):
        generate(engine, [prompt], TOKENS)
