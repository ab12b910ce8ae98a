"""The hot tokens of FR-Spec (arXiv 2502.14856): a file that lists the target ids which a drafter of EAGLE-1 or EAGLE-2
proposes. An EAGLE-3 drafter has d2t in its place, and SGLang ignores the file for it.

What the list holds (ids, not offsets) is judged as d2t is; where the engine ignores the file, in warnings. JSON and
safetensors are read; a pickle (.pt, as the published ones are) is named and never opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tandem_worker.checkpoint import CheckpointError, strict_json
from tandem_worker.checkpoint.errors import Place, error, listed, warning
from tandem_worker.checkpoint.files import read_bytes
from tandem_worker.checkpoint.header import read_shard
from tandem_worker.checkpoint.tensors import INTEGERS, Array, read_tensor
from tandem_worker.checks.pairing import Pairing
from tandem_worker.checks.vocabulary import distinct
from tandem_worker.finding import Finding, Severity

LARGEST_BYTES = 64 * 1024 * 1024
REWRITE = "Write the list again: target ids, each once, rising."


def token_map(pairing: Pairing) -> Iterable[Finding]:
    """The file that the engine's arguments name."""
    file = pairing.deployment.text("token_map")
    if not file:
        return
    ignored = pairing.deployment.text("algorithm").upper() in ("", "EAGLE3")
    path = _found(file, pairing.drafter.checkpoint.path)
    told = "" if path is None else f" {_state(path)}"
    if ignored:
        yield warning(
            "TDM-TOKEN-MAP",
            f"The engine is given the hot-token file {file}, which it ignores for an EAGLE-3 drafter: the drafter's "
            f"own d2t says which tokens it proposes.{told}",
            where=", ".join(pairing.engine.table.arguments.get("token_map", ("token map",))),
            found=file,
            expected="no token map",
            action="Remove the argument.",
        )
    if path is None or path.suffix not in READERS:
        return
    try:
        found = tuple(_judged(pairing, path, READERS[path.suffix](path)))
    except CheckpointError as failure:
        found = failure.findings
    yield from (replace(each, severity=Severity.WARNING) if ignored else each for each in found)


def _found(file: str, folder: Path) -> Path | None:
    """As named, or beside the drafter's files; None: elsewhere (a name on the hub), so not looked at."""
    return next((path for path in (Path(file), folder / file) if path.is_file()), None)


def _state(path: Path) -> str:
    if path.suffix in READERS:
        return "Its ids were looked at all the same."
    return f"{path.name} is a pickle or of an unknown kind and was not opened."


def _from_json(path: Path) -> Array:
    try:
        value = strict_json.parse(read_bytes(path, LARGEST_BYTES))
    except strict_json.JsonError as failure:
        raise CheckpointError(_malformed(path, str(failure))) from None
    if not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
        raise CheckpointError(_malformed(path, "it is not one list of whole numbers"))
    if any(abs(i) >= 2**62 for i in value if isinstance(i, int)):
        raise CheckpointError(_malformed(path, "it holds numbers that no token has"))
    return np.array(value, dtype=np.int64)


def _from_safetensors(path: Path) -> Array:
    tensors = list(read_shard(path).tensors.values())
    if len(tensors) != 1 or len(tensors[0].shape) != 1 or tensors[0].dtype not in INTEGERS:
        shown = listed([f"{each.name} {each.dtype} {list(each.shape)}" for each in tensors])
        raise CheckpointError(_malformed(path, f"it holds {shown or 'nothing'} and not one list of integers"))
    return read_tensor(tensors[0]).astype(np.int64)


READERS = {".json": _from_json, ".safetensors": _from_safetensors}


def _malformed(path: Path, reason: str) -> Finding:
    return error(
        "TDM-TOKEN-MAP-MALFORMED",
        f"The hot-token file {path.name} can not be read: {reason}.",
        file=path,
        found=reason,
        expected="one list of target ids",
        action=REWRITE,
    )


def _judged(pairing: Pairing, path: Path, ids: Array) -> Iterable[Finding]:
    vocabulary = pairing.target.vocab_size.value
    place: Place = {"file": path, "where": path.name}
    if not len(ids):
        yield _malformed(path, "it lists no token")
        return
    outside = np.flatnonzero((ids < 0) | (ids >= (vocabulary or np.iinfo(np.int64).max)))
    if len(outside):
        i = int(outside[0])
        yield error(
            "TDM-TOKEN-MAP-OUT-OF-RANGE",
            f"{len(outside)} of {len(ids)} hot tokens are no ids of the target: entry {i} is {ids[i]}, the vocabulary "
            f"has {vocabulary}.",
            expected=f"0 to {(vocabulary or 0) - 1}",
            action=REWRITE,
            **place,
        )
        return
    ordered, twice = distinct(ids)
    if len(twice):
        message = f"{len(twice)} hot tokens are listed more than once, such as {int(twice[0])}."
        yield error("TDM-TOKEN-MAP-DUPLICATES", message, expected="each once", action=REWRITE, **place)
    elif not np.array_equal(ordered, ids):
        message = f"The hot tokens of {path.name} do not rise; most training code writes them in order."
        yield warning("TDM-TOKEN-MAP-NOT-RISING", message, **place)
    own = None if pairing.d2t is None else distinct(np.arange(len(pairing.d2t)) + pairing.d2t)[0]
    if own is not None and not np.array_equal(own, ordered):
        yield warning(
            "TDM-TOKEN-MAP-AGAINST-D2T",
            f"{path.name} lists {len(ordered)} tokens, which are not the {len(own)} that the drafter's d2t leads to: "
            "what an EAGLE-3 drafter proposes is what d2t says.",
            expected=f"the {len(own)} of d2t",
            **place,
        )
