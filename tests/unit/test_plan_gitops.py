"""What Flux, Argo CD and `kpt live` make of an object, in every state that it can be in.

`kstatus` is the rule book that they share for kinds that they do not know: `status.Compute` of
sigs.k8s.io/cli-utils/pkg/kstatus, generic part, line by line. Argo CD has none for such kinds and runs a script of
ours, in Lua 5.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lupa.lua51 import LuaRuntime

from tandem_operator.api import Status
from tandem_operator.api.crd import custom_resource_definition
from tandem_operator.plan.conditions import Seen, kstatus
from tandem_worker.contract import Finding, SelfTestOutcome, Severity, ValidationReport, Verdict
from unit.world import DEAD, WEAK, Life, World, spec


def computed(world: World) -> str:
    observed: dict[str, Any] = world.observed().resource.model_dump(mode="json", by_alias=True)
    if observed["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if observed["status"]["observedGeneration"] != observed["metadata"]["generation"]:
        return "InProgress"
    conditions = observed["status"]["conditions"]
    for condition in conditions:
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    for condition in conditions:
        if condition["type"] == "Ready":
            return "Current" if condition["status"] == "True" else "InProgress"
    return "Current"


ARGO_CD = Path(__file__).parents[2] / "examples" / "argocd-health.lua"


def health(world: World) -> dict[str, str]:
    """As Argo CD runs it: the object is a global, the answer a table."""
    lua = LuaRuntime()
    shown = world.observed().resource.model_dump(mode="json", by_alias=True, exclude_none=True)
    lua.globals().obj = lua.table_from(shown, recursive=True)
    return dict(lua.execute(ARGO_CD.read_text()))


def refused(verdict: Verdict = Verdict.DOES_NOT_FIT) -> ValidationReport:
    finding = Finding(code="TDM-SHAPE-DIFFERS", severity=Severity.ERROR, message="fc is too narrow")
    return ValidationReport(verdict=verdict, mode="Static", summary="fc is too narrow", findings=(finding,))


def test_an_object_that_no_operator_has_seen_is_in_progress() -> None:
    world = World(spec("a"))
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    world.status = Status.model_validate(schema["properties"]["status"]["default"])
    assert computed(world) == "InProgress"
    assert health(world) == {"status": "Progressing", "message": "not seen by the operator yet"}


def test_a_rollout_is_in_progress_from_the_edit_to_the_last_worker_and_then_current() -> None:
    world = World(spec("a", replicas=2))
    seen = [computed(world.run(1)) for _ in range(8)]
    assert seen == ["InProgress"] * seen.index("Current") + ["Current"] * (8 - seen.index("Current"))
    world.edit(spec("b", replicas=2))
    assert computed(world) == "InProgress", "the spec was edited and not seen yet"
    assert health(world)["status"] == "Progressing"
    seen = [computed(world.run(1)) for _ in range(16)]
    assert set(seen) == {"InProgress", "Current"}
    assert seen[-1] == "Current"
    assert seen == sorted(seen, reverse=True), "never current before the end"
    assert world.serving() == {"b": 2}


def collapsed() -> World:
    world = World(spec("a", replicas=2)).run(6)
    world.lives["bad"] = Life(rate=WEAK)
    world.edit(spec("bad", replicas=2))
    return world.run(20)


def never_starts() -> World:
    quick = {"steps": [{"weight": 50}], "progressDeadlineSeconds": 60}
    return World(spec("a", rollout=quick), lives={"a": Life(starts=False)}).run(16)


def held() -> World:
    analysis = {"intervalSeconds": 10, "timeoutSeconds": 60, "onInconclusive": "Hold"}
    world = World(spec("a", replicas=2)).run(6)
    world.requests_per_step = 0
    world.edit(spec("b", replicas=2, rollout={"steps": [{"weight": 50}], "analysis": analysis}))
    return world.run(16)


def waits_for_a_person() -> World:
    world = World(spec("a", replicas=2)).run(6)
    paused = {"steps": [{"weight": 50, "pause": {}}], "analysis": {"intervalSeconds": 10}}
    world.edit(spec("b", replicas=2, rollout=paused))
    return world.run(16)


def too_few_workers() -> World:
    world = World(spec("a", replicas=2)).run(6)
    world.lives["a"] = Life(starts=False)
    for uid in list(world.pods):
        del world.pods[uid]
        world.workers.pop(uid)
    return world.run(2)


STATES: dict[str, tuple[Any, str]] = {
    "serving": (lambda: World(spec("a")).run(8), "Current"),
    "scaled to zero": (lambda: World(spec("a", replicas=0)).run(8), "Current"),
    "a pair that does not fit": (lambda: World(spec("a"), validate=lambda _: refused()).run(4), "Failed"),
    "not served, paused": (lambda: World(spec("a", paused=True)).run(8), "InProgress"),
    "a host path that is not allowed": (
        lambda: World(spec("a", target={"source": {"hostPath": {"path": "/etc"}}})).run(3),
        "Failed",
    ),
    "rolled back": (collapsed, "Failed"),
    "speculation off with nothing to go back to": (
        lambda: World(spec("a"), lives={"a": Life(rate=DEAD)}).run(12),
        "Failed",
    ),
    "without life": (
        lambda: World(spec("a"), lives={"a": Life(self_test=SelfTestOutcome.NO_LIFE)}).run(8),
        "Failed",
    ),
    "workers that never start": (never_starts, "Failed"),
    "held without evidence": (held, "Failed"),
    "a pause until promoted": (waits_for_a_person, "InProgress"),
    "too few workers": (too_few_workers, "InProgress"),
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_the_health_that_a_person_would_give_it(state: str) -> None:
    reach, expected = STATES[state]
    world = reach()
    assert computed(world) == expected
    in_argo_cd = {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded"}
    waits = state in ("not served, paused", "a pause until promoted")
    assert health(world)["status"] == ("Suspended" if waits else in_argo_cd[expected])
    assert health(world)["message"]


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
@pytest.mark.parametrize("reason", ["Complete", "ScaledToZero", "Quarantined", "RollingOut"])
@pytest.mark.parametrize("ready", ["True", "False", "Unknown"])
def test_nothing_is_in_progress_and_failed_at_once(status: Any, reason: str, ready: Any) -> None:
    reconciling, stalled = kstatus(Seen("Progressing", status, reason, ""), Seen("Ready", ready, "", ""))
    assert (reconciling.type, stalled.type) == ("Reconciling", "Stalled")
    assert {reconciling.status, stalled.status} != {"True"}
    if {reconciling.status, stalled.status} == {"False"}:
        assert ready == "True"


# --- the target alone, where the pair is refused ---------------------------------------------------------------------

TARGET_ONLY = {"validation": {"onInvalid": "ServeTargetOnly"}}


@pytest.mark.parametrize("verdict", [Verdict.DOES_NOT_FIT, Verdict.COULD_NOT_CHECK])
def test_a_first_install_that_is_refused_can_serve_the_target_alone(verdict: Verdict) -> None:
    world = World(spec("a", replicas=2, **TARGET_ONLY), validate=lambda _: refused(verdict)).run(8)
    assert world.serving() == {"-": 2}
    assert world.condition("Validated")[:2] == ("False", verdict)
    assert world.condition("Ready")[:2] == ("True", "Serving")
    assert world.condition("SpeculationActive")[:2] == ("False", "PairRefused")
    assert world.condition("Progressing")[:2] == ("False", verdict)
    assert computed(world) == "Failed"
    revision = world.status.stable_revision
    for _ in range(30):
        world.step(seconds=60)
        assert world.serving() == {"-": 2}, "also while a pair that could not be checked is tried again"
    assert world.status.stable_revision == revision


def test_by_default_a_pair_that_is_refused_starts_nothing() -> None:
    world = World(spec("a"), validate=lambda _: refused()).run(8)
    assert world.deployments == {}
    assert world.condition("Ready")[:2] == ("False", "NotValidated")


def test_the_target_alone_gives_way_to_a_pair_that_fits() -> None:
    world = World(spec("bad", replicas=2, **TARGET_ONLY), validate=lambda _: refused()).run(8)
    world.validate = World(spec()).validate
    world.edit(spec("good", replicas=2, **TARGET_ONLY))
    world.run(16)
    assert world.serving() == {"good": 2}
    assert world.condition("SpeculationActive")[:2] == ("True", "Speculating")


def test_a_refused_pair_does_not_take_the_place_of_one_that_serves() -> None:
    world = World(spec("a", replicas=2, **TARGET_ONLY)).run(6)
    world.validate = lambda _: refused()
    world.edit(spec("bad", replicas=2, **TARGET_ONLY))
    world.run(8)
    assert world.serving() == {"a": 2}
    assert world.speculating() == {True}


# --- going back to a revision that served ----------------------------------------------------------------------------


def test_a_spec_that_goes_back_skips_the_steps_but_not_the_workers() -> None:
    world = World(spec("a", replicas=4)).run(6)
    world.edit(spec("b", replicas=4))
    world.run(14)
    assert world.serving() == {"b": 4}
    world.requests_per_step = 0  # nothing could prove it
    world.lives["a"] = Life(starts=False)
    world.edit(spec("a", replicas=4))
    world.run(3)
    assert world.status.weight == 100
    assert world.serving() == {"b": 4}, "no worker of the old revision is ready yet"
    world.lives["a"] = Life()
    world.run(6)
    assert world.serving() == {"a": 4}


def back_to(drafter: str, **rollout: object) -> World:
    """After `a`, `b` and `c` served, the spec goes back; nobody sends requests."""
    fields = {"rollout": {"steps": [{"weight": 50}], "analysis": {"intervalSeconds": 10}, **rollout}}
    world = World(spec("a", replicas=2, **fields)).run(6)
    for name in "bc":
        world.edit(spec(name, replicas=2, **fields))
        world.run(14)
    world.requests_per_step = 0
    world.edit(spec(drafter, replicas=2, **fields))
    return world.run(8)


def test_only_the_last_revisions_may_skip_the_steps() -> None:
    assert back_to("b").serving() == {"b": 2}
    assert back_to("a").serving() == {"a": 1, "c": 1}
    assert back_to("a", rollbackWindowRevisions=2).serving() == {"a": 2}
    assert back_to("b", rollbackWindowRevisions=0).serving() == {"b": 1, "c": 1}


def test_the_last_revision_is_the_one_that_served_last_not_the_one_that_was_made_last() -> None:
    world = back_to("b")
    world.requests_per_step = 10
    world.edit(spec("d", replicas=2))
    world.run(14)
    world.lives["d"] = Life(rate=DEAD)
    world.run(10)
    assert world.serving() == {"b": 2}, "a, b, c, b, d: before d there was b"


def test_what_was_ever_held_against_a_revision_makes_it_walk_the_steps() -> None:
    world = World(spec("a", replicas=2)).run(6)
    world.edit(spec("b", replicas=2))
    world.run(14)
    world.lives["b"] = Life(rate=DEAD)
    world.run(10)
    assert world.serving() == {"a": 2}
    world.edit(spec("c", replicas=2))
    world.run(14)
    world.requests_per_step = 0
    world.edit(spec("b", replicas=2))
    world.run(8)
    assert world.serving() == {"c": 2}, "the very spec under which it collapsed"
    world.edit(spec("b", replicas=2, guard={"minAcceptLength": 1.2}))
    world.run(8)
    assert world.serving() == {"b": 1, "c": 1}
