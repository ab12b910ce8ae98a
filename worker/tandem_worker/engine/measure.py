"""The table of `adaptive`, measured at warm-up: what a round costs by number of requests and draft length.

The table stays for as long as the worker runs, and other work, on the CPU or in turn on the same GPU, only ever adds to
a round. So of several rounds the fastest counts, and no point stands above one of as many requests and drafts or more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import inf

from tandem_worker.engine.adaptive import LONGEST, Costs
from tandem_worker.engine.engine import Engine
from tandem_worker.engine.pages import pages_for
from tandem_worker.engine.record import NoRecord, Phase
from tandem_worker.engine.request import Finish, Request, Sampling
from tandem_worker.engine.self_test import recorded_by

log = logging.getLogger(__name__)

LENGTHS = (0, 1, 2, 4, LONGEST)
ROUNDS, FIRST = 8, 3
"""Rounds at each point, and how many of them are run before."""


class Stopwatch(NoRecord):
    """Seconds of the rounds of a full batch, drafts included."""

    def __init__(self, batch: int) -> None:
        self.batch, self.seconds = batch, list[float]()

    def stepped(self, phase: Phase, batch: int, seconds: float) -> None:
        if batch != self.batch:
            return
        if phase in (Phase.VERIFY, Phase.PLAIN):
            self.seconds.append(seconds)
        elif phase is Phase.DRAFT and self.seconds:
            self.seconds[-1] += seconds


def measure(engine: Engine, prompt: Sequence[int]) -> Costs:
    """With texts that all begin with `prompt`. Half a second on a GPU; the engine must be idle. Raises EngineBroken."""
    batches = _batches(engine, len(prompt))
    seconds = {(batch, length): _round(engine, prompt, batch, length) for batch in batches for length in LENGTHS}
    for batch in batches:
        row = ", ".join(f"{length}: {1000 * seconds[batch, length]:.2f}" for length in LENGTHS)
        log.info("Milliseconds of a round of %d requests by draft length: %s", batch, row)
    return Costs(settled(seconds))


def settled(seconds: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """A round of fewer requests or drafts takes no longer: what was measured above that was held up."""
    return {
        (batch, length): min(s for (b, k), s in seconds.items() if b >= batch and k >= length)
        for batch, length in seconds
    }


def _batches(engine: Engine, prompt_tokens: int) -> list[int]:
    """1, 4, 16, ... and as many as may run and have room for their rounds."""
    pages = pages_for(prompt_tokens + (FIRST + ROUNDS) * (LONGEST + 1) + 2 * LONGEST)
    most = max(1, min(engine.scheduler.max_batch, engine.pages.free // pages))
    return [*(size for size in (1, 4, 16, 64) if size < most), most]


def _round(engine: Engine, prompt: Sequence[int], batch: int, length: int) -> float:
    """Seconds, the fewest; infinite where the context is too short for such drafts."""
    watch = Stopwatch(batch)
    engine.switch(length > 0)
    engine.set_length(length or engine.length)
    sampling = Sampling(engine.context_limit - len(prompt), ignore_eos=True)
    requests = [Request(tuple(prompt), sampling, lambda tokens, finish: None) for _ in range(batch)]
    with recorded_by(engine, watch):
        for request in requests:
            engine.submit(request)
        while len(watch.seconds) < FIRST + ROUNDS and not engine.idle:
            engine.step()
        for request in requests:
            engine.end(request, Finish.CANCELLED)
        engine.settle()
    return min(watch.seconds[FIRST:] or watch.seconds or [inf])
