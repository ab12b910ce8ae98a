"""Where things lie: the user's cache directory and this checkout."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def cache_directory() -> Path:
    """`tandem` under XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tandem"


def clusters_directory() -> Path:
    return cache_directory() / "clusters"
