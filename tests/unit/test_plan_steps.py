"""The steps of a canary: how long it stays at one, what lets it go on, and what it does without evidence."""

from __future__ import annotations

import pytest

from unit.world import DEAD, HEALTHY, WEAK, Life, World, spec

FIELD = dict[str, object]


def rollout(*steps: FIELD, analysis: FIELD | None = None, **fields: object) -> FIELD:
    return {"steps": list(steps), "analysis": {"intervalSeconds": 10, **(analysis or {})}, **fields}


def at_a_step(*steps: FIELD, replicas: int = 2, life: Life | None = None, **fields: object) -> World:
    """A canary of drafter `b` beside the stable `a`, with all its workers ready."""
    world = World(spec("a", replicas=replicas)).run(6)
    world.lives["b"] = life or Life()
    edited = {"rollout": rollout(*(steps or ({"weight": 50},))), **fields}
    world.edit(spec("b", replicas=replicas, **edited))
    while not world.serving().get("b"):
        world.step()
    return world


def said(world: World, reason: str) -> list[str]:
    return [event for event in world.events if event.startswith(f"{reason}: ")]


# --- pauses ----------------------------------------------------------------------------------------------------------


def test_a_timed_pause_holds_a_healthy_canary_for_as_long_as_it_says() -> None:
    world = at_a_step({"weight": 50, "pause": {"seconds": 120}})
    world.run(9)
    assert world.serving() == {"a": 1, "b": 1}
    assert world.condition("Progressing")[:2] == ("True", "Paused")
    assert "is healthy and stays until 2026-01-01 00:0" in world.condition("Progressing")[2]
    assert len(said(world, "CanaryPaused")) == 1
    world.run(6)
    assert world.serving() == {"b": 2}


def test_a_pause_without_a_time_waits_for_a_person() -> None:
    world = at_a_step({"weight": 50, "pause": {}}).run(60)
    revision = world.status.canary_revision
    assert world.serving() == {"a": 1, "b": 1}
    assert world.condition("Progressing")[1] == "Paused"
    assert f"annotate with tandem.dev/promote={revision}" in world.condition("Progressing")[2]
    assert len(said(world, "CanaryPaused")) == 1


def test_a_canary_that_was_found_healthy_stays_so_while_nobody_asks_it_anything() -> None:
    world = at_a_step({"weight": 50, "pause": {}}).run(6)
    world.requests_per_step = 0
    for _ in range(6):
        world.step()
        assert world.condition("CanaryHealthy")[0] == "True"


def test_a_canary_that_collapses_in_its_pause_is_taken_back() -> None:
    world = at_a_step({"weight": 50, "pause": {}}).run(10)
    assert world.condition("Progressing")[1] == "Paused"
    world.lives["b"] = Life(rate=DEAD)
    world.run(6)
    assert world.serving() == {"a": 2}
    assert world.condition("RolledBack")[0] == "True"


def test_a_pause_does_not_spare_the_verdict() -> None:
    world = at_a_step({"weight": 50, "pause": {"seconds": 30}})
    world.requests_per_step = 0
    world.run(10)
    assert world.condition("Progressing")[1] == "CanaryStep", "the pause is over, and nothing is known"
    world.requests_per_step = 10
    world.run(6)
    assert world.serving() == {"b": 2}


def test_a_pause_that_is_taken_out_of_the_spec_is_over() -> None:
    world = at_a_step({"weight": 50, "pause": {}}).run(6)
    world.edit(spec("b", replicas=2, rollout=rollout({"weight": 50})))
    world.run(4)
    assert world.serving() == {"b": 2}


# --- the analysis of a step ------------------------------------------------------------------------------------------


def test_what_a_canary_shows_in_its_first_seconds_is_not_judged() -> None:
    world = at_a_step(life=Life(rate=DEAD), rollout=rollout({"weight": 50}, analysis={"initialDelaySeconds": 60}))
    world.run(4)
    assert world.status.quarantined == []
    assert "initialDelaySeconds" in world.condition("Progressing")[2]
    world.lives["b"] = Life(rate=HEALTHY)
    world.run(6)
    assert world.serving() == {"b": 2}, "cold at first, and well when it counted"


