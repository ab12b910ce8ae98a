"""From raw counters of pods to evidence on one revision.

Counters are read per pod and differenced here, never by a rate function: a fresh pod's first increments count, a
restart (any counter below its last reading) counts what it has since, and a pod that could not be read adds nothing.
PromQL's `rate` and `increase` do neither: they extrapolate, and miss the first sample of a new series. The last
readings live in status, so an operator that restarts neither loses nor counts twice.

A source is what counts on its own: a pod (`uid`), or one engine rank of it (`uid/rank`, as vLLM labels them).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from operator import add, attrgetter, sub
from typing import NamedTuple

from tandem_operator.api.status import Counts, PodCounts, Score, Tally, Window

_FIELDS = tuple(Counts.model_fields)
_values = attrgetter(*_FIELDS)  # of counts, in that order

FROZEN_LOOKS = 3
"""Looks in a row at which requests ran and no counter moved. Fewer may be one long prompt."""


class Reading(NamedTuple):
    """Counters of one source. `drafting`: False while its speculation is off, or what it drafted is no evidence of what
    is judged now; so it only moves the reading from which the next increment counts."""

    source: str
    counts: Counts
    drafting: bool = True
    running: int = 0  # requests in flight


def plus(a: Counts, b: Counts) -> Counts:
    return _counts(map(add, _values(a), _values(b)))


def increment(last: Counts, now: Counts) -> Counts:
    """What was counted between two readings. A counter that fell means a restart: all began again at zero.

    Where an engine does not count accepted tokens they are reckoned from the others, and fall by one for a request
    that ended without a token (SGLang): drafts, requests and tokens alone tell of a restart.
    """
    moved = list(map(sub, _values(now), _values(last)))
    if now.drafts < last.drafts or now.requests < last.requests or now.generated < last.generated:
        return _counts(_values(now))
    return _counts(max(0, each) for each in moved)


def _counts(values: Iterable[int]) -> Counts:
    return Counts(**dict(zip(_FIELDS, values, strict=True)))


def sample(window: Window, readings: Iterable[Reading], now: datetime) -> tuple[Window, Counts]:
    """Add what the sources counted since their last reading -> the window, and the increment alone."""
    last = {pod.uid: pod for pod in window.pods}
    added = Counts()
    for reading in readings:
        before = last.get(reading.source)
        moved = increment(before or Counts(), reading.counts)
        if reading.drafting:
            added = plus(added, moved)
        stands = before is not None and moved == Counts() and bool(reading.running and before.running)
        values = dict(zip(_FIELDS, _values(reading.counts), strict=True))
        still = before.still + 1 if before and stands else 0
        last[reading.source] = PodCounts(uid=reading.source, running=reading.running, still=still, **values)
    update = {
        "counts": plus(window.counts, added),
        "total": plus(window.total, added),
        "judged": tally_plus(window.judged, added),
        "barren": _barren(window.barren, added),
        "pods": list(last.values()),
        "sampled_at": now,
    }
    return window.model_copy(update=update), added


def _barren(before: Tally, added: Counts) -> Tally:
    """Drafts and requests since the last look at which anything was accepted."""
    return Tally() if added.accepted else tally_plus(before, added)


def tally_plus(a: Tally, b: Tally) -> Tally:
    return Tally(
        drafts=a.drafts + b.drafts,
        accepted=a.accepted + b.accepted,
        accepted0=a.accepted0 + b.accepted0,
        requests=a.requests + b.requests,
    )


def fresh(window: Window, now: datetime, beside: Counts | None = None) -> Window:
    """A new window that knows the pods' last readings, the scores and all that the revision ever showed.

    `beside`: the total of the revision that serves beside it, from which its part in this window counts.
    """
    return window.model_copy(update={"started_at": now, "sampled_at": now, "counts": Counts(), "beside_from": beside})


def restart(window: Window, now: datetime, beside: Counts | None = None) -> Window:
    """As `fresh`, for a revision that is judged anew: what was held against it is forgotten."""
    update = {"judged": Tally(), "barren": Tally(), "below_floor": Score(), "below_baseline": Score()}
    return fresh(window, now, beside).model_copy(update=update)


def forget(window: Window, alive: frozenset[str]) -> Window:
    """Without the readings of pods that are gone: state stays as small as the revision."""
    return window.model_copy(update={"pods": [pod for pod in window.pods if pod.uid.split("/")[0] in alive]})


def frozen(window: Window) -> frozenset[str]:
    """Sources that serve requests while none of their counters moves: stalled, or an exposition that stands still."""
    return frozenset(pod.uid for pod in window.pods if pod.still >= FROZEN_LOOKS)


def accept_length(counts: Tally) -> float:
    """Tokens per target forward, bonus token included: 1 + accepted / drafts. Needs at least one draft."""
    return 1 + counts.accepted / counts.drafts


def position0(counts: Tally) -> float:
    """Share of drafts whose first token was accepted: one trial per draft, whatever the draft length (Leviathan,
    Kalman, Matias 2023). Needs at least one draft."""
    return min(1.0, counts.accepted0 / counts.drafts)
