"""What is read from a worker, whatever its engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tandem_operator.api.status import Counts


class StepTimes(NamedTuple):
    """Of one pod, phase and batch size."""

    phase: str  # verify, draft or plain
    batch: int
    steps: int
    seconds: float  # sum


class Metrics(NamedTuple):
    counts: Counts
    running: int = 0  # requests in flight, where the counters move while they are
    steps: tuple[StepTimes, ...] = ()


def samples(text: str) -> Iterator[Sample]:
    """Of `/metrics`, without the buckets of histograms, which are most of the text and not read."""
    kept = "\n".join(line for line in text.splitlines() if "_bucket{" not in line)
    for family in text_string_to_metric_families(kept + "\n"):
        yield from family.samples


def whole(sums: dict[str, float], name: str, absent: int | None = None) -> int:
    """Raises ValueError when the value is missing (and nothing stands for that) or no finite number."""
    if name not in sums:
        if absent is not None:
            return absent
        raise ValueError(f"/metrics has no {name}")
    try:
        return int(sums[name])
    except (ValueError, OverflowError):  # NaN, infinity
        raise ValueError(f"/metrics: {name} is {sums[name]}") from None
