"""The output of `plan`, and the notes that its parts add to in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tandem_operator.api import Status
from tandem_operator.plan.conditions import Seen
from tandem_operator.plan.observed import Manifest

LEAST_WAKE_SECONDS = 0.2


class Event(NamedTuple):
    """One transition, for `kubectl describe`. Warning only for what a person must read."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Command(NamedTuple):
    """Switch speculation of one worker."""

    pod_uid: str
    enabled: bool
    reason: str


class Deletion(NamedTuple):
    kind: Literal["Deployment", "Service", "ControllerRevision"]
    name: str


@dataclass(frozen=True)
class Plan:
    """What is to be done, all of it safe to do again."""

    status: Status
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Deletion, ...] = ()
    events: tuple[Event, ...] = ()
    commands: tuple[Command, ...] = ()
    calibrate: tuple[str, ...] = ()  # uids of pods that get calibration prompts
    wake_after_seconds: float | None = None


@dataclass
class Notes:
    """What the parts of one pass have to say."""

    seen: list[Seen] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    apply: list[Manifest] = field(default_factory=list)
    delete: list[Deletion] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    calibrate: list[str] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)

    def say(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        self.events.append(Event(kind, reason, message))

    def planned(self, status: Status) -> Plan:
        return Plan(
            status=status,
            apply=tuple(self.apply),
            delete=tuple(self.delete),
            events=tuple(self.events),
            commands=tuple(self.commands),
            calibrate=tuple(self.calibrate),
            wake_after_seconds=max(LEAST_WAKE_SECONDS, min(self.wakes)) if self.wakes else None,
        )
