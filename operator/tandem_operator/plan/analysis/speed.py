"""Is a revision faster with speculation than its target would be alone?

Acceptance does not say so: a drafter may be accepted well and still cost more than it saves (sgl-project/sglang
#14824, SpecForge #339: accept length 1.9 to 3.2, and 6 to 28 % slower). From the workers' step times, at each batch
size at which both kinds of step were timed:

    time of the same tokens without = rounds * accept length * seconds of a plain step
    speedup = sum of that over batch sizes / sum of rounds * (seconds of verify + seconds of draft)

A round of a full engine is never compared with a plain step of an idle one. Times are those of the pods' whole lives:
this needs no state, and plain and speculative steps alternate, so whatever slows the machine slows both. They say
nothing of acceptance. The accept length is that of what the revision is judged by: what its workers drafted before a
retry is no part of it.

Only sums are known, no spread. The error of a mean of n steps is taken as SPREAD / sqrt(n), on the safe side for step
times at one batch size, and ERRORS of them must lie between the measured speedup and the smallest one that is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, sqrt
from typing import NamedTuple

from tandem_operator.engines.reading import StepTimes

ENOUGH_ROUNDS, ENOUGH_PLAIN_STEPS = 200, 30
SPREAD = 0.5
ERRORS = 4


class Speed(NamedTuple):
    speedup: float
    rounds: int
    plain_steps: int
    drafts: int  # of which the accept length is

    @property
    def _known_rounds(self) -> int:
        """Timed, and of known acceptance: soon after a retry few are, however long the workers have run."""
        return min(self.rounds, self.drafts)

    @property
    def surely_below(self) -> float:
        """The speedup is less than this, as far as the number of steps allows to say."""
        return self.speedup * exp(ERRORS * SPREAD * sqrt(1 / self._known_rounds + 1 / self.plain_steps))

    @property
    def enough(self) -> bool:
        return self._known_rounds >= ENOUGH_ROUNDS and self.plain_steps >= ENOUGH_PLAIN_STEPS


def compare(times: Iterable[StepTimes], accept_length: float, drafts: int) -> Speed | None:
    """`accept_length` over `drafts`. None without a batch size at which draft, verify and plain steps were timed."""
    sums: dict[tuple[str, int], tuple[int, float]] = {}
    for phase, batch, steps, seconds in times:
        counted, spent = sums.get((phase, batch), (0, 0.0))
        sums[phase, batch] = counted + steps, spent + seconds
    with_it = without = 0.0
    rounds = plain_steps = 0
    for batch in {batch for _, batch in sums}:
        verify, draft, plain = (sums.get((phase, batch), (0, 0.0)) for phase in ("verify", "draft", "plain"))
        if not (verify[0] and draft[0] and plain[0]):
            continue
        with_it += verify[0] * (verify[1] / verify[0] + draft[1] / draft[0])
        without += verify[0] * accept_length * plain[1] / plain[0]
        rounds += verify[0]
        plain_steps += plain[0]
    return Speed(without / with_it, rounds, plain_steps, drafts) if with_it > 0 and without > 0 else None


def too_slow(speed: Speed | None, min_speedup: float) -> bool:
    return speed is not None and speed.enough and speed.surely_below < min_speedup
