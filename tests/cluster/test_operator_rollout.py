"""Rolling a pair out, judging its canary by what users' requests show, and taking back what collapsed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cluster.operator_kit import Event, Story, condition, simulated
from cluster.support import eventually
from tandem_operator import names
from tandem_worker.contract import Metric, Origin

pytestmark = pytest.mark.cluster

FIGURES = r"accept length \d\.\d\d over \d+ drafts from \d+ requests"


def installed(story: Story, **fields: Any) -> str:
    """-> the stable revision."""
    story.apply(simulated(**fields))
    return story.until_stable()


def until_canary(story: Story, not_any_of: str) -> str:
    """-> the revision of the canary that runs beside the stable one, once all its workers are ready."""
    shown = story.until(
        "a canary serves beside the stable revision",
        lambda shown: (
            shown.status.canary_revision not in ("", *not_any_of.split())
            and story.serving().get(shown.status.canary_revision)
        ),
    )
    return shown.status.canary_revision


def test_a_first_install_serves_once_the_pair_is_validated(story: Story) -> None:
    story.apply(simulated())
    story.until_condition("Validated", "Unknown", "Validating")
    story.until_condition("Ready", "False", "NotValidated")
    revision = story.until_stable()
    shown = story.show()
    assert condition(shown, "Validated").message.startswith("The drafter fits the target on paper")
    assert condition(shown, "SpeculationActive").status == "True"
    assert condition(shown, "RolledBack").status == "False"
    assert shown.status.validation is not None
    assert shown.status.validation.capture_indexes is not None
    assert shown.status.validation.capture_indexes.engine == [2, 4, 5]
    assert shown.status.url == f"http://pair.{story.namespace}.svc:80"
    assert story.event("ValidatedFits").note == condition(shown, "Validated").message
    assert story.event("Promoted").note == f"Revision {revision} is stable"
    assert story.serving() == {revision: 1}
    with story.traffic() as traffic:
        eventually(lambda: traffic.answered >= 3)


def test_children_belong_to_the_object_and_nothing_carries_a_finalizer(story: Story) -> None:
    installed(story)
    uid = story.show().metadata.uid
    for plural in ("deployments", "controllerrevisions", "jobs", "services", "configmaps"):
        found = [item["metadata"] for item in story.items(plural, "pair")]
        assert found, plural
        for metadata in found:
            assert [(o["uid"], o.get("controller")) for o in metadata["ownerReferences"]] == [(uid, True)], plural
            assert metadata.get("finalizers", []) == []
    (resource,) = story.items("speculativedeployments")
    assert resource["metadata"].get("finalizers", []) == []
    assert "kopf" not in str(resource["metadata"].get("annotations", {}))


def test_a_good_canary_is_promoted_step_by_step_with_figures(story: Story) -> None:
    steps = {"steps": [{"weight": 25}, {"weight": 50}]}
    before = installed(story, replicas=2, rollout=steps)
    with story.traffic():
        story.apply(simulated(replicas=2, rollout=steps, sim={"seed": 1}))
        canary = until_canary(story, before)
        after = story.until_stable()
    assert after == canary != before
    assert story.until("the old workers are gone", lambda _: story.serving() == {after: 2})
    promoted = story.event("Promoted")
    assert promoted.note == f"Revision {after} is stable in place of {before}"
    advanced = [event.note for event in story.events() if event.reason == "CanaryAdvanced"]
    assert [re.sub(r": .*", "", note) for note in advanced] == [
        f"Canary {after} goes to weight 50",
        f"Canary {after} goes to weight 100",
    ]
    assert all(re.search(FIGURES, note) for note in advanced)
    records = {item["metadata"]["labels"][names.REVISION] for item in story.items("controllerrevisions", "pair")}
    assert records == {before, after}, "the old revision is kept in history"


def test_a_canary_that_collapses_is_taken_back_and_the_spec_is_left_alone(story: Story) -> None:
    stable = installed(story, replicas=2)
    wanted = story.apply(simulated(replicas=2, sim={"acceptance": 0.02}))
    with story.traffic():
        canary = until_canary(story, stable)
        said = story.until_condition("RolledBack", "True", "AcceptLengthBelowFloor")
        story.until("only the stable revision serves", lambda _: story.serving() == {stable: 2})
    assert re.search(rf"Revision {canary}: {FIGURES}, floor 1\.3.*Now revision {stable} serves", said.message)
    event = story.event("RolledBack")
    assert event.type == "Warning"
    assert re.search(rf"Canary {canary} rolled back: {FIGURES}, floor 1\.3; stable \d\.\d\d$", event.note)
    assert story.event("Quarantined").note.startswith(f"Revision {canary} quarantined (AcceptLengthBelowFloor)")
    shown = story.show()
    assert (shown.spec, shown.metadata.generation) == (wanted.spec, wanted.metadata.generation)
    assert [q.revision for q in shown.status.quarantined] == [canary]
    assert (shown.status.stable_revision, shown.status.canary_revision, shown.status.weight) == (stable, "", 0)
    assert condition(shown, "Ready").status == "True"
    assert condition(shown, "SpeculationActive").status == "True"


def test_after_a_rollback_further_looks_change_nothing(story: Story) -> None:
    stable = installed(story)
    with story.traffic():
        story.apply(simulated(sim={"acceptance": 0}))
        story.until_condition("RolledBack", "True", "NothingAccepted")
        story.until("only the stable revision serves", lambda _: story.serving() == {stable: 1})
        story.event("Quarantined")
    story.until_condition("Progressing", "False", "Quarantined")

    def versions() -> dict[str, str]:
        kinds = ("deployments", "controllerrevisions", "jobs", "services", "configmaps")
        found = [item for kind in kinds for item in story.items(kind, "pair")]
        return {item["metadata"]["uid"]: item["metadata"].get("generation", 0) for item in found}

    def events() -> list[Event]:
        """A worker of a busy machine may answer late once, which is told and changes nothing."""
        return [event for event in story.events() if not event.reason.startswith("MetricsAvailable")]

    before, told = versions(), events()
    looked = story.show().status.windows[0].sampled_at
    story.until("three more looks", lambda shown: (shown.status.windows[0].sampled_at - looked).total_seconds() >= 3)
    assert versions() == before
    assert events() == told


def test_a_quarantined_revision_runs_again_when_the_user_says_retry(story: Story) -> None:
    stable = installed(story)
    bad = simulated(sim={"acceptance": 0})
    story.apply(bad)
    with story.traffic():
        canary = until_canary(story, stable)
        story.until_condition("RolledBack", "True")
        story.until("only the stable revision serves", lambda _: story.serving() == {stable: 1})
        story.apply(bad, **{names.RETRY: "1"})
        assert until_canary(story, "") == canary
        story.until("it collapses again", lambda shown: len(shown.status.quarantined) == 2)


def test_a_corrected_spec_ends_the_quarantine(story: Story) -> None:
    stable = installed(story)
    with story.traffic():
        story.apply(simulated(sim={"acceptance": 0}))
        story.until_condition("RolledBack", "True")
        story.apply(simulated(sim={"acceptance": 0.8}))
        assert story.until_stable() != stable
    assert condition(story.show(), "RolledBack").status == "False"


def test_a_stable_revision_that_collapses_gives_way_to_the_last_healthy_one(story: Story) -> None:
    first = installed(story)
    with story.traffic():
        story.apply(simulated(sim={"seed": 1}))
        second = story.until_stable()
        assert second != first
        story.until("the old workers are gone", lambda _: story.serving() == {second: 1})
        for pod in story.ready_pods():
            pod.tell(acceptance=[0.0])
        said = story.until_condition("RolledBack", "True", "NothingAccepted")
        story.until("the first revision serves", lambda _: story.serving() == {first: 1})
        story.until("it is stable", lambda shown: shown.status.stable_revision == first)
    assert re.search(rf"Revision {second}: accept length 1\.00: none of \d+ drafts", said.message)
    story.until_speculating(True)


def test_with_nothing_to_go_back_to_the_target_serves_without_speculation(story: Story) -> None:
    revision = installed(story, sim={"acceptance": 0})
    (pod,) = story.pods()
    with story.traffic() as traffic:
        said = story.until_condition("SpeculationActive", "False", "NothingAccepted")
        story.until_speculating(False)
        answered = traffic.answered
        eventually(lambda: traffic.answered > answered + 5)
    assert said.message.startswith("switched off, the target keeps serving")
    assert story.serving() == {revision: 1}
    assert [p.uid for p in story.pods()] == [pod.uid], "switched live, without a restart"
    assert "serves with speculation off" in story.until_condition("RolledBack", "True", "NothingAccepted").message
    assert story.event("SpeculationActiveNothingAccepted").type == "Warning"


def test_speculation_stays_off_when_worker_and_operator_are_killed(story: Story) -> None:
    installed(story, sim={"acceptance": 0})
    with story.traffic():
        story.until_condition("SpeculationActive", "False", "NothingAccepted")
        story.until_speculating(False)
    before = {pod.uid for pod in story.pods()}
    story.kubectl("delete", "pod", "--selector", f"{names.NAME}=pair,{names.ROLE}={names.WORKER}", "--wait=false")
    story.until("another worker serves", lambda _: {pod.uid for pod in story.ready_pods()} - before)
    story.until_speculating(False)
    story.operator.kill()  # the next one has another key
    (pod,) = story.ready_pods()
    pod.tell(speculation=True)
    story.until_speculating(False)


def test_disable_speculation_keeps_the_stable_revision_and_switches_it_off(story: Story) -> None:
    guard = {"onCollapse": "DisableSpeculation"}
    installed(story, guard=guard)
    with story.traffic():
        story.apply(simulated(guard=guard, sim={"seed": 1}))
        second = story.until_stable()
        for pod in story.ready_pods():
            pod.tell(acceptance=[0.0])
        story.until_condition("SpeculationActive", "False", "NothingAccepted")
        story.until_speculating(False)
    assert story.serving() == {second: 1}
    assert story.show().status.canary_revision == ""


def test_alert_says_so_and_touches_nothing(story: Story) -> None:
    revision = installed(story, guard={"onCollapse": "Alert"}, sim={"acceptance": 0})
    with story.traffic():
        event = story.event("Collapsed") if story.until("a collapse is told", lambda _: told(story)) else None
    assert event is not None
    assert event.type == "Warning"
    assert re.search(rf"Revision {revision}: accept length 1\.00: none of \d+ drafts .*onCollapse is Alert", event.note)
    assert condition(story.show(), "RolledBack").status == "False"
    assert story.show().status.quarantined == []
    story.until_speculating(True)


def told(story: Story) -> bool:
    return any(event.reason == "Collapsed" for event in story.events())


def test_without_user_traffic_calibration_prompts_decide_and_are_marked_as_such(story: Story) -> None:
    before = installed(story)
    story.apply(simulated(sim={"seed": 1}, rollout={"analysis": {"intervalSeconds": 2}}))
    canary = until_canary(story, before)
    (pod,) = story.ready_pods(revision=canary)
    story.until(
        "the canary is prompted",
        lambda _: counted(pod.metrics(), Metric.DRAFTS, Origin.CALIBRATION) > 0,
        limit_seconds=20,
    )
    (other,) = story.ready_pods(revision=before)
    assert counted(other.metrics(), Metric.DRAFTS, Origin.CALIBRATION) == 0
    assert counted(pod.metrics(), Metric.DRAFTS, Origin.USER) == 0
    assert story.until_stable() == canary


def counted(metrics: str, name: Metric, origin: Origin) -> float:
    found = re.search(rf'^{name}{{[^}}]*origin="{origin}"[^}}]*}} (\S+)$', metrics, re.MULTILINE)
    assert found
    return float(found[1])


def test_an_edit_taken_back_in_mid_rollout_ends_where_it_began(story: Story) -> None:
    a = simulated(replicas=2)
    story.apply(a)
    stable = story.until_stable()
    pods = {pod.uid for pod in story.pods()}
    story.apply(simulated(replicas=2, sim={"seed": 1, "stall_requests": True}))  # no evidence, so it stays at its step
    until_canary(story, stable)
    story.apply(a)
    assert story.until_stable() == stable
    story.until("only the stable revision serves", lambda _: story.serving() == {stable: 2})
    assert story.event("CanaryWithdrawn").type == "Normal"
    assert pods & {pod.uid for pod in story.pods()}
    assert len(story.items("jobs", "pair")) == 1, "the same pair is not validated twice"


def test_another_edit_in_mid_rollout_goes_straight_to_the_newest(story: Story) -> None:
    stable = installed(story)
    story.apply(simulated(sim={"seed": 1, "stall_requests": True}))
    b = until_canary(story, stable)
    story.apply(simulated(sim={"seed": 2}))
    with story.traffic():
        c = story.until_stable()
        story.until("only the newest serves", lambda _: story.serving() == {c: 1})
    assert c not in (stable, b)
    promoted = [event.note for event in story.events() if event.reason == "Promoted"]
    assert promoted[-1] == f"Revision {c} is stable in place of {stable}"


def test_without_a_spare_gpu_a_canary_takes_the_place_of_a_stable_worker(story: Story) -> None:
    one_gpu = {"limits": {"nvidia.com/gpu": 1}}
    tight = {"maxSurge": 0, "maxUnavailable": 1}
    before = installed(story, replicas=2, resources=one_gpu, rollout=tight)
    with story.traffic():
        story.apply(simulated(replicas=2, resources=one_gpu, rollout=tight, sim={"seed": 1}))
        most = [len([pod for pod in story.pods() if not pod.terminating])]

        def over(shown: object) -> bool:
            most.append(sum(item["spec"]["replicas"] for item in story.items("deployments", "pair")))
            return len(story.serving()) == 1 and before not in story.serving()

        story.until("only the new revision serves", over)
        after = story.until_stable()
    assert max(most) == 2
    assert story.until("both workers are back", lambda _: story.serving() == {after: 2})


def test_an_autoscaler_in_mid_rollout_is_followed_by_both_revisions(story: Story) -> None:
    hold = {"seed": 1, "stall_requests": True}
    stable = installed(story, replicas=2)
    story.apply(simulated(replicas=2, sim=hold))
    canary = until_canary(story, stable)
    story.kubectl("scale", "specdep/pair", "--replicas=4")
    story.until("both grow", lambda _: story.serving() == {stable: 2, canary: 2})
    story.kubectl("scale", "specdep/pair", "--replicas=1")
    story.until("both shrink", lambda _: story.serving() == {stable: 1, canary: 1})
    assert story.show().status.canary_revision == canary


def test_a_first_install_without_life_serves_the_target_alone(story: Story) -> None:
    story.apply(simulated(sim={"self_test": "NoLife"}))
    said = story.until_condition("SpeculationActive", "False", "SelfTestFailed")
    assert "none of 64 drafts was accepted" in said.message
    story.until_condition("Ready", "True", "Serving")
    assert story.event("Quarantined").type == "Warning"
    story.until_speculating(False)


def test_a_canary_without_life_never_gets_past_its_first_step(story: Story) -> None:
    stable = installed(story)
    story.apply(simulated(sim={"self_test": "NoLife"}))
    said = story.until_condition("RolledBack", "True", "SelfTestFailed")
    assert "the drafter does not predict this target" in said.message
    story.until("only the stable revision serves", lambda _: story.serving() == {stable: 1})
    assert condition(story.show(), "CanaryHealthy").reason == "SelfTestFailed"


def test_requests_without_drafts_are_a_collapse(story: Story) -> None:
    stable = installed(story)
    with story.traffic():
        story.apply(simulated(sim={"stop_drafts": True}))
        said = story.until_condition("RolledBack", "True", "SpeculationInactive")
        story.until("only the stable revision serves", lambda _: story.serving() == {stable: 1})
    assert re.search(r"\d+ requests and \d+ tokens were served without one draft", said.message)


def test_thresholds_change_without_a_rollout(story: Story) -> None:
    revision = installed(story)
    with story.traffic():
        story.until("acceptance is shown", lambda shown: shown.status.acceptance)
        story.apply(simulated(guard={"minAcceptLength": 8.5, "onCollapse": "DisableSpeculation"}))
        said = story.until_condition("SpeculationActive", "False", "AcceptLengthBelowFloor")
    assert "floor 8.5" in said.message
    assert story.show().status.stable_revision == revision
    assert len(story.items("deployments", "pair")) == 1


def test_an_edited_config_map_is_seen_by_an_object_that_nothing_else_wakes(story: Story) -> None:
    level = {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}}
    story.kubectl("create", "configmap", "settings", "--from-literal=level=low")
    revision = installed(story, speculation={"enabled": False}, pod={"env": [level]})
    story.kubectl("patch", "configmap", "settings", "--patch", '{"data": {"level": "high"}}')
    limit_seconds = 90  # a resync comes after 96 s at the earliest
    story.until("another revision serves", lambda s: s.status.stable_revision != revision, limit_seconds=limit_seconds)
    (worker,) = story.ready_pods(revision=story.until_stable())
    pod = story.api.request("GET", story.path("pods", worker.name))
    assert {"name": "LEVEL", "value": "high"} in pod["spec"]["containers"][0]["env"]
