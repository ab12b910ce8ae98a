"""Workers that start late, crash, lie or fall silent: what the user reads, and that nobody else notices."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cluster.operator_kit import Story, condition, simulated
from tandem_operator.api import SpeculativeDeployment

pytestmark = pytest.mark.cluster

SOON = {"progressDeadlineSeconds": 10}


def installed(story: Story, **fields: Any) -> str:
    story.apply(simulated(**fields))
    return story.until_stable()


def until_looked_at_again(story: Story, times: int) -> SpeculativeDeployment:
    """Until acceptance was sampled some more."""
    first = story.until("acceptance is looked at", lambda shown: shown.status.windows).status.windows[0].sampled_at
    return story.until(
        f"{times} more looks at acceptance",
        lambda shown: (shown.status.windows[0].sampled_at - first).total_seconds() >= times,
    )


# --- starting --------------------------------------------------------------------------------------------------------


def test_a_worker_that_loads_for_long_is_waited_for(story: Story) -> None:
    story.apply(simulated(sim={"start_after_seconds": 3, "ready_after_seconds": 6}))
    waiting = story.until_condition("Progressing", "True", "WaitingForWorkers")
    assert re.fullmatch(r"canary \w{10}: 0 of 1 workers ready", waiting.message)
    story.until_condition("Ready", "False", "Starting")
    story.until_stable()
    assert [pod.restarts for pod in story.pods()] == [0]


def test_a_worker_that_is_killed_at_its_start_at_first_comes_up_in_the_end(story: Story) -> None:
    story.apply(simulated(sim={"crash_starts": 2, "crash_exit_code": 137, "state_file": "/tmp/starts"}))
    story.until("the reason is told", lambda shown: "(exit 137)" in condition(shown, "Progressing").message)
    story.until_stable()
    assert [pod.restarts for pod in story.pods()] == [2]


def test_a_canary_that_crashes_is_taken_back_at_its_deadline_with_its_last_words(story: Story) -> None:
    stable = installed(story, replicas=2, rollout=SOON)
    story.apply(simulated(replicas=2, rollout=SOON, sim={"crash_starts": 99, "state_file": "/tmp/starts"}))
    waiting = story.until(
        "its words are told", lambda shown: "CrashLoopBackOff" in condition(shown, "Progressing").message
    )
    assert "(exit 1) simulator: start" in condition(waiting, "Progressing").message
    said = story.until_condition("RolledBack", "True", "ProgressDeadlineExceeded")
    assert re.search(r"0 of 1 workers became ready in 10 s; pair-\S+: .*that were told to crash", said.message)
    story.until("nothing crash-loops", lambda _: {pod.revision for pod in story.pods()} == {stable})
    assert story.serving() == {stable: 2}
    assert condition(story.show(), "Ready").status == "True"
    assert story.event("Quarantined").type == "Warning"


def test_a_first_install_that_crashes_is_given_up_at_its_deadline(story: Story) -> None:
    story.apply(simulated(rollout=SOON, sim={"failure_reason": "CannotLoad"}))
    said = story.until_condition("RolledBack", "True", "ProgressDeadlineExceeded")
    assert "CannotLoad: Simulated" in said.message
    assert "Now nothing serves" in said.message
    story.until("nothing crash-loops", lambda _: story.pods() == [])
    assert condition(story.show(), "Ready").status == "False"


def test_a_worker_that_never_gets_ready_is_given_up_at_its_deadline(story: Story) -> None:
    stable = installed(story, rollout=SOON)
    story.apply(simulated(rollout=SOON, sim={"never_ready": True}))
    said = story.until_condition("RolledBack", "True", "ProgressDeadlineExceeded")
    assert "0 of 1 workers became ready in 10 s" in said.message
    story.until("only the stable revision is left", lambda _: {pod.revision for pod in story.pods()} == {stable})


def test_an_image_that_cannot_be_pulled_is_named(story: Story) -> None:
    story.apply(simulated(engine={"image": "localhost/no-such-engine:1"}))
    story.until("the image is named", lambda shown: "ImagePull" in condition(shown, "Progressing").message)
    assert "no-such-engine" in condition(story.show(), "Progressing").message


def test_a_worker_that_finds_no_room_says_what_it_lacks(story: Story) -> None:
    story.apply(simulated(resources={"limits": {"nvidia.com/gpu": 99}}))
    story.until("it waits for GPUs", lambda shown: "Unschedulable" in condition(shown, "Progressing").message)
    assert "Insufficient nvidia.com/gpu" in condition(story.show(), "Progressing").message


def test_a_claim_that_does_not_exist_is_named(story: Story) -> None:
    story.apply(simulated(drafter={"source": {"pvc": {"claimName": "nowhere"}}}))
    said = story.until_condition("Validated", "Unknown", "Waiting")
    assert 'persistentvolumeclaim "nowhere" not found' in said.message


# --- serving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "why"),
    [("metrics_missing", "/metrics answers with status 404"), ("metrics_nan", "/metrics: tandem_drafts_total is nan")],
)
def test_metrics_that_cannot_be_read_are_no_evidence(story: Story, fault: str, why: str) -> None:
    revision = installed(story)
    with story.traffic():
        story.until("acceptance is shown", lambda shown: shown.status.acceptance)
        (pod,) = story.ready_pods()
        pod.tell(**{fault: True, "acceptance": [0.0]})
        said = story.until_condition("MetricsAvailable", "False", "ScrapeFailed")
        assert said.message == f"no usable /metrics from {pod.name}: {why}: counts as no evidence, neither good nor bad"
        shown = until_looked_at_again(story, 3)
        assert condition(shown, "RolledBack").status == "False"
        assert condition(shown, "SpeculationActive").status == "True"
        assert shown.status.quarantined == []
        pod.tell(**{fault: False, "acceptance": [0.9]})
        story.until_condition("MetricsAvailable", "True", "Scraped")
    assert story.serving() == {revision: 1}


def test_counters_that_stand_still_are_no_evidence(story: Story) -> None:
    revision = installed(story, sim={"freeze_counters": True})
    with story.traffic() as traffic:
        shown = until_looked_at_again(story, 4)
    assert traffic.answered > 5
    assert shown.status.windows[0].counts.drafts == 0
    assert shown.status.acceptance is None
    assert condition(shown, "RolledBack").status == "False"
    assert condition(shown, "SpeculationActive").status == "True"
    assert story.serving() == {revision: 1}


def test_a_canary_without_evidence_is_neither_promoted_nor_taken_back(story: Story) -> None:
    stable = installed(story)
    with story.traffic():
        story.apply(simulated(sim={"metrics_missing": True}))
        said = story.until_condition("CanaryHealthy", "Unknown", "MetricsUnavailable")
        assert "/metrics answers with status 404" in said.message
        shown = until_looked_at_again(story, 4)
    assert (shown.status.stable_revision, shown.status.weight) == (stable, 50)
    assert condition(shown, "Progressing").reason == "CanaryStep"
    assert condition(shown, "RolledBack").status == "False"


def test_counters_that_start_anew_neither_lose_nor_invent_evidence(story: Story) -> None:
    before = installed(story)
    with story.traffic():
        story.apply(simulated(sim={"seed": 1, "reset_after_seconds": 3.5}))
        after = story.until_stable()
        story.until("acceptance is shown", lambda shown: shown.status.acceptance)
        (pod,) = story.ready_pods(revision=after)
        for _ in range(3):
            pod.tell(reset_counters=True)
            shown = until_looked_at_again(story, 1)
            assert shown.status.acceptance is not None
            assert 2 < shown.status.acceptance.accept_length < 6
            assert all(window.counts.drafts >= 0 for window in shown.status.windows)
    assert after != before
    assert condition(story.show(), "RolledBack").status == "False"


def test_an_engine_that_serves_no_model_is_taken_back_when_its_time_is_up(story: Story) -> None:
    soon = {"analysis": {"intervalSeconds": 1, "timeoutSeconds": 20}}
    stable = installed(story, rollout=soon)
    story.apply(simulated(rollout=soon, sim={"empty_model_list": True}))
    story.until_condition("CanaryHealthy", "Unknown", "TooFewDrafts")
    said = story.until_condition("RolledBack", "True", "AnalysisTimedOut")
    assert (
        "not found healthy in 20 s (rollout.analysis.timeoutSeconds): 0 drafts from 0 requests so far" in said.message
    )
    story.until("only the stable revision serves", lambda _: story.serving() == {stable: 1})


def test_a_worker_that_hangs_does_not_hold_up_the_others(story: Story) -> None:
    story.apply(simulated(), name="other")
    installed(story)
    (pod,) = story.ready_pods()
    pod.tell(hang=True)
    story.apply(simulated(replicas=2), name="other")
    story.until("the other is scaled", lambda _: sum(story.serving("other").values()) == 2, name="other")
    story.until_condition("Ready", "False", "TooFewWorkers")
    pod.tell(hang=False)
    story.until_condition("Ready", "True", "Serving")


def test_a_worker_that_dies_is_replaced_and_read_from_zero(story: Story) -> None:
    revision = installed(story, sim={"die_after_seconds": 6})
    with story.traffic():
        story.until("it was restarted", lambda _: any(pod.restarts for pod in story.pods()))
        story.until("acceptance is shown", lambda shown: shown.status.acceptance)
        shown = story.until("it serves", lambda _: story.serving() == {revision: 1})
    assert condition(shown, "RolledBack").status == "False"
