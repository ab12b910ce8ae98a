"""How many workers there are in every phase, how long they may take to start and to end, and what they may lose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandem_operator.plan.observed import Manifest
from tandem_worker.contract import ValidationReport, Verdict
from unit.world import DEAD, FILES, Life, World, spec

PAUSED = {"rollout": {"steps": [{"weight": 50, "pause": {}}], "analysis": {"intervalSeconds": 10}}}


def child(world: World, kind: str) -> Manifest:
    """The one child of this kind, as it is applied."""
    (found,) = [manifest for manifest in world.plan().apply if manifest["kind"] == kind]
    return found


def container(world: World) -> Manifest:
    pod: Manifest = child(world, "Deployment")["spec"]["template"]["spec"]
    found: Manifest = pod["containers"][0]
    return found


# --- an autoscaler, in every phase -----------------------------------------------------------------------------------


def installing() -> World:
    world = World(spec("a", replicas=2), lives={"a": Life(starts=False)}).run(3)
    world.lives["a"] = Life()
    return world


def stable() -> World:
    return World(spec("a", replicas=2)).run(6)


def at_a_step() -> World:
    world = stable()
    world.edit(spec("b", replicas=2, **PAUSED))
    return world.run(8)


def rolling_back() -> World:
    world = stable()
    world.edit(spec("b", replicas=2))
    world.run(14)
    world.lives["b"] = Life(rate=DEAD)
    while not world.status.canary_revision:
        world.step()
    return world


def switched_off() -> World:
    return World(spec("a", replicas=2), lives={"a": Life(rate=DEAD)}).run(12)


PHASES: list[tuple[Callable[[], World], int, dict[str, int]]] = [
    (installing, 5, {"a": 5}),
    (stable, 5, {"a": 5}),
    (at_a_step, 6, {"a": 3, "b": 3}),
    (at_a_step, 1, {"a": 1, "b": 1}),
    (rolling_back, 5, {"a": 5}),
    (rolling_back, 1, {"a": 1}),
    (switched_off, 4, {"a": 4}),
]


@pytest.mark.parametrize(("phase", "replicas", "serving"), PHASES)
def test_an_autoscaler_is_followed_in_every_phase(
    phase: Callable[[], World], replicas: int, serving: dict[str, int]
) -> None:
    world = phase()
    world.edit(world.spec.model_copy(update={"replicas": replicas}))
    world.run(8)
    assert world.serving() == serving
    assert world.status.replicas == sum(serving.values())


def test_the_share_that_a_weight_comes_to_is_shown() -> None:
    world = stable()
    fields: dict[str, Any] = {"steps": [{"weight": 10, "pause": {}}], "analysis": {"intervalSeconds": 10}}
    world.edit(spec("b", replicas=2, rollout=fields))
    world.run(8)
    assert (world.status.weight, world.status.share) == (10, 33)
    told = "(1 of 3 workers, a share of 33 %: 2 replicas can't express 10 %, 10 can)"
    assert told in world.condition("Progressing")[2]
    world.edit(spec("b", replicas=10, rollout=fields))
    world.run(6)
    assert (world.status.weight, world.status.share) == (10, 10)
    assert "(1 of 10 workers, a share of 10 %)" in world.condition("Progressing")[2]
    world.edit(spec("a", replicas=10))
    world.run(4)
    assert world.status.share == 0


# --- starting and ending ---------------------------------------------------------------------------------------------


def sized(weight_bytes: int | None) -> World:
    report = ValidationReport(
        verdict=Verdict.FITS, mode="Static", summary="fits", fingerprints=FILES, weight_bytes=weight_bytes
    )
    return World(spec("a"), validate=lambda _: report).run(6)


@pytest.mark.parametrize(
    ("weight_bytes", "start_up", "deadline"),
    [
        (2_000_000, 600, 1800),
        (16_000_000_000, 600 + 320, 1800),
        (810_000_000_000, 600 + 16_200, 25_200),
        (None, 3600, 1800),
    ],
)
def test_a_worker_has_the_time_to_load_what_it_has_to_load(
    weight_bytes: int | None, start_up: int, deadline: int
) -> None:
    world = sized(weight_bytes)
    probe = container(world)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == start_up
    assert child(world, "Deployment")["spec"]["progressDeadlineSeconds"] == deadline


def test_a_canary_that_loads_a_large_model_is_waited_for_and_one_that_hangs_is_not() -> None:
    world = sized(200_000_000_000)  # 4600 s to load, 6900 s in all
    world.lives["b"] = Life(starts=False)
    world.edit(spec("b"))
    world.run(4)
    for _ in range(65):
        world.step(seconds=100)
    assert world.status.quarantined == []
    for _ in range(6):
        world.step(seconds=100)
    assert world.status.quarantined[-1].reason == "ProgressDeadlineExceeded"


def test_a_deadline_that_the_user_sets_is_the_deadline_and_restarts_nobody() -> None:
    world = sized(810_000_000_000)
    before = child(world, "Deployment")["spec"]["template"]
    world.edit(spec("a", rollout={"progressDeadlineSeconds": 60}))
    world.run(2)
    assert child(world, "Deployment")["spec"]["progressDeadlineSeconds"] == 60
    assert child(world, "Deployment")["spec"]["template"] == before


def test_a_worker_that_goes_lets_its_streams_end() -> None:
    world = World(spec("a", pod={"terminationGracePeriodSeconds": 600})).run(6)
    assert "--drain-seconds=595" in container(world)["args"]
    pod = child(world, "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 600
    assert "lifecycle" not in container(world), "the worker itself waits until nobody sends requests any more"


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.23"), ("vllm", "0.33.0")])
def test_another_engine_is_told_to_end_once_its_address_is_withdrawn(engine: str, version: str) -> None:
    world = World(spec("a", engine={"type": engine, "version": version})).run(6)
    assert container(world)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    pod = child(world, "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 60, "of which these seconds are a part"


# --- drains of nodes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unavailable", "budget"), [(0, 1), (1, 1), (3, 3)])
def test_a_drain_of_nodes_takes_workers_one_by_one(unavailable: int, budget: int) -> None:
    world = World(spec("a", replicas=5, rollout={"maxUnavailable": unavailable})).run(6)
    wanted = child(world, "PodDisruptionBudget")["spec"]
    assert wanted["maxUnavailable"] == budget
    labels = child(world, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert wanted["selector"]["matchLabels"].items() <= labels.items(), "of whatever revision"


def test_a_broken_worker_does_not_hold_up_a_drain() -> None:
    world = stable()
    uid = next(iter(world.pods))
    world.pods[uid] = replace(world.pods[uid], ready=False)
    assert child(world, "PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
