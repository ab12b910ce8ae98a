"""`python -m operator_loop …`: the operator, with each turn of its event loop timed.

In a turn the loop does all that is ready before it looks at its timers and sockets again, so a long turn is what others
wait for. On a machine that is shared its wall time is also the time in which the process had no core; the thread's own
CPU time tells the two apart. SIGUSR1 writes what was seen since the last one to the file named by LOOP_OUT.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from tandem_operator.__main__ import main

LONG_SECONDS, SHOWN = 0.1, 5


class Turn(NamedTuple):
    wall_seconds: float
    cpu_seconds: float


class Turns:
    def __init__(self) -> None:
        self._long: list[Turn] = []  # those above a tenth of LONG_SECONDS; the others are counted
        self._count = 0

    def add(self, turn: Turn) -> None:
        self._count += 1
        if turn.wall_seconds > LONG_SECONDS / 10:
            self._long.append(turn)

    def write(self, *_: object) -> None:
        walls = sorted((turn.wall_seconds for turn in self._long), reverse=True)
        cpus = sorted((turn.cpu_seconds for turn in self._long), reverse=True)
        said = {
            "turns": self._count,
            "longest_wall_seconds": [round(seconds, 4) for seconds in walls[:SHOWN]],
            "longest_cpu_seconds": [round(seconds, 4) for seconds in cpus[:SHOWN]],
            "wall_above_0.1": sum(seconds > LONG_SECONDS for seconds in walls),
            "cpu_above_0.1": sum(seconds > LONG_SECONDS for seconds in cpus),
        }
        out = Path(os.environ["LOOP_OUT"])
        new = out.with_suffix(".new")
        new.write_text(json.dumps(said))
        new.rename(out)
        self._long, self._count = [], 0


class Timed(selectors.EpollSelector):
    """Between two waits lies a turn."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self._since: tuple[float, float] | None = None

    def select(self, timeout: float | None = None) -> list[Any]:
        if self._since:
            wall, cpu = self._since
            self._turns.add(Turn(time.perf_counter() - wall, time.thread_time() - cpu))
        found = super().select(timeout)
        self._since = time.perf_counter(), time.thread_time()
        return found


class Policy(asyncio.DefaultEventLoopPolicy):
    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(Timed(self._turns))


if __name__ == "__main__":
    turns = Turns()
    signal.signal(signal.SIGUSR1, turns.write)
    asyncio.set_event_loop_policy(Policy(turns))
    main()
