"""What is made once in the cache, by whoever comes first."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ToolError(Exception):
    """A sentence for the user: what failed and what to do."""


def cache_directory() -> Path:
    """`tandem` under XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tandem"


@contextmanager
def one_at_a_time(path: Path, waiting: str) -> Iterator[bool]:
    """Tells whether `path` is still missing, and keeps others waiting, who are told so, while the block makes it.

    The lock is on the folder itself, so it leaves no file and ends with the process.
    """
    if path.exists():
        yield False
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield not path.exists()
    finally:
        os.close(handle)
