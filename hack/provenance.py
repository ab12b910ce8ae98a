"""What a committed result was measured with."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def provenance(*packages: str, commit: str = "") -> dict[str, str]:
    """The commit (`+` behind it: and changes that were not committed), and the versions of Python and `packages`.

    `commit`: where it is known and can not be looked up, in a copy of a checkout without its history.
    """
    return {"commit": commit or _commit(), "python": platform.python_version()} | {p: version(p) for p in packages}


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip() + "+" * bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown: no git checkout"
