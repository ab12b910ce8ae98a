"""What the project needs, read from pyproject.toml and constraints.txt, and the name of the environment that has it."""

from __future__ import annotations

import hashlib
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from setup.bundle import bundle_key, chosen_bundle

CONSTRAINTS = "constraints.txt"


@dataclass(frozen=True)
class Requirements:
    direct: tuple[str, ...]  # as pyproject.toml writes them, all extras together
    constraints: tuple[str, ...]  # NAME==VERSION of everything that may come along

    @classmethod
    def read(cls, root: Path) -> Requirements:
        """Of the checkout at `root`. A missing constraints file counts as empty."""
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        extras = project.get("optional-dependencies", {})
        direct = sorted({*project["dependencies"], *(line for lines in extras.values() for line in lines)})
        path = root / CONSTRAINTS
        lines = path.read_text().splitlines() if path.exists() else []
        return cls(tuple(direct), tuple(line.strip() for line in lines if line.strip() and line[0] != "#"))

    def key(self, python: str) -> str:
        """Twelve hex digits that change when another environment is needed, and only then."""
        text = "\n".join((python, *self.direct, "", *self.constraints))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def cache_dir() -> Path:
    """Where everything that can be made again is kept: `$XDG_CACHE_HOME/tandem`, else `~/.cache/tandem`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"


def environment_dir(root: Path) -> Path:
    """The virtual environment of the checkout at `root`, for the Python that runs this."""
    python = f"{sys.implementation.cache_tag}-{sys.version_info.micro}-{sys.platform}"
    if bundle := chosen_bundle():
        return cache_dir() / f"venv-bundle-{bundle_key(bundle, python)}"
    return cache_dir() / f"venv-{Requirements.read(root).key(python)}"