def test_a_canary_that_is_bad_after_its_first_seconds_is_taken_back() -> None:
    slow = rollout({"weight": 50}, analysis={"initialDelaySeconds": 60})
    world = at_a_step(life=Life(rate=DEAD), rollout=slow).run(12)
    assert world.serving() == {"a": 2}


def without_evidence(**analysis: object) -> World:
    """At its step no request ever ends: an engine that answers only errors, say."""
    world = at_a_step(rollout=rollout({"weight": 50}, analysis={"timeoutSeconds": 100, **analysis}))
    world.requests_per_step = 0
    return world


def test_a_step_without_evidence_ends_with_a_rollback() -> None:
    world = without_evidence().run(4)
    assert world.status.quarantined == []
    world.run(10)
    assert world.serving() == {"a": 2}
    assert world.condition("RolledBack")[:2] == ("True", "AnalysisTimedOut")
    assert "not found healthy in 100 s (rollout.analysis.timeoutSeconds): " in world.condition("RolledBack")[2]
    assert len(said(world, "RolledBack")) == 1


def test_a_step_without_evidence_is_held_for_a_person_if_asked_for() -> None:
    world = without_evidence(onInconclusive="Hold").run(40)
    assert world.serving() == {"a": 1, "b": 1}
    assert world.condition("Progressing")[:2] == ("False", "AnalysisTimedOut")
    assert "tandem.dev/abort=" in world.condition("Progressing")[2]
    assert len(said(world, "AnalysisTimedOut")) == 1
    world.requests_per_step = 10
    world.run(6)
    assert world.serving() == {"b": 2}, "evidence that comes late is evidence"


def test_the_time_of_a_step_counts_from_when_its_workers_are_ready() -> None:
    world = World(spec("a", replicas=2)).run(6)
    world.lives["b"] = Life(starts=False)
    world.edit(spec("b", replicas=2, rollout=rollout({"weight": 50}, analysis={"timeoutSeconds": 100})))
    world.run(20)
    assert world.status.quarantined == []
    world.lives["b"] = Life()
    world.run(8)
    assert world.serving() == {"b": 2}


def test_a_dry_run_records_and_tells_a_collapse_and_goes_on() -> None:
    world = at_a_step(life=Life(rate=WEAK), rollout=rollout({"weight": 50}, analysis={"dryRun": True}))
    world.step()
    while world.status.canary_revision:
        world.step()
    assert world.status.quarantined == []
    assert world.serving().get("b")
    (told,) = said(world, "Collapsed")
    assert "accept length 1.05" in told
    assert told.endswith("rollout.analysis.dryRun is on")
    assert [m.outcome for m in world.status.measurements if m.test == "Gate"] == ["Collapsed"]


def test_a_dry_run_without_evidence_goes_on_when_its_time_is_up() -> None:
    world = without_evidence(dryRun=True).run(14)
    assert world.serving() == {"b": 2}


def test_alert_holds_a_bad_canary_for_a_person_and_says_so_once() -> None:
    world = at_a_step(life=Life(rate=WEAK), guard={"onCollapse": "Alert"}).run(30)
    assert world.serving() == {"a": 1, "b": 1}
    assert world.status.quarantined == []
    assert world.condition("CanaryHealthy")[:2] == ("False", "AcceptLengthBelowFloor")
    assert world.condition("Progressing")[:2] == ("False", "CanaryUnhealthy")
    for _ in range(5):
        world.step(seconds=2)
        assert world.condition("Progressing")[1] == "CanaryUnhealthy", "also between two looks"
    for _ in range(5):
        world.step(seconds=2000)
    assert world.serving() == {"a": 1, "b": 1}, "and for as long as nobody does anything"
    assert len(said(world, "Collapsed")) == 1


# --- the guard in steady state ---------------------------------------------------------------------------------------


def test_a_guard_that_runs_dry_tells_a_collapse_and_does_nothing() -> None:
    world = World(spec("a", replicas=2, guard={"dryRun": True})).run(6)
    world.lives["a"] = Life(rate=DEAD)
    world.run(6)
    assert world.status.quarantined == []
    assert world.speculating() == {True}
    assert said(world, "Collapsed")[0].endswith("guard.dryRun is on")
    world.edit(spec("a", replicas=2))
    world.run(8)
    assert world.speculating() == {False}


