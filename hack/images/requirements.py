"""Pinned requirements of an image, for pip: `python requirements.py [EXTRA]` beside pyproject.toml and constraints.txt.

Only the standard library is used: this runs in the image that is being built.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(folder: Path, extras: list[str]) -> list[str]:
    """What the project and `extras` name, and the constraints that hold for whatever comes along."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return [*named, f"--constraint {folder / 'constraints.txt'}"]


if __name__ == "__main__":
    print("\n".join(requirements(Path.cwd(), sys.argv[1:])))
