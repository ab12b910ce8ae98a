"""The reduced vocabulary. `d2t` holds offsets: draft id i stands for target id i + d2t[i]. `t2d` is the witness: it is
True at exactly those target ids. A d2t that begins with a run of zeros is healthy: the first draft ids are then the
same as the target's.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tandem_worker.checkpoint.errors import Details, error, listed, note, warning
from tandem_worker.checkpoint.header import TensorInfo
from tandem_worker.checkpoint.tensors import INTEGERS, Array
from tandem_worker.checks.pair import T2D_DTYPES, Pair
from tandem_worker.finding import Finding

LARGEST_PADDING = 1024  # rows that a target's vocabulary is commonly padded by, with room to spare
REWRITE_MAP = "Write d2t and t2d again from the draft vocabulary of the training run."


def vocabulary_sizes(pair: Pair) -> Iterable[Finding]:
    """Drafter's idea of the target vocabulary against the target's, and draft vocabulary within it."""
    file, ours, theirs = pair.drafter_checkpoint.config.file, pair.drafter.vocab_size, pair.target.vocab_size
    figures: Details = {"file": file, "where": "vocab_size", "found": ours, "expected": theirs}
    own_embedding = "embed_tokens.weight" in pair.parameters
    if ours != theirs and (own_embedding or not 0 < theirs - ours <= LARGEST_PADDING):
        message = f"The drafter was made for a vocabulary of {ours}; the target has {theirs}."
        figures["action"] = "Use a drafter that was trained for a target with this vocabulary."
        yield error("TDM-VOCABULARY-SIZE", message, **figures)
    elif ours != theirs:
        message = (
            f"The drafter knows {ours} of the target's {theirs} ids; the rest, probably padding, is never drafted."
        )
        yield warning("TDM-VOCABULARY-PADDED", message, **figures)
    draft = pair.drafter.draft_vocab_size
    if draft > theirs:
        message = f"The draft vocabulary of {draft} is larger than the target's of {theirs}."
        yield error(
            "TDM-DRAFT-VOCABULARY-TOO-LARGE",
            message,
            file=file,
            where="draft_vocab_size",
            found=draft,
            expected=f"at most {theirs}",
            action="Correct draft_vocab_size, or use a drafter of this target.",
        )


def d2t_form(pair: Pair) -> Iterable[Finding]:
    tensor, length = pair.parameters.get("d2t"), pair.drafter.draft_vocab_size
    yield from _vector_form("d2t", tensor, length, "draft_vocab_size", INTEGERS)


def t2d_form(pair: Pair) -> Iterable[Finding]:
    """t2d may be as short as the drafter's own vocab_size; `vocabulary_sizes` speaks of the difference."""
    tensor, length = pair.parameters.get("t2d"), pair.drafter.vocab_size
    yield from _vector_form("t2d", tensor, length, "vocab_size", T2D_DTYPES)


def d2t_values(pair: Pair) -> Iterable[Finding]:
    """Offsets must lead to distinct ids of the target, and to those that t2d marks."""
    offsets = pair.d2t
    if offsets is None or not len(offsets):
        return
    tensor = pair.parameters["d2t"]
    wide = offsets.astype(np.int64)
    ids = np.arange(len(wide)) + wide
    marked = None if pair.t2d is None else np.flatnonzero(pair.t2d)
    if _are_ids(wide, pair.target.vocab_size, marked):
        witness = "does not lead out of the vocabulary" if marked is None else "equals the ids that t2d marks"
        message = f"d2t holds target ids, not offsets: read as ids, {wide[0]} to {wide[-1]}, it {witness}."
        action = "Subtract the draft id from each entry: d2t[i] = target id - i."
        yield error("TDM-D2T-HOLDS-IDS", message, file=tensor.file, where=tensor.name, expected="offsets", action=action)
        return
    outside = np.flatnonzero((ids < 0) | (ids >= pair.target.vocab_size))
    if len(outside):
        i = int(outside[0])
        yield error(
            "TDM-D2T-OUT-OF-RANGE",
            f"d2t leads {len(outside)} of {len(ids)} draft ids out of the target's vocabulary: "
            f"draft id {i} + {wide[i]} = {ids[i]}, the vocabulary has {pair.target.vocab_size}.",
            file=tensor.file,
            where=f"{tensor.name}[{i}]",
            found=ids[i],
            expected=f"0 to {pair.target.vocab_size - 1}",
            action=REWRITE_MAP,
        )
        return
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        twice = values[counts > 1]
        yield error(
            "TDM-D2T-DUPLICATES",
            f"d2t leads several draft ids to one target id: {listed(twice)} ({len(values)} distinct of {len(ids)}).",
            file=tensor.file,
            where=tensor.name,
            found=f"{len(values)} distinct ids",
            expected=f"{len(ids)} distinct ids",
            action=REWRITE_MAP,
        )
    elif marked is not None and not np.array_equal(values, marked):
        yield _against_t2d(pair, ids, marked)
    elif not np.all(np.diff(ids) > 0):
        message = "d2t leads to target ids that do not rise with the draft id; most training code writes them in order."
        yield warning("TDM-D2T-NOT-RISING", message, file=tensor.file, where=tensor.name)


