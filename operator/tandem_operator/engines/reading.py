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


def samples(text: str, names: tuple[str, ...], where_not_zero: tuple[str, ...] = ()) -> Iterator[Sample]:
    """Those of `/metrics` whose names begin like one of `names`, or like one of `where_not_zero` and are not 0.0.

    They are a tenth of an engine's page, and the parser takes 15 us for a line: all lines of a thousand workers, every
    30 s, are the work of a tenth of a core.
    """
    wanted = names + where_not_zero
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    kept = [line for line in lines if not (line.endswith(" 0.0") and line.startswith(where_not_zero))]
    for family in text_string_to_metric_families("\n".join(kept) + "\n"):
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
