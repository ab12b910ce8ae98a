"""What needs a GPU: `make gpu-check`, which sets TANDEM_GPU. Elsewhere there is nothing here to collect, also on a
machine with a GPU: the unit tests run the same kernels in the interpreter, and a process can have only one of both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from provenance import provenance

collect_ignore_glob = [] if os.environ.get("TANDEM_GPU") and torch.cuda.is_available() else ["test_*.py"]

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu-check.json"

Count = Callable[[str, int, int], None]


COUNTS = pytest.StashKey[dict[str, dict[str, int]]]()
"""Exact counts by test, of all workers in the end."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = {}


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[COUNTS].update(node.workeroutput["counts"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    counts = session.config.stash[COUNTS]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["counts"] = counts
    elif counts:
        report = {
            "command": "make gpu-check",
            "date": datetime.now(UTC).date().isoformat(),
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            **provenance("torch", "triton", commit=os.environ.get("COMMIT", "")),
            "tests": session.testscollected,
            "failed": session.testsfailed,
            "not_run": _not_run(session),
            "counts": dict(sorted(counts.items())),
        }
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def _not_run(session: pytest.Session) -> dict[str, str]:
    """Reasons by test: what was skipped is no test that passed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    return {report.nodeid: report.longrepr[2] for report in reporter.stats.get("skipped", [])}


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Count:
    """count(what, differing, of) asserts that nothing differs, and keeps the figures."""

    def count(what: str, differing: int, of: int) -> None:
        request.config.stash[COUNTS][f"{request.node.name}: {what}"] = {"differ": differing, "of": of}
        assert of > 0
        assert differing == 0, what

    return count
