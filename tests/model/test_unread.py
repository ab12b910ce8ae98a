"""What was drafted before a retry, or before a quarantine ended in any other way, says nothing of what comes then.

It may have been read already, or be read only now: a worker that is not read is not told to stop either, and shows when
it is heard again what it drafted meanwhile. What is drafted afterwards counts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from model.cluster import Cluster, Timed
from tandem_operator import names
from tandem_worker.contract import SelfTestOutcome
from unit.world import DEAD, HEALTHY, Life, spec

INTERVALS = 2  # after a retry, until what is drafted badly then is found: the first reading is where evidence begins
POOR = 0.2  # accepted now and then, and below the floor
GAPS = [1, 11]  # seconds between passes: within an interval, and each of them due


def passes(cluster: Cluster, number: int, gap: int = 11) -> None:
    """As long as so many intervals."""
    for _ in range(number * 11 // gap):
        cluster.one_pass(gap)


def served_by(replicas: int) -> Cluster:
    cluster = Timed(spec("a", replicas=replicas), requests_per_step=40)
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


def edit_the_spec(cluster: Cluster) -> None:
    cluster.edit(spec("a", replicas=cluster.spec.replicas, guard={"minAcceptLength": 1.25}))


def take_the_annotation_away(cluster: Cluster) -> None:
    cluster.annotations, cluster.version = {}, cluster.version + 1


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


ENDS = [ask_for_a_retry, edit_the_spec, take_the_annotation_away]  # of a quarantine


def quarantined_for(rate: float, replicas: int, end: Callable[[Cluster], None], unread: int = 0) -> Cluster:
    """`unread`: so many of its workers were not, from before it drafted badly until now."""
    cluster = served_by(replicas)
    if end is take_the_annotation_away:
        ask_for_a_retry(cluster, "before")
        passes(cluster, 3)
    cluster.deaf = set(sorted(cluster.pods)[:unread])
    cluster.lives["a"] = Life(rate=rate)
    for _ in range(40):
        cluster.one_pass(11)
        if cluster.status.quarantined:
            break
    assert cluster.quarantined(cluster.status.stable_revision)
    return cluster


def stays_well(cluster: Cluster, gap: int) -> None:
    for _ in range(8 * 11 // gap):
        cluster.one_pass(gap)
        assert not cluster.quarantined(cluster.status.stable_revision)
    assert cluster.speculating() == {True}
    assert cluster.status.unread == []


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("requests", [0, 1, 40])
@pytest.mark.parametrize("rate", [DEAD, POOR])
@pytest.mark.parametrize("end", ENDS)
def test_what_led_to_a_quarantine_does_not_lead_to_the_next(
    end: Callable[[Cluster], None], rate: float, requests: int, gap: int
) -> None:
    """However soon it ends, and however little is drafted then."""
    cluster = quarantined_for(rate, 1, end)
    cluster.lives["a"], cluster.requests_per_step = Life(), requests
    end(cluster)
    stays_well(cluster, gap)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("passes_in_quarantine", [0, 1, 12])
@pytest.mark.parametrize("end", ENDS)
def test_what_an_unread_worker_drafted_before_a_quarantine_ended_does_not_count_afterwards(
    end: Callable[[Cluster], None], passes_in_quarantine: int, gap: int
) -> None:
    cluster = quarantined_for(DEAD, 3, end, unread=1)
    for _ in range(passes_in_quarantine):
        cluster.one_pass(gap)
    cluster.lives["a"], cluster.deaf = Life(), set()
    end(cluster)
    stays_well(cluster, gap)


@pytest.mark.parametrize("end", ENDS)
def test_what_a_worker_that_started_in_a_quarantine_drafted_does_not_count_afterwards(
    end: Callable[[Cluster], None],
) -> None:
    """Before it was told to stop, and between two looks."""
    cluster = quarantined_for(DEAD, 3, end)
    for uid in cluster.pods:
        cluster.restart_container(uid)
    cluster.remove_pod(min(cluster.pods))
    cluster.one_pass(1)
    cluster.one_pass(1)
    cluster.lives["a"] = Life()
    end(cluster)
    stays_well(cluster, gap=1)


@pytest.mark.parametrize("gap", GAPS)
def test_half_an_alarm_is_forgotten_with_a_retry(gap: int) -> None:
    cluster = served_by(1)
    cluster.requests_per_step, cluster.lives["a"] = 1, Life(rate=POOR)
    passes(cluster, 40)
    assert cluster.status.windows[0].below_floor.value > 2
    assert not cluster.status.quarantined
    ask_for_a_retry(cluster)
    cluster.one_pass(gap)
    window = cluster.status.windows[0]
    assert (window.counts.drafts, window.judged.drafts, window.barren.drafts) == (0, 0, 0)
    assert window.below_floor.value == window.below_baseline.value == 0


def test_a_half_judged_canary_is_judged_anew_after_a_retry() -> None:
    """Where it stays while the pair is validated anew: the rollout is paused."""
    cluster = served_by(3)
    cluster.requests_per_step, cluster.lives["b"] = 1, Life(rate=0.5)
    cluster.edit(spec("b", replicas=3))
    passes(cluster, 8)
    cluster.edit(spec("b", replicas=3, paused=True))
    before, canary = cluster.status.windows, cluster.status.canary_revision
    assert next(w for w in before if w.revision == canary).counts.drafts
    ask_for_a_retry(cluster)
    cluster.one_pass(1)
    windows = {w.revision: w for w in cluster.status.windows}
    assert windows[canary].counts.drafts == 0
    stable = windows[cluster.status.stable_revision]
    assert windows[canary].beside_from == stable.total, "it is compared with what is drafted beside it from now on"


@pytest.mark.parametrize("read_before", [False, True])
def test_what_was_drafted_before_a_retry_does_not_make_a_revision_too_slow(read_before: bool) -> None:
    """Step times are of the workers' whole lives, accept length is not."""
    cluster = served_by(1)
    cluster.edit(spec("a", replicas=1, guard={"onCollapse": "Alert"}))
    cluster.deaf = set() if read_before else set(cluster.pods)
    cluster.lives["a"] = Life(rate=DEAD)
    passes(cluster, 40)
    cluster.edit(spec("a", replicas=1))
    ask_for_a_retry(cluster)
    cluster.one_pass(1)
    cluster.deaf = set()
    stays_well(cluster, gap=11)
    assert cluster.status.acceptance is not None
    assert cluster.status.acceptance.speedup == pytest.approx((1 + HEALTHY) * 10 / 14, abs=0.01)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("heard_after", [0, 1, 3])
