"""What may happen to an object, as plain data that any world can play: the model in memory, or a real API server.

An input is the name of what happens and what it is given. Revisions are told by their drafter, for their hashes differ
from world to world. `Wishes` is the user's side of it: inputs in, a spec and annotations out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]  # random.choice, or a draw of hypothesis

DRAFTERS = ("a", "b", "c")
MOST_INPUTS = 8  # of one life
FATE_OF_C = "weak"  # from the start; the others are healthy
LIVES = ("healthy", "healthy", "weak", "dead", "never ready", "no life")


class Input(NamedTuple):
    what: str
    given: dict[str, Any]


class Times(NamedTuple):
    """In seconds, of a world's own clock: that of the model costs nothing."""

    interval: int
    deadline: int
    timeout: int


_OF: dict[str, Sequence[Any]] = {"drafter": DRAFTERS}
_VOCABULARY: dict[str, dict[str, Sequence[Any]]] = {
    "name": {"drafter": ("a", "b", "b", "c")},
    "scale": {"replicas": (0, 1, 2, 3, 4)},
    "limits": {"limits": ((1, 0), (0, 1), (2, 1))},
    "steps": {"weights": ((), (50,), (30, 60)), "hold": (False, False, True)},
    "analysis": {"end": ("Rollback", "Hold"), "dry": (False, False, True)},
    "pause": {"paused": (False, True)},
    "collapse": {"then": ("Rollback", "DisableSpeculation", "Alert")},
    "speculate": {"speculates": (True, True, False)},
    "validation": {"enforcement": ("Enforce", "Warn"), "invalid": ("Block", "ServeTargetOnly")},
    "retry": {},
    "command": {"command": ("promote", "promote full", "abort", "rollback"), "drafter": DRAFTERS},
    "fate": {"drafter": DRAFTERS, "life": LIVES},
    "judge": {"drafter": DRAFTERS, "verdict": ("Fits", "Fits", "FitsWithWarnings", "DoesNotFit")},
    "traffic": {"flows": (True, True, False)},
    "scale a child": {"drafter": DRAFTERS, "replicas": (0, 1, 3)},
    "delete a deployment": _OF,
    "delete a record": _OF,
    "delete a pod": _OF,
    "delete the jobs": {},
    "wipe the status": {},
}
_OFTEN = ("name", "name", "fate", "command")


def draw(choose: Choose[Any]) -> Input:
    what = choose((*_VOCABULARY, *_OFTEN, *_OFTEN))
    return Input(what, {key: choose(options) for key, options in _VOCABULARY[what].items()})


@dataclass
class Wishes:
    """What the user asks for at present."""

    times: Times
    drafter: str = "a"
    retries: int = 0
    annotations: dict[str, str] = field(default_factory=dict)
    _fields: dict[str, Any] = field(default_factory=lambda: {"replicas": 3, "guard": {}, "validation": {}})
    _rollout: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rollout = {
            "steps": [{"weight": 30}, {"weight": 60}],
            "maxSurge": 1,
            "maxUnavailable": 0,
            "progressDeadlineSeconds": self.times.deadline,
            "analysis": {"intervalSeconds": self.times.interval, "timeoutSeconds": self.times.timeout},
        }

    def spec(self) -> dict[str, Any]:
        return {
            "target": {"source": {"hostPath": {"path": "/models/target"}}},
            "drafter": {"source": {"hostPath": {"path": f"/models/{self.drafter}"}}},
            **self._fields,
            "rollout": self._rollout,
        }

    def hear(self, said: Input, revision: str) -> bool:
        """Whether it is for the user to do. `revision`: of the drafter that a command names."""
        given, fields, rollout = said.given, self._fields, self._rollout
        match said.what:
            case "name":
                self.drafter = given["drafter"]
            case "scale":
                fields["replicas"] = given["replicas"]
            case "limits":
                rollout["maxSurge"], rollout["maxUnavailable"] = given["limits"]
            case "steps":
                pause: dict[str, Any] = {"pause": {}} if given["hold"] else {}
                rollout["steps"] = [{"weight": weight, **pause} for weight in given["weights"]]
            case "analysis":
                more = {"onInconclusive": given["end"], "dryRun": given["dry"]}
                rollout["analysis"] = {**rollout["analysis"], **more}
            case "pause":
                fields["paused"] = given["paused"]
            case "collapse":
                fields["guard"] = {"onCollapse": given["then"]}
            case "speculate":
                fields["speculation"] = {"enabled": given["speculates"]}
            case "validation":
                fields["validation"] = {"enforcement": given["enforcement"], "onInvalid": given["invalid"]}
            case "retry":
                self._annotate("retry", "")
            case "command" if revision:
                command, _, full = given["command"].partition(" ")
                self._annotate(command, f"{revision} {full}".strip())
            case _:
                return False
        return True

    def _annotate(self, command: str, words: str) -> None:
        """The same words said twice are said anew."""
        self.retries += 1
        self.annotations = {**self.annotations, f"tandem.dev/{command}": f"{words} # {self.retries}".strip()}