# --- paused ----------------------------------------------------------------------------------------------------------


def test_a_paused_object_starts_no_rollout_and_scales_what_serves() -> None:
    world = World(spec("a", replicas=2)).run(6)
    world.edit(spec("b", replicas=3, paused=True))
    world.run(10)
    assert world.serving() == {"a": 3}
    assert world.condition("Progressing")[:2] == ("True", "Paused")
    assert world.condition("Ready")[0] == "True"
    world.edit(spec("b", replicas=3))
    world.run(20)
    assert world.serving() == {"b": 3}


def test_a_paused_object_that_is_new_starts_nothing() -> None:
    world = World(spec("a", paused=True)).run(10)
    assert world.serving() == {}
    assert world.condition("Progressing")[1] == "Paused"
    world.edit(spec("a"))
    assert world.run(6).serving() == {"a": 1}


def test_a_pause_in_mid_rollout_holds_the_canary_and_does_not_spare_it() -> None:
    world = at_a_step()
    world.edit(spec("b", replicas=2, rollout=rollout({"weight": 50}), paused=True))
    world.run(20)
    assert world.serving() == {"a": 1, "b": 1}
    assert "spec.paused is true" in world.condition("Progressing")[2]
    world.edit(spec("c", replicas=2, rollout=rollout({"weight": 50}), paused=True))
    world.run(10)
    assert world.serving() == {"a": 1, "b": 1}, "the next edit waits, too"
    world.lives["b"] = Life(rate=DEAD)
    world.run(6)
    assert world.serving() == {"a": 2}


def test_a_collapse_of_what_serves_is_taken_back_while_paused() -> None:
    world = World(spec("a", replicas=2)).run(6)
    world.edit(spec("b", replicas=2))
    world.run(14)
    world.edit(spec("b", replicas=2, paused=True))
    world.lives["b"] = Life(rate=DEAD)
    world.run(10)
    assert world.serving() == {"a": 2}


def test_letting_a_rollout_go_on_does_not_run_again_what_collapsed() -> None:
    world = at_a_step(life=Life(rate=WEAK)).run(10)
    assert world.serving() == {"a": 2}
    made = world.made
    for paused in (True, False):
        world.edit(spec("b", replicas=2, rollout=rollout({"weight": 50}), paused=paused))
        world.run(6)
    assert world.made == made


# --- deadlines -------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_lost_late_in_a_step_has_the_whole_deadline_to_come_back() -> None:
    world = at_a_step(
        {"weight": 50, "pause": {}}, rollout=rollout({"weight": 50, "pause": {}}, progressDeadlineSeconds=60)
    )
    world.run(20)
    revision = world.status.canary_revision
    world.lives["b"] = Life(starts=False)
    for uid in [pod.uid for pod in world.pods.values() if pod.revision == revision]:
        del world.pods[uid]
        world.workers.pop(uid)
    world.run(4)
    assert world.condition("Progressing")[1] == "WaitingForWorkers"
    world.run(6)
    assert world.condition("RolledBack")[:2] == ("True", "ProgressDeadlineExceeded")


def test_nothing_is_promoted_that_never_ran() -> None:
    world = World(spec("a", replicas=0)).run(10)
    assert world.status.stable_revision == ""
    assert world.condition("Progressing")[:2] == ("False", "ScaledToZero")
    assert world.condition("Ready")[:2] == ("True", "ScaledToZero")
    world.edit(spec("a", replicas=1))
    assert world.run(4).serving() == {"a": 1}


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_of_retired_revisions_only_as_many_are_kept_as_the_history_limit_says(limit: int) -> None:
    world = World(spec("a", revisionHistoryLimit=limit)).run(6)
    for drafter in "bcde":
        world.edit(spec(drafter, revisionHistoryLimit=limit))
        world.run(14)
    assert sorted(h.revision for h in world.history.values()) == sorted(world.deployments)
    assert len(world.history) == limit + 1
