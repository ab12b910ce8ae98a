"""How much faster a text comes out with speculation than without, from the engine's own step times.

    speedup = tokens per round * seconds of a plain step / seconds of a round (verify + draft)

All three at the batch size that ran last; a batch size that was never run plainly borrows the nearest one that was.
"""

from __future__ import annotations

import math

from tandem_worker.engine.record import Phase

WEIGHT = 0.02
"""Of a new measurement in the running means: about the last 50 steps count."""


class Mean:
    """Running mean that starts as the plain mean."""

    def __init__(self) -> None:
        self.value, self._count = math.nan, 0

    def add(self, value: float) -> None:
        self._count += 1
        weight = max(WEIGHT, 1 / self._count)
        self.value = value if self._count == 1 else self.value + weight * (value - self.value)


class Speedup:
    def __init__(self) -> None:
        self._seconds: dict[tuple[Phase, int], Mean] = {}
        self._emitted = Mean()
        self._batch = 1

    def stepped(self, phase: Phase, batch: int, seconds: float) -> None:
        self._seconds.setdefault((phase, batch), Mean()).add(seconds)
        if phase is Phase.VERIFY:
            self._batch = batch

    def accepted(self, tokens: int) -> None:
        """One draft was verified and so many of its tokens were accepted."""
        self._emitted.add(1 + tokens)

    @property
    def value(self) -> float:
        """NaN until a plain step and a round have been timed."""
        round_seconds = self._at(Phase.VERIFY, self._batch) + self._at(Phase.DRAFT, self._batch)
        return self._emitted.value * self._at(Phase.PLAIN, self._batch) / round_seconds

    def _at(self, phase: Phase, batch: int) -> float:
        timed = [size for kind, size in self._seconds if kind is phase]
        if not timed:
            return math.nan
        return self._seconds[phase, min(timed, key=lambda size: abs(size - batch))].value
