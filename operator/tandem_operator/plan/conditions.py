"""Conditions as the API conventions have them: one list, transition times that move only with the status."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, NamedTuple

from tandem_operator.api import Condition

TYPES = (
    "Ready", "Validated", "Progressing", "CanaryHealthy", "SpeculationActive", "MetricsAvailable", "RolledBack",
    "TrafficRouted", "Reconciling", "Stalled",
)  # fmt: skip
SETTLED = ("Complete", "ScaledToZero")  # reasons of Progressing=False with which all is as the spec asks


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


def kstatus(progressing: Seen, ready: Seen) -> tuple[Seen, Seen]:
    """Reconciling and Stalled, from which Flux, Argo CD and `kpt live` tell what is going on (kstatus, of
    kubernetes-sigs/cli-utils): in progress while Reconciling is True, failed while Stalled is True, else by Ready."""
    if progressing.status == "False" and progressing.reason not in SETTLED:
        return (
            Seen("Reconciling", "False", progressing.reason, "nothing more is tried for this spec"),
            Seen("Stalled", "True", progressing.reason, progressing.message),
        )
    stalled = Seen("Stalled", "False", "NotStalled", "")
    if progressing.status != "False":
        return Seen("Reconciling", "True", progressing.reason, progressing.message), stalled
    if ready.status != "True":
        return Seen("Reconciling", "True", ready.reason, ready.message), stalled
    return Seen("Reconciling", "False", progressing.reason, progressing.message), stalled


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
