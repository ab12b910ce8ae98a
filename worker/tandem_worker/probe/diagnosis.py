"""From tallies to a sentence.

A hypothesis is the diagnosis only when it is clearly better than the declared wiring, by all of:

- its accept length reaches the threshold, so that following the advice would make the pair fit;
- its position-0 acceptance is at least half as much again as the declared wiring's;
- the difference at position 0 is at least 4 standard errors, drafts counted as DESIGN_EFFECT times fewer than they
  are, since drafts within one text are alike.

Where several pass, the one with the highest accept length is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tandem_worker.probe.replay import Tally
from tandem_worker.probe.wirings import Wiring

DESIGN_EFFECT = 2.5
STANDARD_ERRORS = 4.0
LEAST_RATIO = 1.5


def clearly_better(other: Tally, declared: Tally, threshold: float) -> bool:
    a, b = other.position0, declared.position0
    pooled = (other.accepted[0] + declared.accepted[0]) / max(other.drafts + declared.drafts, 1)
    variance = pooled * (1 - pooled) * (1 / max(other.drafts, 1) + 1 / max(declared.drafts, 1))
    error = math.sqrt(DESIGN_EFFECT * variance)
    return other.accept_length >= threshold and a >= LEAST_RATIO * b and a - b >= STANDARD_ERRORS * error > 0


def better_wiring(declared: Tally, tried: Iterable[tuple[Wiring, Tally]], threshold: float) -> str:
    """The sentence that names the cause, with figures; empty when no wiring is clearly better."""
    better = [(wiring, tally) for wiring, tally in tried if clearly_better(tally, declared, threshold)]
    if not better:
        return ""
    wiring, tally = max(better, key=lambda pair: pair[1].accept_length)
    return (
        f"The builtin engine {wiring.cause}: position-0 acceptance {declared.position0:.2f} against "
        f"{tally.position0:.2f}; {wiring.remedy}."
    )


def nothing_helps(declared: Tally, tried: Sequence[tuple[Wiring, Tally]]) -> str:
    best = max((tally.accept_length for _, tally in tried), default=declared.accept_length)
    return (
        f"None of {len(tried)} other wirings tried makes it fit (best accept length {best:.2f}); the drafter was "
        "probably trained for another target or on other text."
    )
