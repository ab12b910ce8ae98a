"""Which packages running Tandem needs, told from the metadata of those that are installed here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Set
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("pytest-asyncio",)
"""What `make gpu-check` needs beside pytest itself."""


def read_names(text: str) -> set[str]:
    """Package names, one a line, as PyPI writes them; `#` begins a comment."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {canonicalize_name(line) for line in lines if line}


def needed(constraints: Iterable[str], python: str, has: Set[str]) -> set[str]:
    """Operator, worker and tests, with all that they need, as far as `constraints` pin it. What the machine `has`
    brought its own dependencies along."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {canonicalize_name(pin.partition("==")[0]) for pin in constraints}
    waiting = [Requirement(line) for line in _direct(project)]
    found: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or name in has or name not in pinned:
            continue
        found.add(name)
        waiting += [wanted for wanted in _requirements(name) if _applies(wanted, requirement.extras, python)]
    return found


def _direct(project: dict[str, list[str]] | dict[str, dict[str, list[str]]]) -> list[str]:
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    return [*project["dependencies"], *extras["worker"], *TESTS]


def _requirements(name: str) -> list[Requirement]:
    try:
        return [Requirement(line) for line in requires(name) or ()]
    except PackageNotFoundError:  # for other machines only
        return []


def _applies(requirement: Requirement, extras: set[str], python: str) -> bool:
    if requirement.marker is None:
        return True
    machine = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    return any(requirement.marker.evaluate({**machine, "extra": extra}) for extra in ("", *extras))
