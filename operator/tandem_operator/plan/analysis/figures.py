"""Figures for people. Wilson's interval (1927) is shown and never decides: a bound that is looked at again and again
is crossed sooner or later."""

from __future__ import annotations

from math import sqrt

from tandem_operator.api.status import Acceptance, Window
from tandem_operator.plan.analysis.evidence import accept_length, position0
from tandem_operator.plan.analysis.speed import Speed


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    p, zz = successes / trials, z * z
    middle = (p + zz / (2 * trials)) / (1 + zz / trials)
    half = z / (1 + zz / trials) * sqrt(p * (1 - p) / trials + zz / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def acceptance(window: Window, speed: Speed | None = None) -> Acceptance:
    """Of a window with at least one draft, rounded as people read them."""
    counts = window.counts
    lower, upper = wilson(min(counts.accepted0, counts.drafts), counts.drafts)
    return Acceptance(
        accept_length=round(accept_length(counts), 2),
        position0=round(position0(counts), 3),
        lower=round(lower, 3),
        upper=round(upper, 3),
        drafts=counts.drafts,
        requests=counts.requests,
        revision=window.revision,
        window_seconds=max(0, round((window.sampled_at - window.started_at).total_seconds())),
        speedup=round(speed.speedup, 2) if speed and speed.enough else None,
    )
