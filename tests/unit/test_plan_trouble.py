"""What goes wrong in a cluster has a named outcome, and children that nobody owns find their way back."""

from __future__ import annotations

from dataclasses import replace

from tandem_operator.api import Status
from tandem_worker.contract import ValidationReport, Verdict
from unit.world import WEAK, Life, World, spec


def held(drafter: str = "b") -> World:
    """A canary that waits for a person."""
    fields = {"rollout": {"steps": [{"weight": 50, "pause": {}}], "analysis": {"intervalSeconds": 10}}}
    world = World(spec("a", replicas=2)).run(6)
    world.edit(spec(drafter, replicas=2, **fields))
    return world.run(8)


def restart(world: World, revision: str, times: int) -> None:
    for uid, pod in world.pods.items():
        if pod.revision == revision:
            words = "OOMKilled (exit 137)"
            world.pods[uid] = replace(pod, restarts=pod.restarts + times, trouble=words)


# --- workers that die ------------------------------------------------------------------------------------------------


def test_a_canary_whose_workers_die_again_and_again_is_taken_back_however_well_it_does_in_between() -> None:
    world = held()
    for _ in range(3):
        restart(world, world.status.canary_revision, 1)
        world.step()
    world.run(4)
    assert world.serving() == {"a": 2}
    assert world.condition("RolledBack")[:2] == ("True", "WorkersRestart")
    assert "workers restarted 3 times since they were ready; pod-" in world.condition("RolledBack")[2]
    assert "OOMKilled (exit 137)" in world.condition("RolledBack")[2]


def test_one_restart_is_forgiven_and_so_is_what_happened_before_a_worker_was_ready() -> None:
    world = World(spec("a", replicas=2)).run(6)
    world.lives["b"] = Life(starts=False)
    world.edit(spec("b", replicas=2))
    world.run(4)
    restart(world, world.status.canary_revision, 9)
    kept = dict(world.pods)
    world.lives["b"] = Life()
    world.run(1)
    for uid, pod in world.pods.items():
        if pod.revision == world.status.canary_revision and uid not in kept:
            world.pods[uid] = replace(pod, restarts=9)
    world.run(1)
    restart(world, world.status.canary_revision, 1)
    world.run(10)
    assert world.serving() == {"b": 2}


def test_restarts_of_what_serves_are_told_in_its_condition() -> None:
    world = World(spec("a")).run(6)
    restart(world, world.status.stable_revision, 7)
    world.run(1)
    status, reason, message = world.condition("Ready")
    assert (status, reason) == ("True", "Serving")
    assert message.endswith("restarted 7 times, last OOMKilled (exit 137)")


def test_a_tag_that_was_moved_between_two_workers_of_a_revision_is_told() -> None:
    world = World(spec("a", replicas=2)).run(6)
    digests = iter(("worker@sha256:aa", "worker@sha256:bb"))
    world.pods = {uid: replace(pod, image=next(digests)) for uid, pod in world.pods.items()}
    world.run(1)
    assert world.condition("Ready")[:2] == ("True", "MixedImages")
    assert "run different images (worker@sha256:aa, worker@sha256:bb)" in world.condition("Ready")[2]
    world.pods = {uid: replace(pod, image="worker@sha256:bb") for uid, pod in world.pods.items()}
    world.run(1)
    assert world.condition("Ready")[:2] == ("True", "Serving")


def test_pods_that_may_not_be_made_are_told_with_the_reason() -> None:
    world = World(spec("a"), lives={"a": Life(starts=False)}).run(3)
    world.pods.clear()
    revision = world.status.canary_revision
    refused = 'pods "pair-1" is forbidden: exceeded quota: gpus'
    world.deployments[revision] = replace(world.deployments[revision], problem=refused)
    decided = world.plan()
    said = {c.type: c.message for c in decided.status.conditions}
    assert said["Progressing"] == f"canary {revision}: 0 of 1 workers ready; {refused}"
    assert said["Ready"].endswith(refused)


# --- children without an owner ---------------------------------------------------------------------------------------


def orphaned() -> World:
    """After `kubectl delete --cascade=orphan`: `a` was stable, `b` its canary; the object is made anew as it was."""
    world = held()
    world.deployments = {r: replace(d, owned=False) for r, d in world.deployments.items()}
    world.history = {r: replace(h, owned=False) for r, h in world.history.items()}
    world.status, world.jobs = Status(), {}
    return world


def adopted(world: World) -> set[str]:
    """Kinds and revisions of what is applied in one pass."""
    return {m["kind"] + m["metadata"]["labels"].get("tandem.dev/revision", "") for m in world.plan().apply}


def test_orphans_go_on_serving_and_are_taken_over() -> None:
    world = orphaned()
    before = {pod.uid for pod in world.pods.values()}
    stable, canary = sorted(world.deployments, key=lambda r: world.history[r].number)
    world.edit(spec("a", replicas=2))
    assert adopted(world) >= {f"Deployment{r}" for r in (stable, canary)} | {
        f"ControllerRevision{r}" for r in (stable, canary)
    }
    world.run(8)
    assert world.serving() == {"a": 2}
    assert before & {pod.uid for pod in world.pods.values()}, "workers of the orphan were kept"
    assert world.status.stable_revision == stable


def test_an_orphan_that_is_no_part_of_the_spec_goes() -> None:
    world = orphaned()
    world.edit(spec("c", replicas=2))
    world.run(12)
    assert world.serving() == {"c": 2}


def test_an_orphan_without_a_record_goes_when_it_is_empty() -> None:
    world = orphaned()
    world.history.clear()
    world.edit(spec("c", replicas=2))
    world.run(12)
    assert world.serving() == {"c": 2}
    assert list(world.deployments) == [world.status.stable_revision]


# --- a status that is lost -------------------------------------------------------------------------------------------


def test_what_served_is_found_again_and_the_canary_walks_its_steps_anew() -> None:
    """A backup was restored without status (as Velero does it): a canary must not be taken for a first install."""
    world = held()
    stable, canary = world.status.stable_revision, world.status.canary_revision
    world.status = Status()
    world.step()
    assert (world.status.stable_revision, world.status.canary_revision) == (stable, canary)
    assert world.status.weight == 50
    world.run(8)
    assert world.condition("Progressing")[1] == "Paused"


def test_workers_are_still_judged_when_the_status_is_lost_and_the_pair_is_in_doubt() -> None:
    world = World(spec("a", replicas=2)).run(6)
    stable = world.status.stable_revision
    world.validate = lambda _: ValidationReport(verdict=Verdict.DOES_NOT_FIT, mode="Static", summary="does not fit")
    world.status, world.jobs = Status(), {}
    world.lives["a"] = Life(rate=WEAK)
    world.run(40)
    assert world.status.stable_revision == stable
    assert world.serving() == {"a": 2}
    assert world.condition("SpeculationActive")[:2] == ("False", "AcceptLengthBelowFloor")


def test_a_record_whose_workers_are_gone_is_no_revision_that_serves() -> None:
    world = World(spec("a", replicas=2)).run(6)
    world.status, world.jobs = Status(), {}
    world.deployments.clear()
    world.pods.clear()
    world.workers.clear()
    world.edit(spec("b", replicas=2))
    world.run(6)
    assert world.serving() == {"b": 2}
    assert not [event for event in world.events if "weight 50" in event], "there was nothing to compare it with"
