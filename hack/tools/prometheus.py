"""prometheus and promtool: those on PATH, else Debian's. To build them from their module would take a hundred times
as long."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.debian import unpacked
from tools.once import ToolError


def prometheus() -> Path:
    """Raises ToolError."""
    return _program("prometheus")


def promtool() -> Path:
    """Raises ToolError."""
    return _program("promtool")


def _program(name: str) -> Path:
    if on_path := shutil.which(name):
        return Path(on_path)
    try:
        root = unpacked("prometheus", ["prometheus"], "Prometheus (20 MB, usually half a minute, only once)")
    except ToolError as error:
        instead = "install Prometheus 2.42 or newer so that prometheus and promtool are on PATH"
        raise ToolError(f"Prometheus comes from Debian's package: {error}; or {instead}") from error
    return root / "usr" / "bin" / name
