"""How far the pass over the target is, for people: a bar on a terminal, else lines of a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_worker.probe.stream import Progress

SECONDS_BETWEEN_LINES = 10

log = logging.getLogger(__name__)


@contextmanager
def shown_progress() -> Iterator[Callable[[Progress], None]]:
    """On standard error, with all else that the worker has to say meanwhile."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("target", total=None)

        def show(progress: Progress) -> None:
            bar.update(task, total=progress.bytes_total, completed=progress.bytes_done, description=_said(progress))

        yield show


def _lines() -> Callable[[Progress], None]:
    last = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            log.info("The target's pass: %s", _said(progress))

    return show


def _said(progress: Progress) -> str:
    speed = f"{progress.bytes_per_second / 1e9:.2f} GB/s, {progress.seconds_left:.0f} s left"
    return f"layer {progress.layer} of {progress.layers}, {speed}"
