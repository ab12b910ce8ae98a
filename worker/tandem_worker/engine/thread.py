"""The engine's own thread. Others hand it orders; it carries them out between two steps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch

from tandem_worker.engine.engine import Engine
from tandem_worker.engine.gpu import explained
from tandem_worker.engine.request import Finish, Request

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.5
"""Between two heartbeats of an engine that has nothing to do."""

SILENT_SECONDS, SILENT_ON_CPU_SECONDS = 20, 600
"""After so long without a heartbeat the engine is taken for stalled. A GPU whose kernel failed does not always say so:
one that was launched to begin before the failed one's end can wait for it for ever. A CPU is only slow: 128 rows of an
8B target are two trillion operations, half a minute of one core."""

STOP_SECONDS = 10


class Failure(NamedTuple):
    reason: str  # one word
    message: str


class EngineThread(threading.Thread):
    """Runs steps while there is work. `heartbeat` is the time.monotonic() at which the last one began.

    When a step fails, `broken` says why, `reason` in one word, and every request that is there or comes later fails at
    once. A step that does not end can not be helped from here; `failure` tells of both.
    """

    def __init__(self, engine: Engine, threads: int) -> None:
        super().__init__(name="engine", daemon=True)
        self.engine, self.heartbeat = engine, time.monotonic()
        self.broken, self.reason = "", "EngineBroken"
        self._threads = threads
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = False

    @property
    def failure(self) -> Failure | None:
        """Why the process should be replaced."""
        if self.broken:
            return Failure(self.reason, self.broken)
        if self._stopping:
            return None
        silent_seconds = time.monotonic() - self.heartbeat
        on_gpu = self.engine.runner.device.type == "cuda"
        if silent_seconds > (SILENT_SECONDS if on_gpu else SILENT_ON_CPU_SECONDS):
            return Failure("EngineStalled", f"no step has begun for {silent_seconds:.0f} s")
        return None

    def submit(self, request: Request) -> None:
        self._orders.put(lambda: self.engine.submit(request))

    def end(self, request: Request, finish: Finish) -> None:
        self._orders.put(lambda: self.engine.end(request, finish))

    def switch(self, speculate: bool) -> None:
        self._orders.put(lambda: self.engine.switch(speculate))

    def end_all(self, finish: Finish) -> None:
        self._orders.put(lambda: self._end_all(finish))

    def stop(self) -> None:
        """Waits for the step that runs, but not for ever."""

        def order() -> None:
            self._stopping = True

        self._orders.put(order)
        self.join(STOP_SECONDS)

    def run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP keeps this number per thread
        while not self._stopping:
            self.heartbeat = time.monotonic()
            try:
                self._carry_out_orders()
                if not self.broken and (not self.engine.idle or self.engine.ranks.lost):
                    self.engine.step()
            except Exception as failure:  # whatever it is, requests must not wait for ever
                self._break(failure)
            if self.broken:
                self._end_all(Finish.FAILED)

    def _break(self, failure: Exception) -> None:
        log.exception("The engine failed.")
        problem = explained(failure)
        if self.broken:  # the first reason is the one to tell
            return
        if problem:
            self.reason = problem.reason
        self.broken = str(problem or failure) or type(failure).__name__

    def _carry_out_orders(self) -> None:
        try:
            order = self._orders.get(timeout=IDLE_SECONDS) if self.engine.idle else self._orders.get_nowait()
            while True:
                order()
                order = self._orders.get_nowait()
        except Empty:
            return

    def _end_all(self, finish: Finish) -> None:
        scheduler = self.engine.scheduler
        for request in [*scheduler.running, *scheduler.waiting]:
            self.engine.end(request, finish)
