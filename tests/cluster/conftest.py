"""One real control plane for the whole test session, one fresh namespace per test."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator

import pytest

from cluster.operator_kit import Operator, Story
from cluster.support import Namespace
from localcluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Shared by all xdist workers: the first one starts it, and it ends with the process that started them."""
    shared = "PYTEST_XDIST_WORKER" in os.environ
    owner = os.getppid() if shared else os.getpid()
    cluster = Cluster.start(
        name=f"test-{owner}",
        owner=owner,
        images={"python": [sys.executable]},
        restart_delay_seconds=0.5,
        restart_delay_limit_seconds=4,
    )
    yield cluster
    if not shared:
        cluster.stop()


@pytest.fixture(scope="session")
def lab_cluster() -> Iterator[Cluster]:
    """With a hollow node and without Tandem: each test brings operators of its own. Shared as `cluster` is."""
    shared = "PYTEST_XDIST_WORKER" in os.environ
    owner = os.getppid() if shared else os.getpid()
    cluster = Cluster.start(name=f"lab-{owner}", owner=owner, hollow=True)
    yield cluster
    if not shared:
        cluster.stop()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """Empty, with its default service account. Deleted afterwards, without waiting for the end."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("wait", "serviceaccount/default", f"--namespace={name}", "--for=create", "--timeout=30s")
    yield Namespace(cluster, name)
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> Iterator[Operator]:
    """Tandem as deploy/ installs it. Whatever the tests made it do, its rights must have covered."""
    operator = Operator.installed(cluster)
    yield operator
    assert operator.denied() == []


@pytest.fixture
def story(operator: Operator) -> Iterator[Story]:
    """A namespace for a user of Tandem. Deleted afterwards, without waiting for the end."""
    with Story.begun(operator) as story:
        yield story


@pytest.fixture
def another_story(operator: Operator) -> Iterator[Story]:
    with Story.begun(operator) as story:
        yield story