@pytest.mark.parametrize("looked_at_before", [0, 3], ids=["at once", "later"])
@pytest.mark.parametrize("happens", HAPPENS)
def test_what_was_drafted_unread_before_a_retry_does_not_count_after_it_whatever_was_lost_before(
    happens: Callable[[Cluster], None], looked_at_before: int, heard_after: int, replicas: int, gap: int
) -> None:
    cluster = unread_and_bad(replicas)
    happens(cluster)
    passes(cluster, looked_at_before)
    ask_for_a_retry(cluster)
    for _ in range(heard_after):
        cluster.one_pass(gap)
    cluster.deaf = set()
    passes(cluster, 8, gap)
    all_is_well(cluster)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("happens", HAPPENS)
def test_what_was_drafted_unread_before_a_retry_does_not_count_after_it_whatever_is_lost_until_it_is_read(
    happens: Callable[[Cluster], None], gap: int
) -> None:
    cluster = unread_and_bad()
    ask_for_a_retry(cluster)
    for _ in range(3):
        cluster.one_pass(gap)
    happens(cluster)
    cluster.one_pass(gap)
    cluster.deaf = set()
    passes(cluster, 8, gap)
    all_is_well(cluster)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("writes", range(8))
def test_evidence_begins_anew_though_the_operator_dies_in_the_pass_that_sees_the_retry(writes: int, gap: int) -> None:
    cluster = unread_and_bad()
    status_is_wiped(cluster)
    ask_for_a_retry(cluster)
    cluster.one_pass(gap, crash_after=writes)
    cluster.deaf = set()
    passes(cluster, 8, gap)
    all_is_well(cluster)


def canary_is_not_read(cluster: Cluster, looks: int) -> None:
    for _ in range(looks):
        passes(cluster, 1)
        cluster.deaf = {uid for uid, pod in cluster.pods.items() if pod.revision != cluster.status.stable_revision}


