"""A worker that is not read is not told to stop either, and shows when it is heard again what it drafted meanwhile.

Before a retry it may have drafted badly; that says nothing of what comes then. What is drafted after it counts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from model.cluster import Cluster
from tandem_operator import names
from unit.world import DEAD, Life, spec

INTERVALS = 2  # after a retry, until what is drafted badly then is found: the first reading is where evidence begins


def passes(cluster: Cluster, number: int) -> None:
    for _ in range(number):
        cluster.one_pass(11)


def served_by(replicas: int) -> Cluster:
    cluster = Cluster(spec("a", replicas=replicas), requests_per_step=40)
    passes(cluster, 3)
    assert cluster.status.stable_revision
    return cluster


def unread_and_bad(replicas: int = 1) -> Cluster:
    """All workers draft badly, and none is read."""
    cluster = served_by(replicas)
    cluster.deaf = set(cluster.pods)
    cluster.lives["a"] = Life(rate=DEAD)
    passes(cluster, 16)
    assert not cluster.status.quarantined
    return cluster


def ask_for_a_retry(cluster: Cluster, value: str = "again") -> None:
    cluster.lives["a"] = Life()
    cluster.annotate(names.RETRY, value)


def all_is_well(cluster: Cluster) -> None:
    assert cluster.status.quarantined == []
    assert cluster.speculating() == {True}
    assert cluster.status.stable_revision
    assert cluster.status.unread == []


def nothing(cluster: Cluster) -> None:
    pass


def status_is_wiped(cluster: Cluster) -> None:
    cluster.wipe_status()


def record_is_lost(cluster: Cluster) -> None:
    cluster.history.clear()


def status_and_record_are_lost(cluster: Cluster) -> None:
    """Its revision is found again only when the pair is: until then nobody looks at the workers."""
    cluster.wipe_status()
    cluster.history.clear()


def operator_restarts(cluster: Cluster) -> None:
    cluster.known = None


def containers_restart(cluster: Cluster) -> None:
    for uid in cluster.pods:
        cluster.restart_container(uid)


HAPPENS = [
    nothing,
    status_is_wiped,
    record_is_lost,
    status_and_record_are_lost,
    operator_restarts,
    containers_restart,
]


def test_what_an_unread_worker_drafted_before_a_retry_says_nothing_of_what_comes_then() -> None:
    cluster = served_by(3)
    stable = cluster.status.stable_revision
    cluster.deaf = {min(cluster.pods)}
    cluster.lives["a"] = Life(rate=DEAD)
    passes(cluster, 16)
    assert [entry.revision for entry in cluster.status.quarantined] == [stable]
    assert cluster.workers[min(cluster.pods)].speculating
    ask_for_a_retry(cluster)
    cluster.deaf = set()
    passes(cluster, 4)
    assert not cluster.quarantined(stable)
    assert cluster.speculating() == {True}


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("heard_after", [0, 1, 3])
@pytest.mark.parametrize("looked_at_before", [0, 3], ids=["at once", "later"])
@pytest.mark.parametrize("happens", HAPPENS)
def test_nor_does_it_whatever_else_is_lost_before_the_retry(
    happens: Callable[[Cluster], None], looked_at_before: int, heard_after: int, replicas: int
) -> None:
    cluster = unread_and_bad(replicas)
    happens(cluster)
    passes(cluster, looked_at_before)
    ask_for_a_retry(cluster)
    passes(cluster, heard_after)
    cluster.deaf = set()
    passes(cluster, 8)
    all_is_well(cluster)


@pytest.mark.parametrize("happens", HAPPENS)
def test_nor_does_it_whatever_is_lost_between_the_retry_and_its_next_reading(
    happens: Callable[[Cluster], None],
) -> None:
    cluster = unread_and_bad()
    ask_for_a_retry(cluster)
    passes(cluster, 3)
    happens(cluster)
    passes(cluster, 1)
    cluster.deaf = set()
    passes(cluster, 8)
    all_is_well(cluster)


def test_nor_does_it_when_the_operator_dies_in_the_pass_that_sees_the_retry() -> None:
    for writes in range(8):
        cluster = unread_and_bad()
        status_is_wiped(cluster)
        ask_for_a_retry(cluster)
        cluster.one_pass(11, crash_after=writes)
        cluster.deaf = set()
        passes(cluster, 8)
        all_is_well(cluster)


@pytest.mark.parametrize("looks", [0, 2, 4, 8])
def test_nor_does_it_of_a_canary(looks: int) -> None:
    """Whether or not its weight is in force, and a window of it kept, when the retry is asked for."""
    cluster = served_by(3)
    cluster.edit(spec("b", replicas=3))
    cluster.lives["b"] = Life(rate=DEAD)
    for _ in range(2 + looks):
        passes(cluster, 1)
        cluster.deaf = {uid for uid, pod in cluster.pods.items() if pod.revision != cluster.status.stable_revision}
    assert cluster.deaf
    cluster.lives["b"] = Life()
    cluster.annotate(names.RETRY, "again")
    passes(cluster, 1)
    cluster.deaf = set()
    passes(cluster, 12)
    all_is_well(cluster)
    assert cluster.serving() == {"b": 3}


def test_nor_does_it_when_a_changed_spec_ends_the_quarantine() -> None:
    cluster = served_by(3)
    cluster.deaf = {min(cluster.pods)}
    cluster.lives["a"] = Life(rate=DEAD)
    passes(cluster, 16)
    assert cluster.quarantined(cluster.status.stable_revision)
    cluster.lives["a"] = Life()
    cluster.edit(spec("a", replicas=3, guard={"minAcceptLength": 1.2}))
    cluster.deaf = set()
    passes(cluster, 4)
    assert not cluster.quarantined(cluster.status.stable_revision)
    assert cluster.speculating() == {True}


def test_nor_does_what_a_canary_drafted_before_it_is_judged() -> None:
    cluster = served_by(3)
    analysis = {"intervalSeconds": 10, "initialDelaySeconds": 60}
    cluster.edit(spec("b", replicas=3, rollout={"steps": [{"weight": 50}], "analysis": analysis}))
    cluster.lives["b"] = Life(rate=DEAD)
    for _ in range(6):
        passes(cluster, 1)
        cluster.deaf = {uid for uid, pod in cluster.pods.items() if pod.revision != cluster.status.stable_revision}
    cluster.lives["b"] = Life()
    passes(cluster, 4)
    progress = cluster.status.progress
    assert progress is not None
    assert progress.in_force_at is not None
    assert (cluster.now - progress.in_force_at).total_seconds() > 60
    cluster.deaf = set()
    passes(cluster, 12)
    all_is_well(cluster)
    assert cluster.serving() == {"b": 3}


def test_nor_does_it_when_a_retry_is_asked_for_twice() -> None:
    cluster = unread_and_bad(3)
    heard, *others = sorted(cluster.pods)
    ask_for_a_retry(cluster, "1")
    cluster.deaf.discard(heard)
    passes(cluster, 3)
    assert cluster.status.unread == others
    cluster.deaf.add(heard)
    cluster.lives["a"] = Life(rate=DEAD)
    passes(cluster, 16)
    ask_for_a_retry(cluster, "2")
    passes(cluster, 1)
    cluster.deaf = set()
    passes(cluster, 8)
    all_is_well(cluster)


def test_one_that_is_never_read_keeps_the_others_from_nothing() -> None:
    cluster = unread_and_bad(3)
    unread = min(cluster.pods)
    ask_for_a_retry(cluster)
    cluster.deaf = {unread}
    passes(cluster, 1)
    assert cluster.status.unread == [unread]
    cluster.lives["a"] = Life(rate=DEAD)
    passes(cluster, INTERVALS)
    assert cluster.quarantined(cluster.status.stable_revision)


def test_a_worker_that_goes_unread_is_waited_for_no_more() -> None:
    cluster = unread_and_bad(3)
    ask_for_a_retry(cluster)
    gone = min(cluster.pods)
    cluster.one_pass(1)
    cluster.remove_pod(gone)
    cluster.deaf = set()
    passes(cluster, 2)
    all_is_well(cluster)


@pytest.mark.parametrize("unread_before", [False, True])
@pytest.mark.parametrize("happens", HAPPENS)
def test_what_is_drafted_badly_after_a_retry_is_found(happens: Callable[[Cluster], None], unread_before: bool) -> None:
    cluster = unread_and_bad(3) if unread_before else served_by(3)
    happens(cluster)
    passes(cluster, 3)
    stable = cluster.status.stable_revision or "none"
    ask_for_a_retry(cluster)
    cluster.lives["a"], cluster.deaf = Life(rate=DEAD), set()
    passes(cluster, INTERVALS)
    assert cluster.quarantined(cluster.status.stable_revision or stable)


def test_a_worker_that_started_after_a_retry_counts_from_its_first_draft() -> None:
    cluster = served_by(3)
    ask_for_a_retry(cluster)
    passes(cluster, 3)
    revision = cluster.status.stable_revision
    before = next(window.total for window in cluster.status.windows if window.revision == revision)
    cluster.requests_per_step = 0
    cluster.remove_pod(min(cluster.pods))
    cluster.one_pass(11)
    new = max(cluster.pods, key=lambda uid: int(uid.removeprefix("pod-")))
    cluster.deaf, cluster.requests_per_step = {new}, 1
    passes(cluster, 5)
    cluster.deaf = set()
    passes(cluster, 1)
    after = next(window.total for window in cluster.status.windows if window.revision == revision)
    assert after.drafts - before.drafts == 3 * 6 * 30
