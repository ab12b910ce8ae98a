"""Numbers: the drafter's norms and fc's neighbours in full, sampled rows of everything large.

A sample can not prove a large matrix healthy; the probe, which runs it, can.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tandem_worker.checkpoint import TensorInfo
from tandem_worker.checkpoint.errors import error
from tandem_worker.checkpoint.tensors import FLOATS, read_rows, read_tensor
from tandem_worker.checks.pair import Pair
from tandem_worker.checks.resolution import TARGET_EMBEDDING, TARGET_HEAD
from tandem_worker.finding import Finding

SAMPLED_ROWS = 16


def weight_values(pair: Pair) -> Iterable[Finding]:
    tensors = list(pair.parameters.values())
    for name, tensor in pair.target_checkpoint.tensors.items():
        if name in (TARGET_EMBEDDING, TARGET_HEAD) or len(tensor.shape) == 1:
            tensors.append(tensor)
    for tensor in tensors:
        if tensor.dtype in FLOATS and tensor.end > tensor.start:
            yield from _values(tensor)


def _values(tensor: TensorInfo) -> Iterable[Finding]:
    rows = sampled_rows(tensor.shape[0]) if len(tensor.shape) > 1 else []
    values = read_rows(tensor, rows) if rows else read_tensor(tensor)
    looked_at = f"{len(rows)} of {tensor.shape[0]} rows looked at" if rows else "all values looked at"
    broken = int(values.size - np.isfinite(values).sum())
    details = {"file": tensor.file, "where": tensor.name}
    if broken:
        message = f"{tensor.name} holds {broken} values that are NaN or infinite ({looked_at})."
        yield error("TDM-WEIGHTS-NOT-FINITE", message, action="Restore the file, or use an earlier checkpoint.", **details)
    elif not values.any():
        message = f"{tensor.name} is all zeros ({looked_at})."
        yield error("TDM-WEIGHTS-ALL-ZERO", message, action="Restore the file: it was reserved or saved empty.", **details)


def sampled_rows(rows: int) -> list[int]:
    """Evenly spaced, first and last included."""
    count = min(rows, SAMPLED_ROWS)
    return [i * (rows - 1) // max(count - 1, 1) for i in range(count)]
