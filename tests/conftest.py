"""No test times: a property holds on a machine that is busy, too. And tests that wait do not wait for each other."""

from __future__ import annotations

import os
from itertools import islice

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

COMPUTING = 2
"""Processes that begin with the tests that compute, one for each core of a small machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest-xdist gives each process an equal run of tests in their order, and who is done early takes over from the
    end of what others have left. So the tests that wait for pods are dealt out to all processes but two, which begin
    with them: computing and waiting go on beside each other from the start, and no long wait is left for the end."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    patient = max(1, processes - COMPUTING)
    waiting = [item for item in items if item.nodeid.startswith("tests/cluster/")]
    others = iter([item for item in items if not item.nodeid.startswith("tests/cluster/")])
    dealt: list[pytest.Item] = []
    for process in range(processes):
        own = waiting[process::patient] if process < patient else []
        dealt += [*own, *islice(others, max(0, len(items) // processes - len(own)))]
    items[:] = [*dealt, *others]
