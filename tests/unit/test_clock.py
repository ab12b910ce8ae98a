"""A clock that is set, while the operator runs: what is under way takes as long as it would have."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from tandem_operator.clock import Clock
from tandem_operator.plan import Context, plan
from tandem_operator.queue import Key
from unit.world import SETTINGS, Life, World, spec

KEY = Key("ns", "pair")
TWO_HOURS = timedelta(hours=2)


def test_a_clock_that_is_set_is_noticed_until_the_status_goes_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, right = Clock(), time.time
    assert clock.read(KEY)[1] == timedelta(), "who has just started can't know"
    monkeypatch.setattr(time, "time", lambda: right() + 7200)
    assert clock.read(KEY)[1] == TWO_HOURS
    assert clock.read(KEY)[1] == TWO_HOURS, "its status was not written"
    clock.moved_along(KEY)
    assert clock.read(KEY)[1] == timedelta()
    monkeypatch.setattr(time, "time", right)
    assert clock.read(KEY)[1] == -TWO_HOURS


def test_a_clock_that_is_steered_is_not_one_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, right = Clock(), time.time
    clock.read(KEY)
    monkeypatch.setattr(time, "time", lambda: right() + 1.5)
    assert clock.read(KEY)[1] == timedelta()


def waiting() -> World:
    """A canary that has waited 44 of its 120 seconds for a worker."""
    world = World(spec("a", replicas=2)).run(6)
    world.lives["b"] = Life(starts=False)
    rollout = {"steps": [{"weight": 50}], "analysis": {"intervalSeconds": 10}, "progressDeadlineSeconds": 120}
    world.edit(spec("b", replicas=2, rollout=rollout))
    world.run(6)
    assert world.status.canary_revision
    return world


def pass_after_setting(world: World, by: timedelta) -> World:
    world.now += by
    world.carry_out(plan(Context(world.observed(), SETTINGS, world.now, clock_set=by)))
    return world


@pytest.mark.parametrize("by", [TWO_HOURS, -TWO_HOURS])
def test_no_deadline_ends_early_or_late(by: timedelta) -> None:
    untouched, touched = waiting(), pass_after_setting(waiting(), by)
    assert touched.status.canary_revision
    passes = [0, 0]
    for n, world in enumerate((untouched, touched)):
        while world.status.canary_revision:
            world.step()
            passes[n] += 1
    assert passes[0] == passes[1]
    assert touched.condition("RolledBack")[:2] == ("True", "ProgressDeadlineExceeded")


@pytest.mark.parametrize("by", [TWO_HOURS, -TWO_HOURS])
def test_what_is_held_against_a_canary_by_an_alert_stays_held(by: timedelta) -> None:
    world = World(spec("a", replicas=2)).run(6)
    world.lives["b"] = Life(rate=0.0)
    world.edit(spec("b", replicas=2, guard={"onCollapse": "Alert"}))
    world.run(8)
    assert world.condition("Progressing")[1] == "CanaryUnhealthy"
    pass_after_setting(world, by)
    assert world.condition("Progressing")[1] == "CanaryUnhealthy"
