"""No test times: a property holds on a machine that is busy, too. And tests that wait do not wait for each other."""

from __future__ import annotations

import os
from itertools import islice

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

WAITING = ("tests/e2e/", "tests/cluster/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest-xdist deals out equal runs of tests in their order, and those who are done early take over from the end of
    what others have left. So every process begins with its share of the tests that wait for pods, and the long ones are
    not left for the end."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    waiting = sorted(
        (item for item in items if item.nodeid.startswith(WAITING)),
        key=lambda item: not item.nodeid.startswith(WAITING[0]),
    )
    others = iter([item for item in items if not item.nodeid.startswith(WAITING)])
    dealt: list[pytest.Item] = []
    for process in range(processes):
        own = waiting[process::processes]
        rest = len(items) // processes - len(own)
        dealt += [*own, *islice(others, max(0, rest))]
    items[:] = [*dealt, *others]
