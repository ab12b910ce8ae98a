"""How many tokens to draft: as many as pay, none where none do.

A round with K drafts emits

    E(K) = 1 + c1 + c1 c2 + ... + c1 ... cK

tokens of each request, where ck is the chance that the token at position k is accepted when those before it were. It
takes a time that depends on K and on the number of requests, and is measured at warm-up. In service it takes longer:
the host has news for every request of a round, and other work to do. That part is the same whatever K is, so it speaks
for longer drafts; it is a running mean over rounds, by request. The best K has the most tokens per second, E(K) /
seconds; K = 0 is the target alone, so the choice never expects to be slower than that. Chances are running means over
what the engine drafts, whoever asked.

Everything here is plain numbers; nothing knows of the engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import isinf

LONGEST = 8
"""Drafts considered, and captured on a GPU."""

KEEP = 0.995
"""Weight that the past keeps at each draft: about the last 200 count."""

PRIOR_CHANCE, PRIOR_WEIGHT = 0.6, 4.0

KEEP_BEYOND = 0.95
"""Weight that earlier rounds keep in what rounds take beyond the table."""

MARGIN = 1.03
"""A change has to promise so much, because it costs a round or two."""

ROUNDS_BETWEEN = 16
"""Decisions at the same batch size."""

LOOK_AFTER, LOOK_AFTER_LONGEST = 2048, 1 << 15
"""Plain rounds after which what was learnt is forgotten and drafting tried again; twice as many each time. To begin
again all texts are run through the target once more, so this must be rare."""


@dataclass(frozen=True)
class Costs:
    """Measured seconds of a round by (requests, draft length), a full grid that has length 0; infinite where there is
    no room for such drafts."""

    seconds: Mapping[tuple[int, int], float]

    def at(self, batch: int, length: int) -> float:
        """Between measured points along straight lines, and beyond them as at the last."""
        batches = sorted({batch for batch, _ in self.seconds})
        lengths = sorted({length for _, length in self.seconds})
        low, high, share = _between(batches, batch)
        first, last, part = _between(lengths, length)

        def along(b: int) -> float:
            return _mixed(self.seconds[b, first], self.seconds[b, last], part)

        return _mixed(along(low), along(high), share)


def _between(points: list[int], value: int) -> tuple[int, int, float]:
    """The points around a value, and how far it is from the first to the second, 0 to 1."""
    value = min(max(value, points[0]), points[-1])
    at = bisect_left(points, value)
    if points[at] == value:
        return value, value, 0.0
    low, high = points[at - 1], points[at]
    return low, high, (value - low) / (high - low)


def _mixed(low: float, high: float, share: float) -> float:
    """`share` of the second: of none, also where that is infinite."""
    return low if share == 0 else (1 - share) * low + share * high


class Chances:
    """Running chances of acceptance, by position."""

    def __init__(self) -> None:
        self._reached, self._accepted = [0.0] * LONGEST, [0.0] * LONGEST

    def drafted(self, length: int, accepted: int) -> None:
        for k in range(min(length, LONGEST)):
            self._reached[k] *= KEEP
            self._accepted[k] *= KEEP
            if accepted >= k:
                self._reached[k] += 1
                self._accepted[k] += accepted > k

    def at(self, position: int) -> float:
        """Of the token at a position, from 0, when those before it were accepted. A position of which little is known
        is taken to be like the one before it."""
        chance = PRIOR_CHANCE
        for accepted, reached in zip(self._accepted[: position + 1], self._reached, strict=False):
            chance = (accepted + PRIOR_WEIGHT * chance) / (reached + PRIOR_WEIGHT)
        return chance


def expected_tokens(chances: Chances, length: int) -> float:
    """Of one request in one round, the target's own included."""
    tokens, run = 1.0, 1.0
    for position in range(length):
        run *= chances.at(position)
        tokens += run
    return tokens


def best_length(
    costs: Costs, chances: Chances, batch: int, current: int, longest: int = LONGEST, beyond_seconds: float = 0.0
) -> int:
    """0 to `longest`. Stays at `current` unless another promises MARGIN more; but never where none at all is faster.

    beyond_seconds: what a round takes in service beyond its costs."""
    rates = [
        expected_tokens(chances, length) / (costs.at(batch, length) + beyond_seconds) for length in range(longest + 1)
    ]
    best = max(range(longest + 1), key=rates.__getitem__)
    stay = rates[best] < MARGIN * rates[current] and rates[current] >= rates[0]
    return current if stay else best


class Adaptive:
    """Decides from round to round."""

    def __init__(self, costs: Costs, longest: int = LONGEST) -> None:
        self.costs, self.chances, self.longest = costs, Chances(), min(longest, LONGEST)
        self.length = 0
        self._batch, self._rounds, self._plain = 0, 0, 0
        self._look_after = LOOK_AFTER
        self._beyond = 0.0  # seconds by request

    def took(self, batch: int, length: int, seconds: float) -> None:
        """A round in service."""
        known = self.costs.at(batch, length)
        if isinf(known):
            return
        beyond = (seconds - known) / batch
        self._beyond += (1 - KEEP_BEYOND) * (beyond - self._beyond)

    def beyond_seconds(self, batch: int) -> float:
        """Of a round of so many requests, beyond its costs."""
        return max(0.0, self._beyond) * batch

    def next_length(self, batch: int) -> int:
        """For the next round of so many requests; counts it."""
        self._rounds += 1
        self._plain = 0 if self.length else self._plain + 1
        if self._plain >= self._look_after:
            self.chances, self._plain = Chances(), 0
            self._look_after = min(2 * self._look_after, LOOK_AFTER_LONGEST)
        elif batch == self._batch and self._rounds % ROUNDS_BETWEEN:
            return self.length
        self._batch = batch
        beyond_seconds = self.beyond_seconds(batch)
        self.length = best_length(self.costs, self.chances, batch, self.length, self.longest, beyond_seconds)
        return self.length
