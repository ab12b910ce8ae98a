"""Where things lie: the user's cache directory and this checkout."""

from __future__ import annotations

from pathlib import Path

from tools.once import cache_directory

CHECKOUT = Path(__file__).resolve().parents[2]


def clusters_directory() -> Path:
    return cache_directory() / "clusters"
