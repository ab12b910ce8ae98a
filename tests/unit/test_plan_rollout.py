"""Stories of one object, told to the pure plan: what a user does, what the cluster does, what then serves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tandem_operator import names
from tandem_operator.api import Status
from tandem_worker.contract import (
    Finding,
    Fingerprints,
    SelfTestOutcome,
    Severity,
    ValidationReport,
    Verdict,
    WorkerFailure,
)
from unit.world import DEAD, FILES, HEALTHY, WEAK, Life, World, fits, spec


def refuse(summary: str) -> ValidationReport:
    finding = Finding(code="TDM-CAPTURE-INDEX-MISMATCH", severity=Severity.ERROR, message=summary)
    return ValidationReport(verdict=Verdict.DOES_NOT_FIT, mode="Static", summary=summary, findings=(finding,))


def served(drafter: str = "a", **fields: object) -> World:
    world = World(spec(drafter, **fields)).run(6)
    assert world.serving() == {drafter: world.spec.replicas}
    return world


def test_a_first_install_serves_once_the_pair_is_proven() -> None:
    world = World(spec())
    world.step()
    assert not world.deployments, "no worker before the verdict"
    assert world.condition("Validated")[:2] == ("Unknown", "Validating")
    world.run(5)
    assert world.serving() == {"a": 1}
    assert world.condition("Ready")[:2] == ("True", "Serving")
    assert world.condition("Validated")[:2] == ("True", "Fits")
    assert world.condition("Progressing")[:2] == ("False", "Complete")
    assert world.condition("SpeculationActive")[:2] == ("True", "Speculating")
    assert world.status.url == "http://pair.ns.svc:80"
    assert world.status.acceptance is not None
    assert world.status.acceptance.accept_length == pytest.approx(1 + HEALTHY)


def test_a_pair_that_does_not_fit_gets_no_worker_and_what_serves_goes_on() -> None:
    world = served("a", replicas=2)
    world.validate = lambda _: refuse("the engine will capture [1, 3, 4]; this drafter was trained on [2, 4, 5]")
    world.edit(spec("miswired", replicas=2))
    world.run(10)
    assert world.serving() == {"a": 2}
    assert len(world.deployments) == 1
    assert world.condition("Validated") == (
        "False",
        "DoesNotFit",
        "the engine will capture [1, 3, 4]; this drafter was trained on [2, 4, 5]",
    )
    assert world.condition("Ready")[0] == "True"
    assert any(event.startswith("ValidatedDoesNotFit") for event in world.events)


def fault(number: int, severity: Severity = Severity.ERROR) -> Finding:
    return Finding("TDM-SHAPE-DIFFERS", severity, f"tensor {number} is wrong.", action="Export it again.")


def found(*findings: Finding, verdict: Verdict = Verdict.DOES_NOT_FIT) -> ValidationReport:
    return ValidationReport(verdict=verdict, mode="Static", summary="mistakes were found", findings=findings)


def told(world: World) -> list[str]:
    return [event for event in world.events if event.startswith("ShapeDiffers")]


def test_each_error_of_a_report_is_an_event_with_its_remedy_and_is_told_once() -> None:
    world = World(spec(), validate=lambda _: found(fault(1), fault(2), fault(3, Severity.WARNING)))
    warnings = set()
    for _ in range(20):
        warnings |= {event for event in world.step().events if event.type == "Warning"}
    assert told(world) == [f"ShapeDiffers: tensor {i} is wrong. Export it again." for i in (1, 2)]
    assert {event.reason for event in warnings} == {"ShapeDiffers", "ValidatedDoesNotFit"}


def test_of_a_report_full_of_errors_the_first_five_are_events_and_all_are_in_status() -> None:
    world = World(spec(), validate=lambda _: found(*map(fault, range(9)))).run(6)
    assert len(told(world)) == 5
    assert world.status.validation is not None
    assert len(world.status.validation.findings) == 9


def test_a_pair_that_is_tried_again_tells_only_what_is_new() -> None:
    world = World(spec(), validate=lambda _: found(fault(1), verdict=Verdict.COULD_NOT_CHECK)).run(30)
    assert world.status.validation is not None
    assert world.status.validation.attempt > 1
    assert len(told(world)) == 1
    world.validate = lambda _: found(fault(1), fault(2))
    world.run(90)
    assert told(world) == [f"ShapeDiffers: tensor {i} is wrong. Export it again." for i in (1, 2)]
    world.edit(spec("b"))
    world.run(6)
    assert len(told(world)) == 4, "another pair: its report is told from the beginning"


def test_a_report_whose_status_could_not_be_written_is_told_with_the_next_pass() -> None:
    world = World(spec(), validate=lambda _: found(fault(1)))
    world.step()
    lost = world.plan()
    assert [event.reason for event in lost.events if event.reason == "ShapeDiffers"] == ["ShapeDiffers"]
    world.run(3)
    assert len(told(world)) == 1


def test_a_pair_that_fits_with_warnings_is_rolled_out_and_the_warning_is_kept() -> None:
    warned = Finding(code="TDM-ROPE-THETA-DIFFERS", severity=Severity.WARNING, message="theta differs")
    report = ValidationReport(
        verdict=Verdict.FITS_WITH_WARNINGS, mode="Static", summary="fits", findings=(warned,), fingerprints=FILES
    )
    world = World(spec(), validate=lambda _: report).run(6)
    assert world.serving() == {"a": 1}
    assert world.condition("Validated")[:2] == ("True", "FitsWithWarnings")
    assert world.status.validation is not None
    assert [finding.code for finding in world.status.validation.findings] == ["TDM-ROPE-THETA-DIFFERS"]


def test_with_enforcement_warn_a_pair_that_does_not_fit_is_rolled_out_and_said_so() -> None:
    world = World(spec(validation={"enforcement": "Warn"}), validate=lambda _: refuse("does not fit")).run(6)
    assert world.serving() == {"a": 1}
    assert world.condition("Validated")[:2] == ("False", "DoesNotFit")
    assert "Warn" in world.condition("Validated")[2]


def test_a_canary_that_runs_unproven_goes_on_while_its_pair_is_validated_again() -> None:
    """Else a rollout that takes longer than the pause between two attempts would begin anew for ever."""
    missing = ValidationReport(verdict=Verdict.COULD_NOT_CHECK, mode="Static", summary="config.json is missing")
    world = served("a", replicas=2)
    world.validate = lambda _: missing
    held = {"steps": [{"weight": 50, "pause": {}}], "analysis": {"intervalSeconds": 10}}
    world.edit(spec("b", replicas=2, rollout=held, validation={"enforcement": "Warn"}))
    for _ in range(60):
        world.step(60)
    assert world.status.validation is not None
    assert world.status.validation.attempt >= 5, "it was tried again"
    assert world.condition("Progressing")[1] == "Paused"
    assert len([event for event in world.events if event.startswith("CanaryStarted: ")]) == 2, "one of each"
    assert not [event for event in world.events if event.startswith("CanaryWithdrawn")]


def test_a_revision_whose_files_changed_waits_for_the_verdict_on_the_new_ones_however_long_that_takes() -> None:
    """Its worker that found them goes, and with it the sign of it: the old verdict must not start it again."""
    world = served("a", replicas=2)
    world.edit(spec("b", replicas=2, rollout={"steps": []}))
    world.step()  # the Job has looked at the files
    changed = Fingerprints(target="sha256:target", drafter="sha256:changed")
    world.files, world.validate = changed, lambda _: None  # a Job that does not end
    world.run(30)
    assert world.condition("Validated")[:2] == ("Unknown", "CheckpointChanged")
    assert world.serving() == {"a": 2}
    assert len([event for event in world.events if event.startswith("CanaryStarted: ")]) == 2, "one of each"
    world.validate = lambda _: fits(world.spec).model_copy(update={"fingerprints": changed})
    world.run(10)
    assert world.serving() == {"b": 2}


def test_what_a_worker_said_before_it_came_up_is_no_news_for_as_long_as_its_pod_lives() -> None:
    """It met files that were half copied, and started when they were whole: they are those that were validated."""
    world = served("a", replicas=2)
    assert world.status.validation is not None
    attempt, half = world.status.validation.attempt, Fingerprints(target="sha256:target", drafter="sha256:half")
    word = WorkerFailure(reason="CheckpointChanged", message="other files", found=half)
    uid = next(iter(world.pods))
    world.pods[uid] = replace(world.pods[uid], failure=word, restarts=1, runs_again=True)
    world.edit(spec("b", replicas=2, rollout={"steps": [{"weight": 50, "pause": {}}]}))
    world.run(60)
    assert world.status.validation.attempt == attempt
    assert world.condition("Validated")[:2] == ("True", "Fits")
    assert world.condition("Progressing")[1] == "Paused"
    assert not [event for event in world.events if event.startswith("CanaryWithdrawn")]


def test_the_same_pair_is_not_validated_twice() -> None:
    world = served()
    world.jobs.clear()  # the Job's time to live has passed
    world.run(5)
    assert world.jobs == {}
    world.edit(spec("a", guard={"minAcceptLength": 1.2}))
    world.run(3)
    assert world.jobs == {}, "a threshold is not a new pair"
    world.edit(spec("b"))
    world.run(3)
    assert len(world.jobs) == 1


def test_a_pair_that_could_not_be_checked_is_tried_again_with_growing_pauses() -> None:
    missing = ValidationReport(verdict=Verdict.COULD_NOT_CHECK, mode="Static", summary="config.json is missing")
    world = World(spec(), validate=lambda _: missing)
    world.run(4)
    assert world.condition("Validated") == ("False", "CouldNotCheck", "config.json is missing")
    assert world.status.validation is not None
    for _ in range(40):
        world.step(seconds=10)
    assert 3 <= world.status.validation.attempt <= 5, "30 s, 60 s, 120 s ... apart"
    world.validate = World(spec()).validate
    for _ in range(40):
        world.step(seconds=30)
    assert world.serving() == {"a": 1}


def test_a_good_canary_passes_its_steps_and_the_old_revision_stays_in_history_without_workers() -> None:
    world = served(
        "a", replicas=4, rollout={"steps": [{"weight": 25}, {"weight": 50}], "analysis": {"intervalSeconds": 10}}
    )
    stable = world.status.stable_revision
    world.edit(world.spec.model_copy(update={"drafter": spec("b").drafter}))
    seen = set()
    for _ in range(14):
        world.step()
        seen.add((world.status.weight, tuple(sorted(world.serving().items()))))
    assert (25, (("a", 3), ("b", 1))) in seen
    assert (50, (("a", 2), ("b", 2))) in seen
    assert world.serving() == {"b": 4}
    assert world.status.weight == 0
    assert world.status.canary_revision == ""
    assert world.deployments[stable].desired == 0
    assert world.history[stable].served


def test_a_canary_that_collapses_is_taken_back_and_does_not_run_again() -> None:
    world = served("a", replicas=2)
    world.lives["bad"] = Life(rate=WEAK)
    world.edit(spec("bad", replicas=2))
    world.run(20)
    assert world.serving() == {"a": 2}
    assert world.spec.drafter == spec("bad").drafter, "the spec still says what the user wrote"
    assert [q.reason for q in world.status.quarantined] == ["AcceptLengthBelowFloor"]
    told = [event for event in world.events if event.startswith("RolledBack: Canary")]
    assert len(told) == 1
    assert "rolled back: accept length 1.05 over 900 drafts from 30 requests, floor 1.3; stable 1.70" in told[0]
    assert world.condition("RolledBack")[0] == "True"
    assert world.condition("Ready")[0] == "True"
    assert world.condition("CanaryHealthy")[:2] == ("False", "AcceptLengthBelowFloor")
    made = world.made
    world.run(20)
    assert world.made == made, "no pod is made again"


@pytest.mark.parametrize(("drafts", "outcome"), [(DEAD, "NothingAccepted"), (WEAK, "AcceptLengthBelowFloor")])
def test_with_nothing_to_go_back_to_the_target_serves_on_with_speculation_off(drafts: float, outcome: str) -> None:
    world = World(spec("bad"), lives={"bad": Life(rate=drafts)}).run(12)
    assert world.serving() == {"bad": 1}
    assert world.speculating() == {False}
    assert world.condition("SpeculationActive")[:2] == ("False", outcome)
    assert world.condition("Ready")[0] == "True"
    assert "serves with speculation off" in world.condition("RolledBack")[2]


def test_a_worker_that_restarts_is_told_again_that_speculation_is_off() -> None:
    world = World(spec("bad"), lives={"bad": Life(rate=DEAD)}).run(12)
    world.pods.clear()
    world.workers.clear()
    world.run(3)
    assert world.serving() == {"bad": 1}
    assert world.speculating() == {False}


def test_a_first_install_without_life_serves_the_target_and_is_quarantined() -> None:
    world = World(spec("bad"), lives={"bad": Life(self_test=SelfTestOutcome.NO_LIFE)}).run(8)
    assert world.serving() == {"bad": 1}
    assert world.speculating() == {False}
    assert world.status.quarantined[0].reason == "SelfTestFailed"
    assert world.condition("SpeculationActive")[:2] == ("False", "SelfTestFailed")


def test_a_retry_starts_workers_without_life_anew_and_believes_their_new_self_test() -> None:
    world = World(spec("bad"), lives={"bad": Life(self_test=SelfTestOutcome.NO_LIFE)}).run(8)
    world.lives["bad"] = Life()
    world.annotations[names.RETRY] = "1"
    world.run(8)
    assert world.serving() == {"bad": 1}
    assert world.speculating() == {True}
    assert world.condition("RolledBack")[0] == "False"


def test_a_canary_without_life_never_gets_a_step() -> None:
    world = served("a", replicas=2)
    world.lives["bad"] = Life(self_test=SelfTestOutcome.NO_LIFE)
    world.edit(spec("bad", replicas=2))
    world.run(10)
    assert world.serving() == {"a": 2}
    assert world.condition("RolledBack")[:2] == ("True", "SelfTestFailed")


def test_a_stable_revision_that_collapses_after_promotion_gives_way_to_the_one_before() -> None:
    world = served("a", replicas=2)
    world.edit(spec("b", replicas=2))
    world.run(14)
    assert world.serving() == {"b": 2}
    world.lives["b"] = Life(rate=DEAD)
    world.run(10)
    assert world.serving() == {"a": 2}
    assert world.condition("RolledBack")[0] == "True"
    assert world.speculating() == {True}


@pytest.mark.parametrize(("action", "speculating"), [("DisableSpeculation", False), ("Alert", True)])
def test_the_user_chooses_what_a_collapse_of_the_stable_revision_does(action: str, speculating: bool) -> None:
    world = served("a", replicas=2)
    world.edit(spec("b", replicas=2, guard={"onCollapse": action}))
    world.run(14)
    world.lives["b"] = Life(rate=DEAD)
    world.run(10)
    assert world.serving() == {"b": 2}
    assert world.speculating() == {speculating}


def test_quarantine_ends_by_a_spec_change_or_the_retry_annotation_but_not_by_an_autoscaler() -> None:
    world = served("a", replicas=2)
    world.lives["bad"] = Life(rate=WEAK)
    world.edit(spec("bad", replicas=2))
    world.run(20)
    assert world.serving() == {"a": 2}
    world.edit(spec("bad", replicas=3))
    world.run(10)
    assert world.serving() == {"a": 3}
    world.lives["bad"] = Life(rate=HEALTHY)
    world.annotations[names.RETRY] = "1"
    world.run(20)
    assert world.serving() == {"bad": 3}
    assert world.condition("RolledBack")[0] == "False"


def test_lower_demands_are_a_spec_change_and_give_the_drafter_another_chance() -> None:
    world = served("a", replicas=2)
    world.lives["bad"] = Life(rate=0.2)
    world.edit(spec("bad", replicas=2))
    world.run(20)
    assert world.serving() == {"a": 2}
    world.edit(spec("bad", replicas=2, guard={"minAcceptLength": 1.1}))
    world.run(20)
    assert world.serving() == {"a": 2}, "above the floor, and still far from what the stable revision gets"
    assert world.status.quarantined[-1].reason == "AcceptanceBelowBaseline"
    lower = {"minAcceptLength": 1.1, "toleratedDrop": 0.8, "collapseDrop": 0.9}
    world.edit(spec("bad", replicas=2, guard=lower))
    world.run(20)
    assert world.serving() == {"bad": 2}


def test_no_traffic_neither_promotes_nor_rolls_back_and_asks_for_calibration() -> None:
    world = served("a", replicas=2)
    world.requests_per_step = 0
    world.lives["bad"] = Life(rate=DEAD)
    world.edit(spec("bad", replicas=2))
    world.run(15)
    assert world.status.weight == 50
    assert world.condition("CanaryHealthy")[:2] == ("Unknown", "TooFewDrafts")
    assert world.last is not None
    assert world.last.calibrate, "calibration prompts are replayed to the canary"
    assert all(world.pods[uid].revision == world.status.canary_revision for uid in world.last.calibrate)


def test_requests_that_are_served_without_a_draft_fail_closed() -> None:
    world = served("a", replicas=2)
    world.edit(spec("b", replicas=2))
    for _ in range(4):
        world.step()
    for uid, worker in world.workers.items():
        if world.pods[uid].revision == world.status.canary_revision and worker.status:
            # The worker says that it speculates, and never drafts.
            world.lives["b"] = Life()
    world._serve = lambda: _serve_without_drafts(world)  # type: ignore[method-assign]
    world.run(6)
    assert world.condition("RolledBack")[:2] == ("True", "SpeculationInactive")


def _serve_without_drafts(world: World) -> None:
    for uid, worker in list(world.workers.items()):
        counts = worker.counts
        assert counts is not None
        update = {"requests": counts.requests + 10, "user_requests": counts.user_requests + 10}
        update["generated"] = counts.generated + 600
        world.workers[uid] = replace(worker, counts=counts.model_copy(update=update))


def test_a_canary_that_never_starts_is_given_up_at_its_deadline_with_the_reason() -> None:
    world = served("a", replicas=2)
    world.lives["stuck"] = Life(starts=False)
    slow = {"steps": [{"weight": 50}], "progressDeadlineSeconds": 60}
    world.edit(spec("stuck", replicas=2, rollout=slow))
    world.run(4)
    assert world.condition("Progressing")[1] == "WaitingForWorkers"
    assert "CrashLoopBackOff" in world.condition("Progressing")[2]
    world.run(10)
    assert world.serving() == {"a": 2}
    assert world.condition("RolledBack")[:2] == ("True", "ProgressDeadlineExceeded")
    assert not [pod for pod in world.pods.values() if not pod.ready], "nothing is left crash-looping"


def test_a_worker_that_finds_too_little_gpu_memory_is_a_reason_in_the_conditions_until_it_starts() -> None:
    world = World(spec("a"), lives={"a": Life(refuses="InsufficientGpuMemory")}).run(6)
    assert world.condition("Ready")[:2] == ("False", "InsufficientGpuMemory")
    assert world.condition("Progressing")[:2] == ("True", "InsufficientGpuMemory")
    world.lives["a"] = Life()
    world.run(4)
    assert world.condition("Ready")[:2] == ("True", "Serving")
    assert world.condition("Progressing")[:2] == ("False", "Complete")


def test_a_worker_that_is_slower_than_it_should_be_serves_and_the_object_says_so() -> None:
    world = World(spec("a"), lives={"a": Life(degraded="CudaGraphCaptureFailed: not permitted")}).run(6)
    assert world.condition("Ready")[:2] == ("True", "Degraded")
    assert "CudaGraphCaptureFailed: not permitted" in world.condition("Ready")[2]


def test_after_a_failed_rollout_the_corrected_spec_is_applied() -> None:
    world = served("a", replicas=2)
    world.lives["stuck"] = Life(starts=False)
    world.edit(spec("stuck", replicas=2))
    world.run(4)
    world.edit(spec("good", replicas=2))
    world.run(20)
    assert world.serving() == {"good": 2}


def test_a_revert_in_mid_rollout_keeps_enough_workers_at_every_moment() -> None:
    world = served("a", replicas=4)
    world.edit(spec("b", replicas=4))
    while world.serving().get("b", 0) < 2:
        world.step()
    world.edit(spec("a", replicas=4))
    for _ in range(10):
        world.step()
        assert sum(world.serving().values()) >= 4, "maxUnavailable is 0 (dynamo #13620)"
    assert world.serving() == {"a": 4}
    assert world.status.canary_revision == ""
    assert world.jobs, "a was validated before and is not again"


def test_a_third_edit_in_mid_rollout_goes_straight_to_the_newest() -> None:
    world = served("a", replicas=4)
    world.edit(spec("b", replicas=4))
    world.run(4)
    world.edit(spec("c", replicas=4))
    for _ in range(25):
        world.step()
        assert sum(d.desired for d in world.deployments.values()) <= 5
    assert world.serving() == {"c": 4}


def test_without_a_spare_gpu_the_canary_takes_the_place_of_a_stable_worker() -> None:
    tight = {"steps": [{"weight": 50}], "maxSurge": 0, "maxUnavailable": 1, "analysis": {"intervalSeconds": 10}}
    world = served("a", replicas=2, rollout=tight)
    world.edit(spec("b", replicas=2, rollout=tight))
    for _ in range(20):
        world.step()
        assert sum(d.desired for d in world.deployments.values()) <= 2
        assert sum(world.serving().values()) >= 1
    assert world.serving() == {"b": 2}


def test_an_autoscaler_in_mid_rollout_is_followed_by_both_revisions() -> None:
    world = served("a", replicas=2)
    world.requests_per_step = 0  # hold at the step
    world.edit(spec("b", replicas=2))
    world.run(6)
    world.edit(spec("b", replicas=6))
    world.run(4)
    assert world.serving() == {"a": 3, "b": 3}
    world.edit(spec("b", replicas=1))
    world.run(4)
    assert world.serving() == {"a": 1, "b": 1}


def test_scaled_to_zero_is_ready_and_comes_back() -> None:
    world = served("a", replicas=2)
    world.edit(spec("a", replicas=0))
    world.run(3)
    assert world.serving() == {}
    assert world.condition("Ready")[:2] == ("True", "ScaledToZero")
    world.edit(spec("a", replicas=2))
    world.run(3)
    assert world.serving() == {"a": 2}


def test_files_that_changed_under_a_validated_volume_are_validated_anew() -> None:
    world = served("a", replicas=1)
    revision = world.status.stable_revision
    found = Fingerprints(target=FILES.target, drafter="sha256:other")
    world.files = found
    world.validate = lambda _: ValidationReport(verdict=Verdict.FITS, mode="Static", summary="fits", fingerprints=found)
    world.pods.clear()  # the node was drained: a new pod reads the new files and refuses to start
    world.workers.clear()
    world.run(9)
    assert len(world.jobs) == 2
    assert world.serving() == {"a": 1}
    assert world.status.stable_revision != revision


def test_a_host_path_outside_the_allowed_prefixes_is_refused_and_creates_nothing() -> None:
    outside = {"source": {"hostPath": {"path": "/etc"}}}
    world = World(spec(target=outside)).run(3)
    assert not world.jobs
    assert not world.deployments
    assert world.condition("Validated")[:2] == ("False", "HostPathNotAllowed")
    assert "/etc is outside what the operator allows (/models)" in world.condition("Validated")[2]


def test_speculation_switched_off_in_the_spec_is_a_revision_of_its_own_without_a_drafter() -> None:
    world = served("a", replicas=2)
    world.edit(spec("a", replicas=2, speculation={"enabled": False}))
    world.run(14)
    assert world.serving() == {"a": 2}
    assert world.condition("SpeculationActive")[:2] == ("False", "DisabledBySpec")
    assert world.speculating() == {False}


@pytest.mark.parametrize(("limits", "device"), [({}, []), ({"cpu": 4}, []), ({"nvidia.com/gpu": 1}, ["--device=cuda"])])
def test_a_worker_that_asks_for_a_gpu_runs_on_it(limits: dict[str, int], device: list[str]) -> None:
    world = World(spec(resources={"limits": limits})).run(6)
    assert world.last is not None
    (deployment,) = [manifest for manifest in world.last.apply if manifest["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [argument for argument in container["args"] if argument.startswith("--device")] == device


def test_old_revisions_are_trimmed_to_the_history_limit() -> None:
    world = served("a", revisionHistoryLimit=2)
    for drafter in "bcdef":
        world.edit(spec(drafter, revisionHistoryLimit=2))
        world.run(14)
        assert world.serving() == {drafter: 1}
    assert len(world.history) == 3
    assert len(world.deployments) == 3


def test_what_shrinks_is_applied_before_what_grows() -> None:
    tight = {"steps": [{"weight": 50}], "maxSurge": 0, "maxUnavailable": 1, "analysis": {"intervalSeconds": 10}}
    world = served("a", replicas=2, rollout=tight)
    world.edit(spec("b", replicas=2, rollout=tight))
    for _ in range(20):
        desired = {d.revision: d.desired for d in world.deployments.values()}
        for manifest in world.step().apply:
            if manifest["kind"] == "Deployment":
                desired[manifest["metadata"]["labels"][names.REVISION]] = manifest["spec"]["replicas"]
                assert sum(desired.values()) <= 2, "at no moment does a worker wait for a GPU that is not there"


def test_a_rollout_worker_by_worker_may_take_longer_than_the_deadline_as_long_as_it_goes_on() -> None:
    rollout = {"steps": [], "maxSurge": 1, "maxUnavailable": 0, "progressDeadlineSeconds": 120}
    world = World(spec("a", replicas=5, rollout=rollout)).run(8)
    world.edit(spec("b", replicas=5, rollout=rollout))
    for _ in range(12):
        world.step(seconds=100)  # one worker more is ready each time: 500 s in all
    assert world.serving() == {"b": 5}
    assert world.condition("RolledBack")[:2] == ("False", "NotRolledBack")


def test_a_rollout_that_stops_half_way_is_taken_back_at_the_deadline() -> None:
    rollout = {"steps": [], "maxSurge": 1, "maxUnavailable": 0, "progressDeadlineSeconds": 120}
    world = World(spec("a", replicas=5, rollout=rollout)).run(8)
    world.edit(spec("b", replicas=5, rollout=rollout))
    for _ in range(3):
        world.step(seconds=100)
    world.lives["b"] = Life(starts=False)
    world.run(20)
    assert world.condition("RolledBack")[1] == "ProgressDeadlineExceeded"
    assert world.serving() == {"a": 5}


def without_a_record() -> World:
    """The stable revision's record is gone, and none is written of it, since the spec names another pair (that has no
    verdict yet)."""
    world = World(spec("a")).run(20)
    world.validate = lambda _: None
    world.edit(spec("b"))
    world.step()
    del world.history[world.status.stable_revision]
    return world


def test_a_stable_revision_whose_record_was_deleted_is_switched_off_when_it_collapses() -> None:
    world = without_a_record()
    world.lives["a"] = Life(rate=DEAD)
    world.run(10)
    assert world.speculating() == {False}
    assert world.condition("SpeculationActive")[:2] == ("False", "NothingAccepted")


def test_a_stable_revision_whose_record_was_deleted_is_quarantined_when_a_new_worker_shows_no_life() -> None:
    world = without_a_record()
    world.lives["a"] = Life(self_test=SelfTestOutcome.NO_LIFE)
    gone = next(iter(world.pods))
    del world.pods[gone], world.workers[gone]
    world.run(3)
    assert [(q.revision, q.reason) for q in world.status.quarantined] == [
        (world.status.stable_revision, "SelfTestFailed")
    ]


def test_a_stable_revision_whose_record_was_deleted_speculates_again_when_the_user_says_retry() -> None:
    world = without_a_record()
    world.lives["a"] = Life(rate=DEAD)
    world.run(10)
    world.lives["a"] = Life()
    world.annotations[names.RETRY] = "1"
    world.run(10)
    assert world.speculating() == {True}
    assert world.condition("SpeculationActive")[:2] == ("True", "Speculating")


def test_a_canary_whose_record_was_deleted_is_switched_off_when_it_is_aborted() -> None:
    """Its workers stay, for those of the stable revision, whose record was deleted as well, can't be made anew."""
    world = served("a")
    del world.history[world.status.stable_revision]
    world.edit(spec("b"))
    world.run(4)
    canary = world.status.canary_revision
    world.annotations["tandem.dev/abort"] = canary
    del world.history[canary]
    world.run(4)
    drafting = [w.speculating for uid, w in world.workers.items() if world.pods[uid].revision == canary]
    assert drafting == [False]


