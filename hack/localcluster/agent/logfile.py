"""Parts of a container's log file. Short, local reads: they do not hold up the event loop."""

from __future__ import annotations

import os
from pathlib import Path


def read_chunk(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def start_of_last_lines(path: Path, lines: int | None) -> int:
    """Offset of the last `lines` lines of a file, 0 for all of them (None)."""
    data = path.read_bytes()
    if lines is None:
        return 0
    kept = data.splitlines(keepends=True)[-lines:] if lines else []
    return len(data) - sum(len(line) for line in kept)


def tail(path: Path, limit_bytes: int, limit_lines: int) -> bytes:
    """The last lines of a file, at most so many bytes of them."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit_bytes))
        return b"".join(file.read().splitlines(keepends=True)[-limit_lines:])
