"""What needs a real node, and so root: `make e2e`, which CI runs before `make test`, sets TANDEM_E2E to what
`python -m images.node` made. Elsewhere there is nothing here to collect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import Cluster
from localcluster.paths import clusters_directory
from localcluster.settings import KubeletNode

MADE = os.environ.get("TANDEM_E2E", "")
collect_ignore_glob = [] if MADE else ["test_*.py"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """With a real node; the test is in its network."""
    for left in clusters_directory().glob("e2e-*"):  # of a run that is gone, and its supervisor with it
        if not Path("/proc", left.name.partition("-")[2]).exists():
            Cluster(left.name).stop()
    node = KubeletNode.model_validate_json(MADE)
    with Cluster.start(name=f"e2e-{os.getpid()}", kubelet=node) as cluster, cluster.network():
        yield cluster
