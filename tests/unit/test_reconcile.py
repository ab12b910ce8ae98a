"""One pass, when a part of it comes to nothing: what was written is neither forgotten nor done twice."""

from __future__ import annotations

import time
from datetime import timedelta

import aiohttp
import pytest
from kubernetes.aio import client

from tandem_operator import reconcile
from tandem_operator.apply import Applied
from tandem_operator.events import Events
from tandem_operator.metrics import Metrics
from tandem_operator.observe import InvalidObject, Sight
from tandem_operator.plan import Context, Plan
from tandem_operator.plan.decision import Event
from tandem_operator.queue import Key
from tandem_operator.reconcile import CONFLICT_AGAIN_SECONDS, Reconciler
from tandem_operator.signing import Signer
from tandem_operator.store import Store
from tandem_operator.workers import Workers
from unit.world import SETTINGS, World, spec

KEY = Key("ns", "pair")
TWO_HOURS = timedelta(hours=2)
PROMOTED = Event("Normal", "Promoted", "Revision b is stable")


class Passes:
    """Of a served pair, by a reconciler whose world is as it is told to be here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World(spec()).run(6)
        self.sees: Sight | InvalidObject = Sight(world.observed(), {})
        self.applied: Applied | None = Applied(world.status, (PROMOTED,), 7.0)
        self.clock_set: list[timedelta] = []  # as each plan was told
        self.told: list[str] = []
        self.telling: Exception | None = None
        self.metrics = Metrics()
        for name, stand_in in (("observe", self._observe), ("apply", self._apply), ("plan", self._plan)):
            monkeypatch.setattr(reconcile, name, stand_in)
        monkeypatch.setattr(Events, "tell_all", self._tell)
        api, session = client.ApiClient.__new__(client.ApiClient), aiohttp.ClientSession.__new__(aiohttp.ClientSession)
        self.run = Reconciler(api, Store(), Workers(session, Signer()), SETTINGS, self.metrics)

    async def _observe(self, *_: object) -> Sight:
        if isinstance(self.sees, InvalidObject):
            raise self.sees
        return self.sees

    def _plan(self, context: Context) -> Plan:
        self.clock_set.append(context.clock_set)
        return Plan(context.observed.resource.status)

    async def _apply(self, *_: object) -> Applied | None:
        return self.applied

    async def _tell(self, _: object, __: object, events: tuple[Event, ...], ___: object) -> None:
        if self.telling:
            raise self.telling
        self.told += [event.reason for event in events]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


async def set_clock(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    await passes.run(KEY)
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 7200)


async def test_times_that_were_moved_along_are_not_moved_again_though_telling_of_it_fails(
    passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_clock(passes, monkeypatch)
    passes.telling = RuntimeError("whatever it is")
    with pytest.raises(RuntimeError):
        await passes.run(KEY)
    passes.telling = None
    assert await passes.run(KEY) == 7.0
    assert passes.clock_set == [timedelta(), TWO_HOURS, timedelta()]


async def test_times_are_moved_along_again_while_the_status_is_not_written(
    passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_clock(passes, monkeypatch)
    told, written = list(passes.told), passes.applied
    passes.applied = None
    assert await passes.run(KEY) == CONFLICT_AGAIN_SECONDS
    assert passes.told == told, "what was not recorded is not told"
    passes.applied = written
    await passes.run(KEY)
    await passes.run(KEY)
    assert passes.clock_set == [timedelta(), TWO_HOURS, TWO_HOURS, timedelta()]


async def test_an_object_that_can_not_be_read_any_more_keeps_no_series(passes: Passes) -> None:
    await passes.run(KEY)
    assert b'specdep="pair"' in passes.metrics.exposition()
    passes.sees = InvalidObject("spec.replicas: not a number")
    assert await passes.run(KEY) is None
    assert b'specdep="pair"' not in passes.metrics.exposition()
