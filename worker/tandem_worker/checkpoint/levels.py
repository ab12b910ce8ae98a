"""Reads fields that different dialects write at different places, and says where each was found.

A value of the wrong type is a finding, and the reading goes on, so that one run tells of all mistakes: with what was
plainly meant ("32000", 32000.0, "false"), or else as if the field were absent. So one mistake is told once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tandem_worker.checkpoint.config import LARGEST_INTEGER, Config
from tandem_worker.checkpoint.errors import error, printable
from tandem_worker.finding import Finding

T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A value and where it was read. `where` is the path in config.json; empty: nobody declared it, and `default_of`
    says whose default it is.
    """

    value: T
    where: str = ""
    default_of: str = ""

    @property
    def declared(self) -> bool:
        return bool(self.where)

    def __str__(self) -> str:
        return f"{self.value} ({self.where or self.default_of or 'unknown'})"


class Levels:
    """JSON objects of one config.json, in the order in which a field is looked for."""

    def __init__(self, levels: Sequence[Config], problems: list[Finding]) -> None:
        self._levels = levels
        self.problems = problems

    @property
    def file(self) -> object:
        return self._levels[0].file

    def find(self, *names: str) -> tuple[Config, str] | None:
        """The first level and name with a value; a level is searched for all names before the next one is."""
        return next(((level, name) for level in self._levels for name in names if level.has(name)), None)

    def null(self, name: str) -> bool:
        return self.find(name) is None and any(level.states_null(name) for level in self._levels)

    def integer(self, *names: str, default: int | None = None, whose: str = "", minimum: int = 1) -> Fact[int | None]:
        def accept(value: object) -> int | None:
            whole = isinstance(value, int) and not isinstance(value, bool)
            return value if whole and minimum <= value <= LARGEST_INTEGER else None  # type: ignore[operator, return-value]

        return self._read(
            names, accept, f"an integer of at least {minimum}", default, whose, lambda value: accept(_meant(value))
        )

    def number(self, *names: str, default: float | None = None, whose: str = "") -> Fact[float | None]:
        def accept(value: object) -> float | None:
            if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
                return None
            return float(value) if math.isfinite(value) and value > 0 else None

        return self._read(names, accept, "a finite number above zero", default, whose)

    def boolean(self, *names: str, default: bool | None = None, whose: str = "") -> Fact[bool | None]:
        def accept(value: object) -> bool | None:
            return value if isinstance(value, bool) else None

        return self._read(names, accept, "true or false", default, whose, lambda value: accept(_meant(value)))

    def text(self, *names: str, default: str | None = None, whose: str = "") -> Fact[str | None]:
        return self._read(names, lambda value: value if isinstance(value, str) else None, "a string", default, whose)

    def nested_object(self, name: str) -> Config | None:
        found = self.find(name)
        if found is None:
            return None
        level, _ = found
        if isinstance(level.raw(name), dict):
            return level.nested(name)
        self.wrong(level, name, "an object")
        return None

    def wrong(self, level: Config, name: str, expected: str, code: str = "TDM-CONFIG-FIELD-INVALID") -> None:
        where = level.prefix + name
        self.problems.append(
            error(
                code,
                f"{where} in {level.file.name} is {printable(level.shown(name), 80)}; expected {expected}.",
                file=level.file,
                where=where,
                found=level.shown(name),
                expected=expected,
                action="Correct the field in config.json.",
            )
        )

    def _read(
        self,
        names: tuple[str, ...],
        accept: Callable[[object], T | None],
        expected: str,
        default: T | None,
        whose: str,
        meant: Callable[[object], T | None] = lambda _: None,
    ) -> Fact[T | None]:
        found = self.find(*names)
        if found is not None:
            level, name = found
            value = accept(level.raw(name))
            if value is not None:
                return Fact(value, level.prefix + name)
            self.wrong(level, name, expected)
            if (plain := meant(level.raw(name))) is not None:
                return Fact(plain, level.prefix + name)
        return Fact(default, "", whose if default is not None else "")


def _meant(value: object) -> object:
    """The value that a string or a float spells; None when that is not plain."""
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else None