@pytest.mark.parametrize("looks", [0, 2, 4, 8])
def test_a_canary_is_not_taken_back_for_what_it_drafted_unread_before_a_retry(looks: int) -> None:
    """Whether or not its weight is in force, and a window of it kept, when the retry is asked for."""
    cluster = served_by(3)
    cluster.edit(spec("b", replicas=3))
    cluster.lives["b"] = Life(rate=DEAD)
    canary_is_not_read(cluster, 2 + looks)
    assert cluster.deaf
    cluster.lives["b"] = Life()
    cluster.annotate(names.RETRY, "again")
    passes(cluster, 1)
    cluster.deaf = set()
    passes(cluster, 12)
    all_is_well(cluster)
    assert cluster.serving() == {"b": 3}


def test_a_canary_is_not_taken_back_for_what_it_drafted_unread_before_its_initial_delay_was_over() -> None:
    cluster = served_by(3)
    analysis = {"intervalSeconds": 10, "initialDelaySeconds": 60}
    cluster.edit(spec("b", replicas=3, rollout={"steps": [{"weight": 50}], "analysis": analysis}))
    cluster.lives["b"] = Life(rate=DEAD)
    canary_is_not_read(cluster, 6)
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


def test_a_second_retry_begins_evidence_anew_also_of_workers_that_were_read_after_the_first() -> None:
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


def test_a_worker_that_is_never_read_after_a_retry_does_not_hide_what_the_others_draft_badly() -> None:
    cluster = unread_and_bad(3)
    unread = min(cluster.pods)
    ask_for_a_retry(cluster)
    cluster.deaf = {unread}
    passes(cluster, 1)
    assert cluster.status.unread == [unread]
    cluster.lives["a"] = Life(rate=DEAD)
    passes(cluster, INTERVALS)
    assert cluster.quarantined(cluster.status.stable_revision)


def test_a_worker_that_goes_before_it_is_read_is_no_longer_listed() -> None:
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
def test_what_is_drafted_badly_after_a_retry_is_found_at_the_second_reading(
    happens: Callable[[Cluster], None], unread_before: bool
) -> None:
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


NO_LIFE = Life(self_test=SelfTestOutcome.NO_LIFE)


def workers_without_life_are_seen_only_after_a_retry(cluster: Cluster, life: Life) -> None:
    """They start, and are ready and not heard until somebody has asked for a retry. `life`: of who starts later."""
    cluster.lives["a"] = NO_LIFE
    for uid in list(cluster.pods):
        cluster.remove_pod(uid)
    while not cluster.pods:
        cluster.one_pass(1)
    cluster.deaf = set(cluster.pods)
    passes(cluster, 3)
    ask_for_a_retry(cluster)
    cluster.lives["a"] = life
    cluster.one_pass(1)
    cluster.deaf = set()
    passes(cluster, 8)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_self_test_that_failed_before_a_retry_and_is_seen_after_it_is_done_again(replicas: int) -> None:
    cluster = served_by(replicas)
    workers_without_life_are_seen_only_after_a_retry(cluster, Life())
    assert cluster.condition("RolledBack")[0] == "False"
    assert (cluster.speculating(), cluster.status.unread) == ({True}, [])


def test_a_self_test_that_fails_again_after_a_retry_is_believed() -> None:
    cluster = served_by(1)
    workers_without_life_are_seen_only_after_a_retry(cluster, NO_LIFE)
    assert cluster.condition("SpeculationActive")[:2] == ("False", "SelfTestFailed")
    assert cluster.speculating() == {False}


def test_the_self_test_of_a_first_install_is_done_again_when_it_was_not_seen_before_a_retry() -> None:
    cluster = Timed(spec("a"), requests_per_step=40)
    workers_without_life_are_seen_only_after_a_retry(cluster, Life())
    assert cluster.condition("RolledBack")[0] == "False"
    assert (cluster.speculating(), cluster.serving()) == ({True}, {"a": 1})


@pytest.mark.parametrize("delay", [0, 60])
def test_a_retry_of_long_ago_excuses_no_canary(delay: int) -> None:
    cluster = served_by(3)
    cluster.annotate(names.RETRY, "long ago")
    passes(cluster, 4)
    analysis = {"intervalSeconds": 10, "initialDelaySeconds": delay}
    cluster.lives["b"] = NO_LIFE
    cluster.edit(spec("b", replicas=3, rollout={"steps": [{"weight": 50}], "analysis": analysis}))
    passes(cluster, 8)
    assert [(q.reason, bool(q.spec)) for q in cluster.status.quarantined] == [("SelfTestFailed", True)]
    assert cluster.serving() == {"a": 3}