def test_a_stable_revision_whose_record_was_deleted_makes_room_for_the_next_one() -> None:
    world = served("a", replicas=3)
    before = world.status.stable_revision
    world.edit(spec("b", replicas=3))
    del world.history[before]
    for _ in range(12):
        world.step()
        assert sum(d.desired for d in world.deployments.values()) <= 4
    assert world.serving() == {"b": 3}
    assert before not in world.deployments, "nothing is left of what no record names"


def test_a_clock_that_was_set_back_does_not_stop_the_analysis() -> None:
    world = served("a", replicas=2)
    world.edit(spec("b", replicas=2))
    world.requests_per_step = 0
    world.run(5)
    assert world.condition("Progressing")[:2] == ("True", "CanaryStep")
    world.now -= timedelta(hours=2)
    world.requests_per_step = 40
    world.run(10)
    assert world.serving() == {"b": 2}


def test_a_lost_status_is_found_again_from_the_newest_validation_and_not_from_the_first() -> None:
    world = served("a")
    changed = Fingerprints(target="sha256:target", drafter="sha256:changed")
    world.files, world.validate = changed, lambda _: fits(world.spec).model_copy(update={"fingerprints": changed})
    world.pods.clear()  # its pods start anew, find other files, and the pair is validated again
    world.workers.clear()
    world.run(12)
    assert len(world.jobs) == 2
    assert world.serving() == {"a": 1}
    world.status = Status()
    world.step()
    assert world.status.validation is not None
    assert world.status.validation.attempt == 1
    world.run(3)
    assert world.serving() == {"a": 1}
    assert len(world.jobs) == 2, "nothing had to be validated again"
