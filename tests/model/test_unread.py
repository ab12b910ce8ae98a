"""A worker that is not read is not told to stop either, and shows when it is heard again what it drafted meanwhile."""

from __future__ import annotations

from model.cluster import Cluster
from tandem_operator import names
from unit.world import DEAD, Life, spec


def test_what_an_unread_worker_drafted_before_a_retry_says_nothing_of_what_comes_then() -> None:
    cluster = Cluster(spec("a", replicas=3), requests_per_step=40)
    for _ in range(3):
        cluster.one_pass(11)
    stable = cluster.status.stable_revision
    cluster.deaf = {min(cluster.pods)}
    cluster.lives["a"] = Life(rate=DEAD)
    for _ in range(16):
        cluster.one_pass(11)
    assert [entry.revision for entry in cluster.status.quarantined] == [stable]
    assert cluster.workers[min(cluster.pods)].speculating
    cluster.lives["a"], cluster.deaf = Life(), set()
    cluster.annotate(names.RETRY, "again")
    for _ in range(4):
        cluster.one_pass(11)
    assert not cluster.quarantined(stable)
    assert cluster.speculating() == {True}
