"""What is read from a worker, whatever its engine."""

from __future__ import annotations

from typing import NamedTuple


class StepTimes(NamedTuple):
    """Of one pod, phase and batch size."""

    phase: str  # verify, draft or plain
    batch: int
    steps: int
    seconds: float  # sum
