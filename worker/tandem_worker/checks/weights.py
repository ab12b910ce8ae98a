"""Numbers: the drafter's norms and fc's neighbours in full, sampled rows of everything large.

A sample can not prove a large matrix healthy; the probe, which runs it, can. A sparse file, a copy of a header without
weights, holds zeros that mean nothing, and is told apart from zeros that somebody wrote.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tandem_worker.checkpoint import TensorInfo
from tandem_worker.checkpoint.errors import Details, error, note, warning
from tandem_worker.checkpoint.source import UNAPPLIED
from tandem_worker.checkpoint.tensors import FLOATS, read_rows, read_tensor, unwritten
from tandem_worker.checks.pairing import Pairing
from tandem_worker.checks.resolution import TARGET_EMBEDDING, TARGET_HEAD
from tandem_worker.finding import Finding

SAMPLED_ROWS = 16
EMBEDDINGS = (TARGET_EMBEDDING, "language_model." + TARGET_EMBEDDING, TARGET_HEAD, "language_model." + TARGET_HEAD)


def weight_values(pairing: Pairing) -> Iterable[Finding]:
    tensors = [tensor for tensor in pairing.parameters.values() if tensor.dtype in FLOATS and tensor.end > tensor.start]
    target = pairing.target.checkpoint.tensors
    tensors += [target[name] for name in EMBEDDINGS if name in target and target[name].dtype in FLOATS]
    if pairing.engine.name == "builtin":  # which runs targets of this size
        small = [tensor for tensor in target.values() if len(tensor.shape) == 1 and tensor.dtype in FLOATS]
        tensors += [tensor for tensor in small if tensor.name.rpartition(".")[2] not in UNAPPLIED]
    empty: list[TensorInfo] = []
    for tensor in tensors:
        if unwritten(tensor):
            empty.append(tensor)
        else:
            yield from _values(tensor)
    if empty:
        message = f"{len(empty)} tensors were never written to disk, such as {empty[0].name}: a copy of headers alone?"
        yield note("TDM-VALUES-NOT-WRITTEN", message, file=empty[0].file, where=empty[0].name)


def overwritten_embedding(pairing: Pairing) -> Iterable[Finding]:
    """An own embedding where the engine puts the target's in its place."""
    own = pairing.parameters.get("embed_tokens.weight")
    if own is None or pairing.engine.ask("own_embedding", "kept").value != "overwritten":
        return
    target = pairing.target.checkpoint.tensors
    theirs = next((target[name] for name in EMBEDDINGS[:2] if name in target), None)
    equal_width = pairing.drafter.hidden_size.value == pairing.target.hidden_size.value
    if not equal_width or theirs is None or theirs.shape != own.shape or {own.dtype, theirs.dtype} - FLOATS.keys():
        return
    rows = sampled_rows(own.shape[0])
    if unwritten(own) or np.array_equal(read_rows(own, rows), read_rows(theirs, rows)):
        return
    yield warning(
        "TDM-EMBEDDING-OVERWRITTEN",
        f"The drafter's own embedding differs from the target's, and {pairing.engine.title} puts the target's in "
        "its place.",
        file=own.file,
        where=own.name,
        found="an embedding of its own",
        expected="the target's",
        action="Use an engine that keeps it, if the drafter was trained with it.",
    )


def _values(tensor: TensorInfo) -> Iterable[Finding]:
    rows = sampled_rows(tensor.shape[0]) if len(tensor.shape) > 1 else []
    values = read_rows(tensor, rows) if rows else read_tensor(tensor)
    looked_at = f"{len(rows)} of {tensor.shape[0]} rows looked at" if rows else "all values looked at"
    broken = int(values.size - np.isfinite(values).sum())
    details: Details = {"file": tensor.file, "where": tensor.name}
    if broken:
        message = f"{tensor.name} holds {broken} values that are NaN or infinite ({looked_at})."
        details["action"] = "Restore the file, or use an earlier checkpoint."
        yield error("TDM-WEIGHTS-NOT-FINITE", message, **details)
    elif not values.any():
        message = f"{tensor.name} is all zeros ({looked_at})."
        details["action"] = "Restore the file: it was reserved or saved empty."
        yield error("TDM-WEIGHTS-ALL-ZERO", message, **details)


def sampled_rows(rows: int) -> list[int]:
    """Evenly spaced, first and last included."""
    count = min(rows, SAMPLED_ROWS)
    return [i * (rows - 1) // max(count - 1, 1) for i in range(count)]
