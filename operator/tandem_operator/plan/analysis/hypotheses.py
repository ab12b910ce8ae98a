"""What counts as healthy and what as collapsed, as rates of position-0 acceptance.

Two questions, each with hypotheses of its own, so that each answer can be told in its own words:

- Is the revision below the user's floor? `guard.minAcceptLength` is in tokens per target forward. Accept length - 1 is
  position-0 acceptance times the tokens accepted in a draft whose first token was; with that factor as observed, the
  floor becomes a rate at position 0. Healthy begins at the floor; collapsed is FLOOR_GAP of it. A revision is called
  collapsed only with an accept length below the floor, and healthy only with one at or above it.
- Has it lost too much against a baseline? Healthy: at least (1 - toleratedDrop) of the baseline's rate; collapsed:
  (1 - collapseDrop) of it.

The baseline is the stable revision that serves beside a canary, if it speculates and is used: both then see the same
traffic, whatever that is. Otherwise it is what the validation measured, on prompts of its own, which the status says.
Users' prompts may be harder for the drafter, which is no collapse: in steady state the baseline is what the revision
showed in its first drafts in service, when that is less. Without a validated figure there is only the floor, for
nothing then tells a drafter that got worse from traffic that got harder.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tandem_operator.api.status import Counts, Tally
from tandem_operator.plan.analysis.sequential import Hypotheses

FLOOR_GAP = 0.7
_TRUST_DRAFTS = 50  # accepted first tokens of the long run that weigh as much in the factor as those of the window


class Origin(StrEnum):
    STABLE = "Stable"
    PROBE = "Probe"
    START = "Start"
    NONE = "None"


class Baseline(NamedTuple):
    """Position-0 acceptance to compare with. `beside`: what the stable revision counted in the same window."""

    origin: Origin = Origin.NONE
    position0: float = 0.0
    drafts: int = 0
    beside: Counts | None = None


NO_BASELINE = Baseline()


def floor_rate(window: Tally, total: Tally, min_accept_length: float) -> float:
    """Position-0 acceptance at the floor; 0 without a floor, 1 or more where no rate reaches it."""
    weight = min(_TRUST_DRAFTS, total.accepted0)
    long_run = total.accepted / total.accepted0 if total.accepted0 else 1.0
    first = window.accepted0 + weight
    factor = (window.accepted + weight * long_run) / first if first else 1.0
    return (min_accept_length - 1) / factor


def from_floor(rate: float) -> Hypotheses:
    return Hypotheses(healthy=rate, collapsed=FLOOR_GAP * rate)


def ratios(tolerated_drop: float, collapse_drop: float) -> Hypotheses:
    return Hypotheses(healthy=1 - tolerated_drop, collapsed=1 - collapse_drop)


def from_baseline(position0: float, ratios: Hypotheses) -> Hypotheses:
    return Hypotheses(healthy=position0 * ratios.healthy, collapsed=position0 * ratios.collapsed)
