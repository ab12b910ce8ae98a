"""What a committed result was measured with."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version

from localcluster.paths import CHECKOUT


def provenance(*packages: str) -> dict[str, str]:
    """The commit (`+` behind it: and changes that were not committed), and the versions of Python and `packages`."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout

    changed = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    commit = git("rev-parse", "HEAD").strip() + changed
    return {"commit": commit, "python": platform.python_version()} | {name: version(name) for name in packages}
