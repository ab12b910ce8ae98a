"""What the engine's thread tells the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from tandem_worker.server.mailbox import Mailbox


class Reader:
    """Numbers as they come; `enough` is set at the last one."""

    def __init__(self, last: int) -> None:
        self.got, self.enough, self._last = list[int](), asyncio.Event(), last

    def read(self, number: int) -> None:
        self.got.append(number)
        if number == self._last:
            self.enough.set()


def engine(box: Mailbox, read: Callable[[int], None], count: int) -> threading.Thread:
    def post() -> None:
        for number in range(count):
            box.post(read, number)

    thread = threading.Thread(target=post)
    thread.start()
    return thread


def test_the_news_of_a_step_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use() -> None:
        loop, reader = asyncio.get_running_loop(), Reader(last=63)
        woken: list[Callable[[], object]] = []
        monkeypatch.setattr(loop, "call_soon_threadsafe", woken.append)
        engine(Mailbox(loop), reader.read, 64).join()  # the loop can not run meanwhile
        assert (reader.got, len(woken)) == ([], 1)
        woken[0]()
        assert reader.got == [*range(64)]

    asyncio.run(use())


def test_nothing_is_lost_and_order_is_kept_while_both_run() -> None:
    async def use() -> None:
        reader = Reader(last=19999)
        thread = engine(Mailbox(asyncio.get_running_loop()), reader.read, 20000)
        await asyncio.wait_for(reader.enough.wait(), 30)
        thread.join()
        assert reader.got == [*range(20000)]

    asyncio.run(use())


def test_news_after_the_loop_is_closed_are_nobodys() -> None:
    loop, got = asyncio.new_event_loop(), list[int]()
    loop.close()
    Mailbox(loop).post(got.append, 1)
    assert got == []
