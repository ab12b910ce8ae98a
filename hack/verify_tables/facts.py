"""One thing that an engine's source was seen to do."""

from __future__ import annotations

from typing import Any, NamedTuple


class Fact(NamedTuple):
    name: str
    keys: dict[str, str]
    value: Any
    of: str = ""  # which part of the row's value, or why there is no row
