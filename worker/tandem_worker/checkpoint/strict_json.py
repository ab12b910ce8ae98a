"""JSON as the checkpoints' formats mean it: a duplicated key or broken text is an error with a place, not a guess.

A trillion-parameter target has 50 MB of JSON in headers and index, so the common case goes through orjson, which keeps
the last of two equal keys in silence. What it read counts only if it writes it back byte for byte: then nothing was
dropped, rounded or read in another way. Anything else is read again, slowly, by the standard library.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

import orjson

Json: TypeAlias = "bool | int | float | str | list[Json] | Mapping[str, Json] | None"


class JsonError(Exception):
    """Says what is wrong and, where known, at which line and column."""


def parse(data: bytes) -> Json:
    """Raises JsonError, and nothing else, on anything that is not one JSON value with distinct keys."""
    layout = orjson.OPT_INDENT_2 if data.startswith(b'{\n  "') else None  # an index file; headers have no spaces
    try:
        value: Json = orjson.loads(data)
        written = orjson.dumps(value, option=layout)
        if data.startswith(written) and not data[len(written) :].strip(b" \n"):
            return value
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # it reads deeper nesting than it writes
        pass
    return _parse_slowly(data)


def _parse_slowly(data: bytes) -> Json:
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
