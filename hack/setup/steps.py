"""Long steps told to whoever waits: what is done, how far it is, how long it usually takes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

_TERMINAL_SECONDS = 0.5  # between updates of the one line on a terminal
_LOG_SECONDS = 10.0  # between lines in a log


class SetupError(Exception):
    """What is wrong and what to do, in one line."""


def say(text: str) -> None:
    print(f"tandem set-up: {text}", flush=True)


def run_step(
    command: list[str], log: Path, on_line: Callable[[str], None], progress: Callable[[], str], tail_lines: int = 12
) -> None:
    """Runs `command`, keeps all it prints in `log` and shows `progress()` and the time gone by while it runs.

    Raises SetupError with the last lines when it fails.
    """
    # The checkout's folders must not be seen by tools that build or install packages.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    tail: deque[str] = deque(maxlen=tail_lines)
    start = time.monotonic()
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(done, start, progress), daemon=True)
    with (
        log.open("a") as copy,
        subprocess.Popen(
            command, env=env, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        ticker.start()
        assert process.stdout is not None
        for line in process.stdout:
            copy.write(line)
            tail.append(line.rstrip())
            on_line(line)
    done.set()
    ticker.join()
    if process.returncode:
        raise SetupError(f"{' '.join(command[:5])} ... failed; all of its output is in {log}\n  " + "\n  ".join(tail))


def _tick(done: threading.Event, start: float, progress: Callable[[], str]) -> None:
    terminal = sys.stdout.isatty()
    while not done.wait(_TERMINAL_SECONDS if terminal else _LOG_SECONDS):
        text = f"  {elapsed(start)}  {progress()}"
        print(f"\r\x1b[K{text}" if terminal else text, end="" if terminal else "\n", flush=True)
    if terminal:
        print("\r\x1b[K", end="", flush=True)


def elapsed(start: float) -> str:
    seconds = int(time.monotonic() - start)
    return f"{seconds // 60}:{seconds % 60:02d}"
