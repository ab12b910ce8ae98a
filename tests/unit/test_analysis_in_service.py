"""The analysis as users meet it: what status keeps and says while revisions serve and roll out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tandem_operator.api.status import Outcome
from tandem_operator.engines.reading import StepTimes
from tandem_operator.plan.observed import Worker
from tandem_worker.contract import ProbeResult, ValidationReport
from unit.world import HEALTHY, WEAK, Life, World, fits, spec


def served(drafter: str = "a", **fields: object) -> World:
    world = World(spec(drafter, **fields)).run(6)
    assert world.serving() == {drafter: world.spec.replicas}
    return world


def probed(position0: float, text: str = "continuation") -> Callable[[object], ValidationReport]:
    probe = ProbeResult(
        text=text,
        prompts=8,
        drafts=500,
        acceptance=(position0,),
        draft_length=5,
        accept_length=1 + position0,
        position0=position0,
        position0_lower=position0 - 0.05,
        position0_upper=position0 + 0.05,
        overlap=position0,
        threshold=1.3,
        wirings=200,
    )
    return lambda of: fits(of).model_copy(update={"probe": probe})  # type: ignore[arg-type]


def rewrite(world: World, change: Callable[[Worker], Worker]) -> None:
    """From now on every worker answers as `change` makes it."""
    serve = world._serve

    def serve_and_rewrite() -> None:
        serve()
        world.workers = {uid: change(worker) for uid, worker in world.workers.items()}

    world._serve = serve_and_rewrite  # type: ignore[method-assign]


def test_the_last_measurements_are_kept_with_their_numbers() -> None:
    world = served("a", replicas=2)
    world.lives["bad"] = Life(rate=WEAK)
    world.edit(spec("bad", replicas=2))
    world.run(20)
    kept = world.status.measurements
    bad = world.status.quarantined[0].revision
    (collapse,) = [m for m in kept if m.outcome == Outcome.COLLAPSED]
    assert (collapse.revision, collapse.test, collapse.baseline) == (bad, "Gate", "Stable")
    assert collapse.baseline_position0 == HEALTHY
    assert collapse.accept_length == 1.05
    assert collapse.score > collapse.alarm_above
    healthy = kept[-1]
    assert (healthy.revision, healthy.test, healthy.outcome) == (world.status.stable_revision, "Steady", "Healthy")
    assert healthy.at == world.now, "the newest of those that say the same"
    assert len(kept) <= 10


def test_a_canary_is_compared_with_the_stable_revision_on_the_same_traffic() -> None:
    """What is hard for both is no fault of the canary."""
    world = served("a", replicas=2)
    world.lives = {"a": Life(rate=0.4), "b": Life(rate=0.38)}
    world.edit(spec("b", replicas=2))
    world.run(20)
    assert world.serving() == {"b": 2}


def test_a_canary_that_loses_half_is_taken_back_though_above_the_floor() -> None:
    world = served("a", replicas=2)
    world.lives["b"] = Life(rate=0.36)
    world.edit(spec("b", replicas=2))
    world.run(20)
    assert world.serving() == {"a": 2}
    assert world.condition("RolledBack")[:2] == ("True", "AcceptanceBelowBaseline")
    assert "position 0 0.36 against 0.70 of the stable revision" in world.condition("RolledBack")[2]


def test_beside_a_target_without_speculation_the_validated_figure_is_the_baseline_and_is_called_so() -> None:
    world = World(spec("a", replicas=2, speculation={"enabled": False}), validate=probed(0.7)).run(8)
    world.edit(spec("a", replicas=2))
    world.run(12)
    assert world.serving() == {"a": 2}
    gates = [m for m in world.status.measurements if m.test == "Gate" and m.outcome == Outcome.HEALTHY]
    assert (gates[-1].baseline, gates[-1].baseline_position0, gates[-1].baseline_drafts) == ("Probe", 0.7, 500)


def test_in_service_acceptance_that_falls_far_below_the_validated_figure_is_a_collapse() -> None:
    world = World(spec("a"), validate=probed(0.7)).run(20)
    assert world.status.measurements[-1].baseline == "Probe"
    world.lives["a"] = Life(rate=0.35)
    world.run(20)
    assert world.speculating() == {False}
    assert world.condition("SpeculationActive")[:2] == ("False", "AcceptanceBelowBaseline")


def test_a_figure_of_given_texts_is_no_measure_of_what_is_served() -> None:
    """0.35 on texts and 0.857 in service are the same drafter; at 0.36 in service it has collapsed."""
    world = World(spec("a"), validate=probed(0.35, text="prompt"), lives={"a": Life(rate=0.857)}).run(20)
    validation = world.status.validation
    assert validation is not None
    assert validation.probe is not None
    assert (validation.probe.text, validation.probe.position0) == ("prompt", 0.35)
    last = world.status.measurements[-1]
    assert (last.outcome, last.baseline) == ("Healthy", "Start")
    assert last.baseline_position0 == pytest.approx(0.857, abs=0.01)
    world.lives["a"] = Life(rate=0.36)
    world.run(20)
    assert world.speculating() == {False}
    assert world.condition("SpeculationActive")[:2] == ("False", "AcceptanceBelowBaseline")


def test_workers_that_are_not_switched_off_yet_are_counted() -> None:
    world = World(spec("a", replicas=2), validate=probed(0.7)).run(20)
    world.lives["a"] = Life(rate=0.35)
    while world.condition("SpeculationActive")[1] == "Speculating":
        world.run(1)
    status, reason, message = world.condition("SpeculationActive")
    assert (status, reason) == ("True", "Switching")
    assert "being switched off: 0 of 2 workers so far" in message


def test_users_whose_prompts_are_harder_than_those_of_the_validation_see_no_rollback() -> None:
    world = World(spec("a"), validate=probed(0.9), lives={"a": Life(rate=0.45)}).run(60)
    assert world.speculating() == {True}
    last = world.status.measurements[-1]
    assert (last.outcome, last.baseline, last.baseline_position0) == ("Healthy", "Start", 0.45)


def test_workers_that_give_no_figures_hold_the_canary_and_are_named() -> None:
    world = served("a", replicas=2)
    rewrite(world, lambda worker: replace(worker, counts=None, problem="/metrics: tandem_drafts_total is nan"))
    world.lives["b"] = Life(rate=WEAK)
    world.edit(spec("b", replicas=2))
    world.run(20)
    assert world.status.weight == 50
    assert world.condition("CanaryHealthy")[:2] == ("Unknown", "MetricsUnavailable")
    status, reason, message = world.condition("MetricsAvailable")
    assert (status, reason) == ("False", "ScrapeFailed")
    assert "tandem_drafts_total is nan" in message
    assert world.last is not None
    assert not world.last.calibrate, "prompts would tell nothing either"
    assert {(m.test, m.outcome) for m in world.status.measurements[-2:]} == {
        ("Gate", "MetricsUnavailable"),
        ("Steady", "MetricsUnavailable"),
    }


def test_counters_that_stand_still_under_load_are_called_frozen_and_not_healthy_or_collapsed() -> None:
    world = served("a")
    rewrite(world, lambda worker: replace(worker, running=3))
    world.requests_per_step = 0
    world.run(6)
    assert world.condition("MetricsAvailable")[:2] == ("False", "CountersFrozen")
    assert world.status.measurements[-1].outcome == Outcome.METRICS_UNAVAILABLE
    world.requests_per_step = 10
    world.run(2)
    assert world.condition("MetricsAvailable")[0] == "True"


def timed(seconds_of_round: float) -> Callable[[Worker], Worker]:
    steps = (
        StepTimes("verify", 2, 5000, 5000 * seconds_of_round * 0.8),
        StepTimes("draft", 2, 5000, 5000 * seconds_of_round * 0.2),
        StepTimes("plain", 2, 1000, 1000 * 0.010),
    )
    return lambda worker: replace(worker, steps=steps)


@pytest.mark.parametrize(("seconds_of_round", "speedup"), [(0.010, 1.7), (0.017, 1.0)])
def test_the_speedup_is_shown(seconds_of_round: float, speedup: float) -> None:
    world = served("a")
    rewrite(world, timed(seconds_of_round))
    world.run(3)
    assert world.status.acceptance is not None
    assert world.status.acceptance.speedup == speedup
    assert world.condition("RolledBack")[0] == "False"


def test_accepted_but_slower_than_the_target_alone_does_not_pass() -> None:
    world = served("a", replicas=2)
    world.edit(spec("b", replicas=2))
    rewrite(world, timed(0.025))
    world.run(20)
    assert world.condition("RolledBack")[:2] == ("True", "TooSlow")
    assert "0.68 times the speed of the target alone, 1 is asked for" in world.condition("RolledBack")[2]


def test_speed_is_no_matter_to_a_user_who_says_so() -> None:
    world = served("a", replicas=2)
    world.edit(spec("b", replicas=2, guard={"minSpeedup": 0}))
    rewrite(world, timed(0.025))
    world.run(20)
    assert world.serving() == {"b": 2}


def test_plain_steps_of_a_revision_without_speculation_tell_how_fast_the_target_is() -> None:
    world = served("a", replicas=2, speculation={"enabled": False})
    world.edit(spec("a", replicas=2))

    def answer(worker: Worker) -> Worker:
        assert worker.status is not None
        plain = StepTimes("plain", 2, 1000, 10.0)
        rounds = (StepTimes("verify", 2, 5000, 100.0), StepTimes("draft", 2, 5000, 25.0))
        return replace(worker, steps=rounds if worker.status.speculation_enabled else (plain,))

    rewrite(world, answer)
    world.run(20)
    assert world.condition("RolledBack")[:2] == ("True", "TooSlow")
