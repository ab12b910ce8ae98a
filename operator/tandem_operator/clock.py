"""Wall time, and by how much it was set while this operator ran.

Status holds times, for they must outlive the operator, and deadlines and intervals are counted between them. A wall
clock that is set (a node that booted with a wrong one, a machine that slept) would end them early or hold them up; the
monotonic clock, which nobody sets, tells that it was, and the plan moves the times along.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from tandem_operator.queue import Key

NOTICED_SECONDS = 2.0  # less is a clock that is being steered


class Clock:
    def __init__(self) -> None:
        self._ahead_seconds: dict[Key, float] = {}  # of the monotonic clock, when its status was last written by it

    def read(self, key: Key) -> tuple[datetime, timedelta]:
        """The time, and by how much the clock was set since the times in the status of `key` were last right."""
        ahead = time.time() - time.monotonic()
        set_by = ahead - self._ahead_seconds.setdefault(key, ahead)
        now = datetime.now(UTC).replace(microsecond=0)
        return now, timedelta(seconds=round(set_by)) if abs(set_by) > NOTICED_SECONDS else timedelta()

    def moved_along(self, key: Key) -> None:
        """The times in its status go by the clock as it is now."""
        self._ahead_seconds[key] = time.time() - time.monotonic()

    def forget(self, key: Key) -> None:
        self._ahead_seconds.pop(key, None)
