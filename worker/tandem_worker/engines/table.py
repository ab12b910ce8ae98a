"""Tables of engine behaviour, and how a version finds its rows.

A table lists the versions whose source was read. Each row is one fact: a name, the keys it holds for (`family`,
`architecture`, `flag`, ...), a value, the first version that shows it (`since`; without it: every version that was
read) and the public source. Of several rows that match, the last one in the file counts.

A version that was not read has a fact only where it lies between two versions that were read and that agree on it.
Anything else is unknown: an answer of the nearest row would be a guess.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ENGINES = ("builtin", "sglang", "vllm")
NEUTRAL = "any"
"""The engine that nobody named: what is common to all, and a word where they differ."""

VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:\.post(\d+))?(?:\+(?:cu|rocm|cpu)[\d.]*)?")
"""Releases, and builds of them for another accelerator. A release candidate or a patched build is another program."""

VersionKey = tuple[tuple[int, ...], int]


class UnknownEngine(ValueError):
    """Says which engines there are."""


class Answer(NamedTuple):
    value: Any
    source: str = ""
    known: bool = True


@dataclass(frozen=True)
class Row:
    name: str
    keys: Mapping[str, frozenset[str]]
    value: Any
    since: VersionKey | None
    source: str

    def holds(self, name: str, keys: Mapping[str, str]) -> bool:
        return self.name == name and all(keys.get(key) in allowed for key, allowed in self.keys.items())


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    versions: tuple[str, ...]  # whose source was read, oldest first
    rows: tuple[Row, ...]
    targets: Mapping[str, str]  # architecture of a target -> family, as the rows' keys use it
    arguments: Mapping[str, tuple[str, ...]]  # what Tandem looks at -> the engine's names for it

    def at(self, read: str, name: str, keys: Mapping[str, str]) -> Row | None:
        """The row that counts at a version that was read."""
        now = version_key(read)
        found = None
        for row in self.rows:
            if row.holds(name, keys) and (row.since is None or (now is not None and row.since <= now)):
                found = row
        return found


@dataclass(frozen=True)
class Engine:
    """One engine at one version."""

    table: Table
    version: str
    _neighbours: tuple[str, ...]  # the version itself, or the two around it that were read; empty outside of them

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def title(self) -> str:
        """As a sentence names it: SGLang 0.5.23."""
        return f"{self.table.title} {self.version}" if len(self.table.versions) > 1 else self.table.title

    @property
    def read(self) -> bool:
        """Whether this very version was read."""
        return self.version in self.table.versions

    def ask(self, name: str, default: Any = None, **keys: str) -> Answer:
        """`default` is the value where no row holds. An unknown answer carries it, too, and must not be relied on."""
        rows = [self.table.at(read, name, keys) for read in self._neighbours]
        values = [default if row is None else row.value for row in rows]
        if not values or any(value != values[0] for value in values):
            return Answer(default, known=False)
        return Answer(values[0], rows[0].source if rows[0] else "")

    def asked(self, name: str, *keys: str) -> list[tuple[str, ...]]:
        """Every combination of these keys that rows of a name speak of, for lists such as `trap`."""
        rows = [row for row in self.table.rows if row.name == name]
        return sorted({tuple(min(row.keys[key]) for key in keys) for row in rows})

    def family_of(self, architecture: str) -> str | None:
        return self.table.targets.get(architecture)


def load(spec: str) -> Engine:
    """`sglang@0.5.23`; without a version the newest that was read. Raises UnknownEngine."""
    name, _, version = re.sub("==", "@", spec.strip()).partition("@")
    name = name.strip().lower()
    if name not in (*ENGINES, NEUTRAL):
        raise UnknownEngine(f"{spec!r} names no engine that Tandem knows; there are {', '.join(ENGINES)}")
    table = _table(name)
    version = version.strip() or table.versions[-1]
    return Engine(table, version if name != NEUTRAL else "", _neighbours(table, version))


def all_engines() -> list[Engine]:
    """Every engine at every version that was read."""
    return [load(f"{name}@{version}") for name in ENGINES for version in _table(name).versions]


def version_key(text: str) -> VersionKey | None:
    match = VERSION.fullmatch(text)
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()  # 0.5 is 0.5.0
    return tuple(numbers), int(match[2] or 0)


def _neighbours(table: Table, version: str) -> tuple[str, ...]:
    wanted = version_key(version)
    if wanted is None:
        return ()
    keyed = [(version_key(read) or wanted, read) for read in table.versions]
    for key, read in keyed:
        if key == wanted:
            return (read,)
    older = [read for key, read in keyed if key < wanted]
    newer = [read for key, read in keyed if key > wanted]
    return (older[-1], newer[0]) if older and newer else ()


@cache
def _table(name: str) -> Table:
    data = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
    return Table(
        name=data["engine"],
        title=data["title"],
        versions=tuple(data["versions"]),
        rows=tuple(_row(row) for row in data["fact"]),
        targets={architecture: family for family, names in data.get("targets", {}).items() for architecture in names},
        arguments={name: tuple(names) for name, names in data.get("arguments", {}).items()},
    )


def _row(row: Mapping[str, Any]) -> Row:
    keys = {key: value for key, value in row.items() if key not in ("name", "value", "since", "source")}
    return Row(
        name=row["name"],
        keys={key: frozenset(value if isinstance(value, list) else [value]) for key, value in keys.items()},
        value=row["value"],
        since=version_key(row["since"]) if "since" in row else None,
        source=row["source"],
    )
