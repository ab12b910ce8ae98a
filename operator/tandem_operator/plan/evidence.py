"""From raw counters of pods to evidence on one revision.

Counters are read per pod and differenced here, never by a rate function: a fresh pod's first increments count, a
restart (any counter below its last reading) counts what it has since, and a pod that could not be read adds nothing.
The last readings live in status, so an operator that restarts neither loses nor counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from math import sqrt

from tandem_operator.api.status import Acceptance, Counts, PodCounts, Window

_FIELDS = tuple(Counts.model_fields)


def plus(a: Counts, b: Counts) -> Counts:
    return Counts(**{field: getattr(a, field) + getattr(b, field) for field in _FIELDS})


def increment(last: Counts, now: Counts) -> Counts:
    """What was counted between two readings. Any counter that fell means a restart: all began again at zero."""
    if any(getattr(now, field) < getattr(last, field) for field in _FIELDS):
        return now
    return Counts(**{field: getattr(now, field) - getattr(last, field) for field in _FIELDS})


def sample(
    window: Window, drafting: Iterable[tuple[str, Counts]], idle: Iterable[tuple[str, Counts]], now: datetime
) -> Window:
    """Add what the pods counted since their last reading. Both: (pod uid, counters).

    `idle` pods have speculation switched off: what they serve says nothing of the drafter, so they only move the
    reading from which the next increment counts.
    """
    last: dict[str, Counts] = {pod.uid: pod for pod in window.pods}
    counts = window.counts
    for uid, reading in drafting:
        counts = plus(counts, increment(last.get(uid, Counts()), reading))
        last[uid] = reading
    last |= dict(idle)
    pods = [PodCounts(uid=uid, **{field: getattr(c, field) for field in _FIELDS}) for uid, c in last.items()]
    return window.model_copy(update={"counts": counts, "pods": pods, "sampled_at": now})


def fresh(window: Window, now: datetime) -> Window:
    """A new window that knows the pods' last readings."""
    return window.model_copy(update={"started_at": now, "sampled_at": now, "counts": Counts()})


def forget(window: Window, alive: frozenset[str]) -> Window:
    """Without the readings of pods that are gone: state stays as small as the revision."""
    return window.model_copy(update={"pods": [pod for pod in window.pods if pod.uid in alive]})


def accept_length(counts: Counts) -> float:
    """Tokens per target forward, bonus token included: 1 + accepted / drafts. Needs at least one draft."""
    return 1 + counts.accepted / counts.drafts


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval (1927). For people: a bound that is looked at again and again decides nothing."""
    p, zz = successes / trials, z * z
    middle = (p + zz / (2 * trials)) / (1 + zz / trials)
    half = z / (1 + zz / trials) * sqrt(p * (1 - p) / trials + zz / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def acceptance(window: Window) -> Acceptance:
    """The figures of a window with at least one draft, rounded as people read them."""
    counts = window.counts
    lower, upper = wilson(min(counts.accepted0, counts.drafts), counts.drafts)
    return Acceptance(
        accept_length=round(accept_length(counts), 2),
        position0=round(counts.accepted0 / counts.drafts, 3),
        lower=round(lower, 3),
        upper=round(upper, 3),
        drafts=counts.drafts,
        requests=counts.requests,
        revision=window.revision,
        window_seconds=max(0, round((window.sampled_at - window.started_at).total_seconds())),
    )
