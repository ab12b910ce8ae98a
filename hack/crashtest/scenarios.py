"""What the operator is in the middle of when it is harmed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from crashtest.lab import Place, hollow_spec

Scenario = Callable[[Place], Awaitable[None]]


async def rollout(place: Place) -> None:
    """A first install, then another drafter over its step to the end."""
    await place.apply(hollow_spec("a"))
    await place.until_settled()
    await place.apply(hollow_spec("b"))
    await place.until_settled()


async def rollback(place: Place) -> None:
    """A canary that does not predict is taken back."""
    await place.apply(hollow_spec("a"))
    await place.until_settled()
    await place.apply(hollow_spec("b", rate=0.02))
    shown = await place.until_settled()
    assert [entry.revision for entry in shown.status.quarantined] != []


SCENARIOS: dict[str, Scenario] = {"rollout": rollout, "rollback": rollback}
