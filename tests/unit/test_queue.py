"""The work queue: one reconcile at a time for each object, a bound on all, and nothing that was asked for is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator import queue as queueing
from tandem_operator.queue import GONE, Key, Reconcile, WorkQueue

A, B = Key("ns", "a"), Key("ns", "b")


@asynccontextmanager
async def running(reconcile: Reconcile, workers: int = 8, resync_seconds: float = 3600) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(reconcile, workers, resync_seconds)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for is not all told by events
            await asyncio.sleep(0.001)


class Door:
    """A reconcile that waits to be let through, and remembers who is inside."""

    def __init__(self) -> None:
        self.inside: Counter[Key] = Counter()
        self.most = 0
        self.most_of_one = 0
        self.turns: Counter[Key] = Counter()
        self.open = asyncio.Event()

    async def __call__(self, key: Key) -> float | None:
        self.turns[key] += 1
        self.inside[key] += 1
        self.most = max(self.most, self.inside.total())
        self.most_of_one = max(self.most_of_one, self.inside[key])
        try:
            await self.open.wait()
        finally:
            self.inside[key] -= 1
        return None


async def test_a_key_that_is_added_while_it_runs_runs_once_more_afterwards_and_not_at_the_same_time() -> None:
    door = Door()
    async with running(door) as queue:
        queue.add(A)
        await until(lambda: door.inside[A])
        for _ in range(5):
            queue.add(A)
        queue.add(B)
        await until(lambda: door.inside[B])
        assert door.turns == {A: 1, B: 1}
        door.open.set()
        await until(lambda: door.turns[A] == 2 and not door.inside.total())
    assert door.turns == {A: 2, B: 1}
    assert door.most_of_one == 1


async def test_no_more_than_the_given_number_run_at_once_and_all_get_their_turn() -> None:
    door, keys = Door(), [Key("ns", f"pair-{number}") for number in range(20)]
    async with running(door, workers=3) as queue:
        for key in keys:
            queue.add(key)
        await until(lambda: door.inside.total() == 3)
        door.open.set()
        await until(lambda: len(door.turns) == 20)
    assert door.most == 3
    assert set(door.turns.values()) == {1}


async def test_one_that_fails_is_tried_again_with_growing_pauses_and_does_not_hold_up_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queueing, "BACKOFF_FIRST_SECONDS", 0.02)
    loop, failures, good = asyncio.get_running_loop(), list[float](), list[Key]()

    async def reconcile(key: Key) -> float | None:
        if key == B:
            good.append(key)
            return None
        failures.append(loop.time())
        if len(failures) < 5:
            raise OSError("the API server is away")
        return None

    async with running(reconcile) as queue:
        queue.add(A)
        queue.add(B)
        await until(lambda: len(failures) == 5)
    pauses = [after - before for before, after in itertools.pairwise(failures)]
    assert all(pause >= least for pause, least in zip(pauses, (0.02, 0.04, 0.08, 0.16), strict=True))
    assert good == [B]


async def test_the_pause_that_a_reconcile_asks_for_is_kept_unless_the_key_is_added_before() -> None:
    turns = []

    async def reconcile(key: Key) -> float | None:
        turns.append(key)
        return 0.01 if len(turns) < 3 else 3600

    async with running(reconcile) as queue:
        queue.add(A)
        await until(lambda: len(turns) == 3)
        queue.add(A)
        await until(lambda: len(turns) == 4)


async def test_of_several_wishes_the_earliest_counts() -> None:
    turns = []

    async def reconcile(key: Key) -> float | None:
        turns.append(key)
        return None

    async with running(reconcile) as queue:
        queue.add(A, after_seconds=3600)
        queue.add(A)
        queue.add(A, after_seconds=3600)
        await until(lambda: turns == [A])


async def test_an_object_that_is_gone_is_forgotten_until_it_is_added_again() -> None:
    turns = []

    async def reconcile(key: Key) -> float | None:
        turns.append(key)
        return GONE if key == A else None

    async with running(reconcile, resync_seconds=0.01) as queue:
        queue.add(A)
        queue.add(B)
        await until(lambda: turns.count(B) >= 5)
        assert turns.count(A) == 1
        queue.add(A)
        await until(lambda: turns.count(A) == 2)


async def test_a_reconcile_that_is_stuck_shows_and_the_queue_goes_on() -> None:
    door = Door()
    async with running(door) as queue:
        queue.add(A)
        await until(lambda: door.inside[A])
        await until(lambda: queue.stuck_seconds() > 0.02)
        assert queue.beat_seconds > 0
        door.open.set()
        await until(lambda: queue.stuck_seconds() == 0)


async def test_stopping_the_queue_stops_what_runs() -> None:
    door = Door()
    async with running(door) as queue:
        queue.add(A)
        await until(lambda: door.inside[A])
    assert not door.inside.total()


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["add", "let one turn pass", "fail"])), max_size=30))
def test_whatever_is_added_is_run_after_it_was_added(steps: list[tuple[int, str]]) -> None:
    async def history() -> None:
        asked, seen, failing = Counter[Key](), Counter[Key](), set[Key]()
        inside = Counter[Key]()

        async def reconcile(key: Key) -> float | None:
            assert not inside[key]
            inside[key] += 1
            wish = asked[key]  # what is observed at the begin
            await asyncio.sleep(0)
            inside[key] -= 1
            if key in failing:
                failing.discard(key)
                raise OSError
            seen[key] = wish
            return GONE

        async with running(reconcile, workers=2) as queue:
            for number, what in steps:
                key = Key("ns", str(number))
                if what == "fail":
                    failing.add(key)
                elif what == "add":
                    asked[key] += 1
                    queue.add(key)
                else:
                    await asyncio.sleep(0)
            await until(lambda: seen == asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queueing, "BACKOFF_FIRST_SECONDS", 0.001)
        asyncio.run(history())
