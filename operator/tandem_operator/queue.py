"""A small work queue: keys in, one reconcile at a time for each key, at most `workers` at once over all.

Events only ever *add* a key; what is to be done is decided when the key's turn comes, from what is then observed. So
events may be lost, doubled or reordered. A reconcile that raises is tried again with growing pauses; a key that is
added while it runs runs again afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

log = logging.getLogger(__name__)

BACKOFF_FIRST_SECONDS, BACKOFF_MOST_SECONDS = 0.5, 60.0


class Key(NamedTuple):
    namespace: str
    name: str


Reconcile = Callable[[Key], Awaitable[float | None]]
"""Returns after how many seconds the key wants to run again: None for the usual resync, GONE for not until added."""
GONE = math.inf


class WorkQueue:
    def __init__(self, reconcile: Reconcile, workers: int = 8, resync_seconds: float = 120.0) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._resync_seconds = resync_seconds
        self._due: dict[Key, float] = {}  # loop time from which the key may run
        self._running: dict[Key, float] = {}  # since when
        self._again: set[Key] = set()  # added while running
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.beat_seconds = 0.0  # loop time of the last turn: proof of life

    def add(self, key: Key, after_seconds: float = 0.0) -> None:
        """Run `key` soon. Of several wishes the earliest counts."""
        if key in self._running:
            self._again.add(key)
            return
        due = asyncio.get_running_loop().time() + after_seconds
        self._due[key] = min(due, self._due.get(key, due))
        self._changed.set()

    def due(self) -> int:
        """Keys whose turn has come and that wait for a worker."""
        now = asyncio.get_running_loop().time()
        return sum(1 for due in list(self._due.values()) if due <= now)

    def running(self) -> int:
        return len(self._running)

    def stuck_seconds(self) -> float:
        """How long the longest running reconcile has been at it."""
        now = asyncio.get_running_loop().time()
        return max((now - since for since in self._running.values()), default=0.0)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self.beat_seconds = loop.time()
                self._start_due(loop.time())
                self._changed.clear()
                pause = self._seconds_to_next(loop.time())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):  # wait_for may swallow a cancellation (python/cpython#86296)
                        await self._changed.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_due(self, now: float) -> None:
        for key in sorted((k for k, due in self._due.items() if due <= now), key=lambda k: self._due[k]):
            if len(self._running) >= self._workers:
                return
            del self._due[key]
            self._running[key] = now
            task = asyncio.create_task(self._turn(key), name=f"reconcile {key.namespace}/{key.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _seconds_to_next(self, now: float) -> float:
        """Bounded, so that the beat goes on in a quiet cluster."""
        if len(self._running) >= self._workers:
            return 5.0
        return min(5.0, max(0.0, min(self._due.values(), default=now + 5.0) - now))

    async def _turn(self, key: Key) -> None:
        try:
            pause = await self._reconcile(key)
            self._failures.pop(key, None)
            if pause is None:
                pause = self._resync_seconds * random.uniform(0.8, 1.2)
            else:  # or all that began together, after a restart, would go on together
                pause *= random.uniform(1.0, 1.1)
        except asyncio.CancelledError:
            raise
        except Exception:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            pause = min(BACKOFF_MOST_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(failures - 1, 10))
            log.exception("reconcile of %s/%s failed (%d in a row), again in %.1f s", *key, failures, pause)
        finally:
            del self._running[key]
        if key in self._again:
            self._again.discard(key)
            pause = 0.0 if key not in self._failures else min(pause, BACKOFF_FIRST_SECONDS)
        if pause != GONE:
            self.add(key, pause)
        self._changed.set()  # there is room for another
