"""Which workers status lists as unread: those whose next reading is where evidence begins, and no others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from tandem_operator import names
from tandem_operator.api import Metadata, SpeculativeDeployment, Status
from tandem_operator.api.status import MOST_UNREAD
from tandem_operator.plan import Context, Observed, windows
from tandem_operator.plan.observed import Pod
from unit.world import DEAD, SETTINGS, Life, World, spec


def asked_for_a_retry(world: World) -> World:
    """Between two looks: workers were not read since."""
    world.annotations[names.RETRY] = "1"
    world.step(seconds=1)
    return world


def serves(**fields: object) -> World:
    return World(spec("a", replicas=2, **fields)).run(6)


def test_workers_that_were_there_are_listed_until_they_are_read() -> None:
    world = asked_for_a_retry(serves())
    assert world.status.unread == list(world.pods)
    world.step()
    assert world.status.unread == []


def test_those_without_a_drafter_are_not_for_nobody_reads_them() -> None:
    assert asked_for_a_retry(serves(speculation={"enabled": False})).status.unread == []


def test_those_that_leave_or_are_gone_are_not() -> None:
    world = asked_for_a_retry(serves())
    leaves, stays = world.pods
    world.pods[leaves] = replace(world.pods[leaves], terminating=True)
    assert world.plan().status.unread == [stays]
    world.pods[leaves] = replace(world.pods[leaves], terminating=False)
    del world.pods[leaves]
    assert world.plan().status.unread == [stays]


def test_a_quarantine_writes_no_status_between_two_looks() -> None:
    world = serves()
    world.lives["a"] = Life(rate=DEAD)
    world.run(3)
    assert world.status.quarantined
    assert world.status.unread == list(world.pods)
    while world.step(seconds=1).commands:
        pass
    before = world.status
    world.step(seconds=1)
    assert world.status == before


def test_a_canary_that_warms_up_is_listed_from_its_first_pass_on() -> None:
    """Whether its workers can be read or not: what counts is what is drafted later."""
    analysis = {"intervalSeconds": 10, "initialDelaySeconds": 60}
    world = serves()
    world.edit(spec("b", replicas=2, rollout={"steps": [{"weight": 50}], "analysis": analysis}))
    while not (world.status.progress and world.status.progress.in_force_at):
        world.step(seconds=1)
    assert world.status.unread == [
        pod.uid for pod in world.pods.values() if pod.revision == world.status.canary_revision
    ]


def test_only_what_is_judged_has_a_window() -> None:
    world = serves()
    world.edit(spec("b", replicas=2))
    while len(world.status.windows) < 2:
        world.step()
    assert {w.revision for w in world.status.windows} == {world.status.stable_revision, world.status.canary_revision}
    world.edit(spec("a", replicas=2))
    world.step()
    assert [w.revision for w in world.status.windows] == [world.status.stable_revision]


def test_the_list_is_never_longer_than_the_api_server_takes() -> None:
    pods = tuple(Pod(str(n), str(n), "r", True, False) for n in range(MOST_UNREAD + 1))
    resource = SpeculativeDeployment(metadata=Metadata(name="pair", namespace="ns", uid="uid"), spec=spec())
    context = Context(Observed(resource, pods), SETTINGS, datetime(2026, 1, 1, tzinfo=UTC))
    status = windows.kept(context, windows.all_begun_anew(context, Status()))
    assert len(status.unread) == MOST_UNREAD
