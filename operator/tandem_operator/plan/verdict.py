"""Is the acceptance of a revision healthy, collapsed, or is it too early to say?

One pure function over the counts of a window. Three rules, the first that applies decides:

1. Nothing at all: >= 30 drafts from >= 3 finished requests and not one token accepted. At a position-0 rate of 0.3 the
   chance of that is 0.7 ** 30 = 0.00002, so it may be called early.
2. Requests are served and nothing is drafted although speculation is on: fails closed, since whatever was promoted
   would run without the thing that was rolled out (the drafter that was staged and never used).
3. The floor: with enough evidence, accept length below `min_accept_length`.

No evidence is never collapse.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tandem_operator.api.status import Counts
from tandem_operator.plan.evidence import accept_length

HARD_FAIL_DRAFTS, HARD_FAIL_REQUESTS = 30, 3
ENOUGH_DRAFTS, ENOUGH_REQUESTS = 200, 5
INACTIVE_REQUESTS, INACTIVE_TOKENS = 5, 50


class Outcome(StrEnum):
    HEALTHY = "Healthy"
    COLLAPSED = "Collapsed"
    INCONCLUSIVE = "Inconclusive"


class Verdict(NamedTuple):
    outcome: Outcome
    reason: str
    message: str


def judge(counts: Counts, min_accept_length: float) -> Verdict:
    """`counts`: increments of one revision in one window; `min_accept_length`: tokens per target forward."""
    if counts.accepted == 0 and counts.drafts >= HARD_FAIL_DRAFTS and counts.requests >= HARD_FAIL_REQUESTS:
        return Verdict(
            Outcome.COLLAPSED,
            "NothingAccepted",
            f"accept length 1.00: none of {counts.drafts} drafts from {counts.requests} requests was accepted",
        )
    if counts.drafts == 0 and counts.requests >= INACTIVE_REQUESTS and counts.generated >= INACTIVE_TOKENS:
        return Verdict(
            Outcome.COLLAPSED,
            "SpeculationInactive",
            f"{counts.requests} requests and {counts.generated} tokens were served without one draft",
        )
    if counts.drafts < ENOUGH_DRAFTS or counts.requests < ENOUGH_REQUESTS:
        return Verdict(
            Outcome.INCONCLUSIVE,
            "TooFewDrafts",
            f"{counts.drafts} drafts from {counts.requests} requests so far; "
            f"{ENOUGH_DRAFTS} from {ENOUGH_REQUESTS} are needed",
        )
    figures = f"accept length {accept_length(counts):.2f} over {counts.drafts} drafts from {counts.requests} requests"
    if accept_length(counts) < min_accept_length:
        return Verdict(Outcome.COLLAPSED, "AcceptLengthBelowFloor", f"{figures}, floor {min_accept_length:g}")
    return Verdict(Outcome.HEALTHY, "AcceptLengthAboveFloor", f"{figures}, floor {min_accept_length:g}")