def t2d_count(pair: Pair) -> Iterable[Finding]:
    """As many True as draft ids: an engine cuts the target's probabilities down with it."""
    if pair.t2d is None:
        return
    tensor, count, expected = pair.parameters["t2d"], int(pair.t2d.sum()), pair.drafter.draft_vocab_size
    if count != expected:
        message = f"t2d marks {count} target ids; the draft vocabulary has {expected}."
        yield error(
            "TDM-T2D-COUNT",
            message,
            file=tensor.file,
            where=tensor.name,
            found=count,
            expected=expected,
            action=REWRITE_MAP,
        )


def full_vocabulary(pair: Pair) -> Iterable[Finding]:
    if not pair.reduced_vocabulary and "d2t" not in pair.parameters:
        message = "The draft vocabulary is the whole vocabulary and there is no d2t: draft ids are target ids."
        yield note("TDM-FULL-DRAFT-VOCABULARY", message, file=pair.drafter_checkpoint.path)


def _vector_form(
    name: str, tensor: TensorInfo | None, length: int, source: str, dtypes: dict[str, str]
) -> Iterable[Finding]:
    if tensor is None:
        return
    title, usual = f"TDM-{name.upper()}", "BOOL" if name == "t2d" else "I64"
    details: Details = {"file": tensor.file, "where": tensor.name, "expected": f"{usual} [{length}]"}
    details["found"] = f"{tensor.dtype} {list(tensor.shape)}"
    if tensor.dtype in dtypes and tensor.dtype != usual:
        message = f"{name} is stored as {tensor.dtype}, not {usual}; its values are read all the same."
        yield warning(f"{title}-DTYPE", message, **details)
    details["action"] = REWRITE_MAP
    if tensor.dtype not in dtypes:
        yield error(f"{title}-DTYPE", f"{name} is stored as {tensor.dtype}, not {usual}.", **details)
    if len(tensor.shape) != 1:
        message = f"{name} has {len(tensor.shape)} dimensions, {list(tensor.shape)}; it is a list."
        yield error(f"{title}-RANK", message, **details)
    elif tensor.shape[0] != length:
        yield error(f"{title}-LENGTH", f"{name} has {tensor.shape[0]} entries; {source} is {length}.", **details)


def _are_ids(values: Array, vocabulary: int, marked: Array | None) -> bool:
    """Whether the entries themselves are the target ids: exactly those that t2d marks, or, without t2d, rising and
    within the vocabulary where the offsets would leave it.
    """
    if not values.any():
        return False
    if marked is not None:
        return np.array_equal(np.sort(values), marked) and not np.array_equal(np.arange(len(values)) + values, marked)
    leaves = bool((values + np.arange(len(values)) >= vocabulary).any())
    return leaves and bool(np.all(np.diff(values) > 0)) and values[0] >= 0 and values[-1] < vocabulary


def _against_t2d(pair: Pair, ids: Array, marked: Array) -> Finding:
    tensor = pair.parameters["d2t"]
    astray = np.setdiff1d(ids, marked)
    unreached = np.setdiff1d(marked, ids)
    example = f"; id {astray[0]} is drafted but not marked" if len(astray) else f"; id {unreached[0]} is marked only"
    return error(
        "TDM-D2T-AGAINST-T2D",
        f"d2t and t2d disagree: {len(astray)} drafted ids are not marked in t2d, {len(unreached)} marked ids are never "
        f"drafted{example}.",
        file=tensor.file,
        where=tensor.name,
        found=f"{len(astray)} ids astray",
        expected="exactly the ids where t2d is True",
        action=REWRITE_MAP,
    )
