"""What needs a GPU: `make gpu-check`. On a machine without one there is nothing here to collect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu-check.json"

Count = Callable[[str, int, int], None]


@pytest.fixture(scope="session")
def counts() -> Iterator[dict[str, dict[str, int]]]:
    """Exact counts by test, written to benchmarks/results at the end."""
    counts: dict[str, dict[str, int]] = {}
    yield counts
    import triton

    report = {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "differing": counts,
    }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")


@pytest.fixture
def count(counts: dict[str, dict[str, int]], request: pytest.FixtureRequest) -> Count:
    """count(what, differing, of) asserts that nothing differs, and keeps the figures."""

    def count(what: str, differing: int, of: int) -> None:
        counts[f"{request.node.name}: {what}"] = {"differ": differing, "of": of}
        assert of > 0
        assert differing == 0, what

    return count
