"""Typed access to a checkpoint's JSON configuration. Nothing outside this package sees the raw values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from tandem_worker.checkpoint import strict_json
from tandem_worker.checkpoint.errors import CheckpointError, error
from tandem_worker.checkpoint.files import read_bytes
from tandem_worker.finding import Verdict

LARGEST_CONFIG_BYTES = 16 * 1024 * 1024
LARGEST_LAYERS = 10_000
LARGEST_INTEGER = 2**53  # every JSON reader agrees on integers up to here


class Config:
    """One JSON object. `null` counts as absent, as it does for the libraries that write these files.

    Each accessor raises CheckpointError (CouldNotCheck) that names the file, the field, and what was expected.
    """

    def __init__(self, values: Mapping[str, strict_json.Json], file: Path, prefix: str = "") -> None:
        self._values = values
        self.file = file
        self.prefix = prefix

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> object:
        """The value as it stands; None when absent."""
        return self._values.get(name)

    def states_null(self, name: str) -> bool:
        """Whether the field stands there and is null: some engines tell that from an absent one."""
        return name in self._values and self._values[name] is None

    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def integer(self, name: str, default: int | None = None, minimum: int = 1, most: int = LARGEST_INTEGER) -> int:
        value = self._value(name, default)
        if not _is_integer(value) or not minimum <= value <= most:
            limit = f" and at most {most}" if most < LARGEST_INTEGER else ""
            raise self._wrong(name, value, f"an integer of at least {minimum}{limit}")
        return value

    def layers(self, default: int | None = None) -> int:
        """Lists are made as long as that, so there is an end to it: models of today have a hundred."""
        return self.integer("num_hidden_layers", default, most=LARGEST_LAYERS)

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number) and number > 0:
                return number
        raise self._wrong(name, value, "a finite number above zero")

    def boolean(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self._value(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of strings")
        return tuple(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """Token ids: one integer or a list of integers, all >= 0; empty when absent."""
        value = self._value(name, [])
        items = value if isinstance(value, list) else [value]
        if not all(_is_integer(item) and 0 <= item <= LARGEST_INTEGER for item in items):
            raise self._wrong(name, value, "a token id or a list of token ids")
        return tuple(items)

    def layer_ids(self, name: str) -> tuple[int, ...] | None:
        """A list of layer ids as written; None when absent. Anything but integers does not fit (CheckpointError)."""
        value = self._values.get(name)
        if value is None:
            return None
        ids = [item for item in value if _is_integer(item)] if isinstance(value, list) else None
        if ids is None or ids != value:
            wrong = self._wrong(
                name, value, "a list of three integers, such as [2, 4, 5]", code="TDM-LAYER-IDS-MALFORMED"
            )
            raise CheckpointError(*wrong.findings, verdict=Verdict.DOES_NOT_FIT)
        return tuple(ids)

    def nested(self, name: str) -> Config:
        """The object under `name`; an empty one when absent."""
        value = self._value(name, {})
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return Config(value, self.file, f"{self.prefix}{name}.")

    def states(self, name: str, value: object) -> bool:
        return self._values.get(name) == value

    def shown(self, name: str) -> str:
        """The value as a person would see it in the file."""
        return _short(self._values.get(name))

    def _value(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(
                error(
                    "TDM-CONFIG-FIELD-MISSING",
                    f"{self.file.name} has no {self.prefix}{name}.",
                    file=self.file,
                    where=self.prefix + name,
                    expected="a value",
                    action="Add the field, or restore the file from where the checkpoint was published.",
                )
            )
        return value

    def _wrong(
        self, name: str, value: object, expected: str, code: str = "TDM-CONFIG-FIELD-INVALID"
    ) -> CheckpointError:
        return CheckpointError(
            error(
                code,
                f"{self.prefix}{name} in {self.file.name} is {_short(value)}; expected {expected}.",
                file=self.file,
                where=self.prefix + name,
                found=_short(value),
                expected=expected,
                action="Correct the field.",
            )
        )


def read_config(file: Path) -> Config:
    """Raises CheckpointError when the file is missing, unreadable or not one JSON object."""
    data = read_bytes(file, LARGEST_CONFIG_BYTES)
    try:
        value = strict_json.parse(data)
    except strict_json.JsonError as failure:
        raise _malformed(file, not_json(data) or str(failure)) from None
    if not isinstance(value, Mapping):
        raise _malformed(file, f"it holds a {type(value).__name__}, not an object")
    return Config(value, file)


def not_json(data: bytes) -> str:
    """What a file is that does not even begin like JSON; empty when that is not it."""
    text = data[:512].lstrip().lower()
    if not text:
        return "it is empty"
    if text.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file it points to: run `git lfs pull`"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page (HTML or XML): the download answered with an error or a login page"
    return ""


def _malformed(file: Path, reason: str) -> CheckpointError:
    finding = error(
        "TDM-CONFIG-MALFORMED",
        f"{file.name} is not readable as JSON: {reason}.",
        file=file,
        found=reason,
        expected="one JSON object",
        action="Restore the file from where the checkpoint was published.",
    )
    return CheckpointError(finding)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:  # lists nested almost as deeply as the JSON reader takes
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 80 else text[:79] + "…"
