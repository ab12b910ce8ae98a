"""Two operators at once: one acts, the other waits, and takes over when the first one ends, dies or is cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from crashtest.lab import Lab, Place, hollow_spec
from crashtest.proxy import Fault, Proxy
from localcluster import Cluster
from tandem_operator import lease

pytestmark = pytest.mark.cluster


@pytest.fixture
async def lab(lab_cluster: Cluster) -> AsyncIterator[Lab]:
    async with Lab.of(lab_cluster) as lab:
        yield lab


async def holder(place: Place) -> str:
    found = await place.lab.ask("GET", place.path("leases", lease.NAME))
    name: str = found["spec"]["holderIdentity"]
    return name


async def test_of_two_operators_one_acts_until_it_is_killed_and_then_the_other_does(lab: Lab) -> None:
    async with lab.place(identity="first") as place, Proxy.started(lab.cluster) as way:
        await place.apply(hollow_spec("a"))
        await place.until_settled()
        kubeconfig = way.write_kubeconfig(lab.cluster.layout.directory / f"{place.namespace}-second.kubeconfig")
        second = lab.operator(place.namespace, kubeconfig, identity="second")
        second.start()
        try:
            await place.apply(hollow_spec("b"))
            await place.until_settled()
            assert (way.writes, await holder(place)) == (0, "first"), "the second one watches in silence"
            place.keeper.cancel()
            place.operator.kill()
            await place.apply(hollow_spec("c"))
            await place.until("the other took over", lambda shown: shown.status.observed_generation == 3)
            await place.until_settled()
            assert await holder(place) == "second"
        finally:
            second.kill()


async def test_an_operator_that_is_restarted_in_its_pod_does_not_wait(lab: Lab) -> None:
    async with lab.place() as place:
        await place.apply(hollow_spec("a"))
        await place.until_settled()
        place.operator.kill()
        await place.apply(hollow_spec("a", replicas=3))
        await place.until("it acts", lambda shown: shown.status.replicas == 3)
        found = await place.lab.ask("GET", place.path("leases", lease.NAME))
        assert (found["spec"]["holderIdentity"], found["spec"]["leaseTransitions"]) == ("pod", 0)


async def test_an_operator_that_cannot_renew_its_lease_ends(lab: Lab) -> None:
    async with lab.place() as place:
        await place.apply(hollow_spec("a"))
        await place.until_settled()
        place.proxy.harm(Fault("reset", lambda request: "/leases" in request.path, times=99))
        await place.until("it ended, and was started again", lambda _: place.operator.starts > 1)
        place.proxy.faults.clear()
        await place.apply(hollow_spec("a", replicas=3))
        await place.until("it acts again", lambda shown: shown.status.replicas == 3)
        assert await holder(place) == "pod"
