"""The copy in the making: its config, and for each tensor where its bytes come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tandem_worker.checkpoint import TensorInfo
from tandem_worker.checks.pairing import Pairing


class Change(NamedTuple):
    """One thing that differs from the source, as the provenance file tells it."""

    what: str  # the config field or the tensor
    before: Any
    after: Any
    why: str


class Entry(NamedTuple):
    """A tensor of the copy. `data` is None for bytes that are copied from `source` as they are."""

    source: TensorInfo
    data: bytes | None = None


class NotMechanical(Exception):
    """A correction that would need a guess. Says which, and what the user can say to settle it."""


@dataclass
class Draft:
    """`config` is the drafter's own JSON, changed in place by the fixes."""

    pairing: Pairing
    config: dict[str, Any]
    tensors: dict[str, Entry]
    changes: list[Change] = field(default_factory=list)

    def set(self, path: str, value: Any, why: str) -> None:
        """Writes a config field; `a.b` is b inside a. No change when it is there with this value."""
        holder, name = self._holder(path)
        missing = name not in holder
        if missing or holder[name] != value or type(holder[name]) is not type(value):
            self.changes.append(Change(path, None if missing else holder[name], value, why))
            holder[name] = value

    def remove(self, path: str, why: str) -> None:
        """Takes a config field away, and the object around it when that is then empty."""
        holder, name = self._holder(path)
        if name in holder:
            self.changes.append(Change(path, holder.pop(name), None, why))
        outer = path.rpartition(".")[0]
        if outer and not holder:
            self.config.pop(outer, None)

    def rename(self, old: str, new: str, why: str) -> None:
        if new in self.tensors:
            raise NotMechanical(f"{old} and {new} would both be {new}; remove the one that does not belong")
        self.changes.append(Change(old, old, new, why))
        # In place: the order of tensors is the order of the source.
        self.tensors = {new if name == old else name: entry for name, entry in self.tensors.items()}

    def _holder(self, path: str) -> tuple[dict[str, Any], str]:
        outer, _, name = path.rpartition(".")
        if not outer:
            return self.config, name
        holder = self.config.get(outer)
        if not isinstance(holder, Mapping):
            holder = self.config[outer] = {}
        return holder, name  # type: ignore[return-value]
