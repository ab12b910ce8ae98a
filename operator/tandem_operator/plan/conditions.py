"""Conditions as the API conventions have them: one list, transition times that move only with the status."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, NamedTuple

from tandem_operator.api import Condition

TYPES = ("Ready", "Validated", "Progressing", "CanaryHealthy", "SpeculationActive", "MetricsAvailable", "RolledBack")


class Seen(NamedTuple):
    """What one pass says of one condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def merge(before: Iterable[Condition], seen: Iterable[Seen], generation: int, now: datetime) -> list[Condition]:
    """All of TYPES, in that order; what was not looked at this time stays, at first as Unknown."""
    old = {condition.type: condition for condition in before}
    new = {s.type: s for s in seen}
    return [_merged(old.get(kind), new.get(kind), kind, generation, now) for kind in TYPES]


def _merged(last: Condition | None, seen: Seen | None, kind: str, generation: int, now: datetime) -> Condition:
    if seen is None and last is not None:
        return last
    seen = seen or Seen(kind, "Unknown", "NotYetObserved", "")
    since = last.last_transition_time if last and last.status == seen.status else now
    return Condition(
        type=kind,
        status=seen.status,
        reason=seen.reason,
        message=seen.message[:4096],
        last_transition_time=since,
        observed_generation=generation,
    )


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
