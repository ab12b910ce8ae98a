"""Writes constraints.txt: what pip would choose today for all of pyproject.toml, without installing any of it."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from setup.requirements import CONSTRAINTS, Requirements
from setup.steps import run_step, say

OLDEST_PYTHON = (3, 11)


def write_constraints(root: Path) -> None:
    """Raises SetupError when pip finds no solution."""
    if sys.version_info[:2] != OLDEST_PYTHON:
        # A newer Python would choose versions that the oldest one cannot install.
        say("warning: constraints are meant to be made by Python 3.11 (make constraints PYTHON=python3.11)")
    say("asking the package index for the newest versions that fit together, usually 1 to 3 minutes")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input"]
        command = [*pip, "--report", str(report), *Requirements.read(root).direct]
        collected: list[str] = []

        def note(line: str) -> None:
            if line.startswith("Collecting "):
                collected.append(line)

        run_step(command, Path(scratch) / "log", note, lambda: f"{len(collected)} packages looked at")
        pins = pins_of(json.loads(report.read_text()))
    text = f"{header()}\n" + "\n".join(pins) + "\n"
    (root / CONSTRAINTS).write_text(text)
    say(f"{CONSTRAINTS}: {len(pins)} packages")


def header() -> str:
    return f"# Made by `make constraints` with Python {sys.version_info[0]}.{sys.version_info[1]}: do not edit."


def pins_of(report: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    """`NAME==VERSION` lines, sorted, of a report as `pip install --report` writes it."""
    pins = {f"{item['metadata']['name']}=={item['metadata']['version']}" for item in report["install"]}
    return sorted(pins, key=str.lower)
