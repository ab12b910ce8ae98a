"""JSON as the checkpoints' formats mean it: a duplicated key or broken text is an error with a place, not a guess."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | Mapping[str, Json] | None"


class JsonError(Exception):
    """Says what is wrong and, where known, at which line and column."""


def parse(data: bytes) -> Json:
    """Raises JsonError, and nothing else, on anything that is not one JSON value with distinct keys."""
    try:
        value: Json = json.loads(data.decode("utf-8"), object_pairs_hook=_distinct)
    except UnicodeDecodeError as failure:
        raise JsonError(f"it is not UTF-8 text (byte {failure.start})") from None
    except json.JSONDecodeError as failure:
        raise JsonError(f"{failure.msg} at line {failure.lineno}, column {failure.colno}") from None
    except RecursionError:
        raise JsonError("it is nested too deeply") from None
    except ValueError as failure:  # an integer of thousands of digits
        raise JsonError(str(failure)) from None
    return value


def _distinct(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise JsonError(f"the key {twice!r} stands twice")
    return result
