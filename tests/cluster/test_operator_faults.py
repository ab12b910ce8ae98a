"""Whatever happens between the operator and the API server, and whenever the operator dies: the same end.

`make crash-test` kills it before and after every write; here a few are drawn. docs/operator-faults.md lists what is
known to go wrong with operators of this kind and which test holds against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from crashtest.__main__ import crash_at_every_write
from crashtest.lab import NAME, Lab, Place, hollow_spec
from crashtest.proxy import Fault, watches_of, writes_of
from crashtest.scenarios import rollout
from localcluster import Cluster
from tandem_operator import names
from tandem_operator.api import PLURAL

pytestmark = pytest.mark.cluster

KINDS = (PLURAL, "deployments", "controllerrevisions", "jobs", "pods", "services")


@pytest.fixture
async def lab(lab_cluster: Cluster) -> AsyncIterator[Lab]:
    async with Lab.of(lab_cluster) as lab:
        yield lab


@pytest.mark.parametrize("scenario", ["rollout", "rollback"])
async def test_an_operator_that_is_killed_at_some_write_ends_as_one_that_was_not(lab: Lab, scenario: str) -> None:
    told = await crash_at_every_write(lab, scenario, share=0.02, at_once=2, seed=20261130)
    assert told.wrong == []
    assert sum(told.deaths.values()) >= 1


async def test_writes_that_are_refused_lost_reset_or_late_are_done_in_the_end(lab: Lab) -> None:
    """Twice the same: undisturbed, and with every kind of write harmed in every way at least once."""
    async with lab.place() as place:
        await rollout(place)
        expected = await place.end()
    async with lab.place() as place:
        faults = [
            place.proxy.harm(Fault("refuse", writes_of("/status"), code=409)),
            place.proxy.harm(Fault("refuse", writes_of("/deployments"), code=500)),
            place.proxy.harm(Fault("refuse", writes_of("/services"), code=429, headers={"Retry-After": "1"})),
            place.proxy.harm(Fault("lost", writes_of("/deployments"))),
            place.proxy.harm(Fault("lost", writes_of("/status"))),
            place.proxy.harm(Fault("lost", writes_of("/jobs"))),
            place.proxy.harm(Fault("reset", writes_of("/controllerrevisions"))),
            place.proxy.harm(Fault("delay", writes_of("/configmaps"), seconds=2)),
        ]
        await rollout(place)
        found = await place.end()
        assert [fault.done for fault in faults] == [1] * len(faults)
    assert {key: found[key] for key in expected if found[key] != expected[key]} == {}


async def test_watches_that_are_gone_or_reset_are_opened_again(lab: Lab) -> None:
    async with lab.place() as place:
        for kind in KINDS:
            place.proxy.harm(Fault("gone", watches_of(kind)))
            place.proxy.harm(Fault("reset", watches_of(kind)))
        await rollout(place)
        assert sum(fault.done for fault in place.proxy.faults) == 2 * len(KINDS)


async def test_writes_that_are_never_answered_are_given_up_and_done_again(lab: Lab) -> None:
    async with lab.place() as place:
        faults = [place.proxy.harm(Fault("hang", writes_of(part))) for part in ("/deployments", "/status")]
        await rollout(place)
        assert [fault.done for fault in faults] == [1, 1]
        assert place.operator.starts == 1


async def test_watches_that_are_all_deaf_delay_and_no_more(lab: Lab) -> None:
    """Their connections stand and tell nothing (kopf #585, #957): lists find, minute by minute, what was not told."""
    async with lab.place() as place:
        await place.apply(hollow_spec("a"))
        await place.until_settled()
        deaf = [place.proxy.harm(Fault("deaf", watches_of(kind), times=99)) for kind in KINDS]
        place.operator.kill()
        await place.until("it is back", lambda _: all(fault.done for fault in deaf))
        await place.apply(hollow_spec("a", replicas=3))
        shown = await place.until_settled()
        assert (shown.status.replicas, shown.status.observed_generation) == (3, 2)


async def test_workers_left_by_an_object_whose_deletion_is_told_late_are_not_given_back_to_it(lab: Lab) -> None:
    """`--cascade=orphan` takes the owner off the children, whose watch tells at once; the object's tells nothing. Given
    their dead owner again, they would be collected as garbage."""
    async with lab.place() as place:
        await place.apply(hollow_spec("a"))
        await place.until_settled()
        told = place.proxy.harm(Fault("deaf", watches_of(PLURAL), times=9))
        place.operator.kill()
        await place.until("it is back", lambda _: told.done)
        before = await _uids(place)
        dead = (await place.show()).metadata.uid
        await place.lab.ask("DELETE", place.path(PLURAL, NAME) + "?propagationPolicy=Orphan")
        await place.until_gone()
        await asyncio.sleep(2)  # time to do harm in
        place.proxy.faults.clear()
        place.operator.kill()
        await place.apply(hollow_spec("a"))
        assert (await place.show()).metadata.uid != dead
        await place.until_settled()
        assert await _uids(place) == before


async def _uids(place: Place) -> set[str]:
    """Of workers and their Deployments."""
    items = [item for kind in ("deployments", "pods") for item in await place.items(kind)]
    return {item["metadata"]["uid"] for item in items if names.REVISION in item["metadata"]["labels"]}


async def test_an_api_server_that_is_killed_in_mid_rollout_costs_time_and_nothing_else(lab_cluster: Cluster) -> None:
    """And the history of its store is thrown away meanwhile, so that no watch can go on where it was."""
    own = Cluster.start(name=f"{lab_cluster.name}-restart", hollow=True)
    try:
        async with Lab.of(own) as lab, lab.place() as place:
            await place.apply(hollow_spec("a"))
            await place.until_settled()
            await place.apply(hollow_spec("b"))
            await place.until("the canary has begun", lambda shown: shown.status.canary_revision)
            own.compact()
            own.restart_api_server()
            await place.until_settled(limit_seconds=150)
            await place.apply(hollow_spec("c"))
            await place.until_settled()
            shown = await place.show()
            assert shown.status.quarantined == []
            assert len(await place.items("controllerrevisions")) == 3
    finally:
        own.stop()
