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
from tandem_worker.checks.pairing import T2D_DTYPES, Pairing
from tandem_worker.checks.shapes import vocabulary_disagrees
from tandem_worker.finding import Finding

LARGEST_PADDING = 1024  # rows that a target's vocabulary is commonly padded by, with room to spare
REWRITE_MAP = "Write d2t and t2d again from the draft vocabulary of the training run."


def vocabulary_sizes(pairing: Pairing) -> Iterable[Finding]:
    """Drafter's idea of the target vocabulary against the target's, and draft vocabulary within it."""
    ours, theirs, draft = pairing.drafter.vocab_size, pairing.target.vocab_size, pairing.drafter.vocabulary
    if theirs.value is None or not theirs.declared:
        yield note(
            "TDM-VOCABULARY-UNKNOWN",
            f"The target's config states no vocab_size ({theirs.default_of or 'unknown'}: {theirs.value}); the drafter "
            f"has {ours.value}. They were not compared.",
            file=pairing.target.checkpoint.config.file,
            where="vocab_size",
        )
        return
    figures: Details = {"file": pairing.config_file, "where": ours.where or "vocab_size"}
    figures |= {"found": ours.value, "expected": theirs.value}
    own_embedding = "embed_tokens.weight" in pairing.parameters
    if ours.value is not None and ours.value != theirs.value:
        padded = 0 < theirs.value - ours.value <= LARGEST_PADDING
        if own_embedding or not padded:
            message = (
                f"The drafter was made for a vocabulary of {ours.value}; the target has {theirs.value} "
                f"({theirs.where})."
            )
            figures["action"] = "Use a drafter that was trained for a target with this vocabulary."
            yield error("TDM-VOCABULARY-SIZE", message, **figures)
        else:
            message = (
                f"The drafter knows {ours.value} of the target's {theirs.value} ids; the rest, probably padding, is "
                "never drafted."
            )
            yield warning("TDM-VOCABULARY-PADDED", message, **figures)
    if draft is not None and draft > theirs.value and draft != ours.value:
        yield error(
            "TDM-DRAFT-VOCABULARY-TOO-LARGE",
            f"The draft vocabulary of {draft} is larger than the target's of {theirs.value}.",
            file=pairing.config_file,
            where="draft_vocab_size",
            found=draft,
            expected=f"at most {theirs.value}",
            action="Correct draft_vocab_size, or use a drafter of this target.",
        )


def _told_of_size(pairing: Pairing) -> bool:
    """draft_vocab_size is no number, or larger than the target's vocabulary: told once."""
    draft, theirs = pairing.drafter.vocabulary, pairing.target.vocab_size
    larger = bool(theirs.declared and theirs.value and draft and draft > theirs.value)
    invalid = any(problem.where.endswith("draft_vocab_size") for problem in pairing.drafter.problems)
    return invalid or (larger and draft != pairing.drafter.vocab_size.value)


def draft_vocabulary(pairing: Pairing) -> Iterable[Finding]:
    """Head and d2t agree on a draft vocabulary, and the config states another one or none."""
    if not vocabulary_disagrees(pairing) or pairing.eagle1 or _told_of_size(pairing):
        return
    head, stated = pairing.parameters["lm_head.weight"], pairing.drafter.draft_vocab_size
    said = (
        f"says {stated.value}"
        if stated.value
        else f"has none, so it counts as vocab_size, {pairing.drafter.vocabulary}"
    )
    yield error(
        "TDM-DRAFT-VOCABULARY-SIZE",
        f"lm_head.weight has {head.shape[0]} rows and d2t as many entries; draft_vocab_size in the config {said}.",
        file=pairing.config_file,
        where="draft_vocab_size",
        found=pairing.drafter.vocabulary,
        expected=head.shape[0],
        action=f'Set "draft_vocab_size": {head.shape[0]} in the drafter\'s config.json.',
    )


def d2t_form(pairing: Pairing) -> Iterable[Finding]:
    tensor, length = pairing.parameters.get("d2t"), pairing.drafter.vocabulary
    if vocabulary_disagrees(pairing):
        length = None
    yield from _vector_form("d2t", tensor, length, "draft_vocab_size", INTEGERS)
    if tensor is None or pairing.reduced or vocabulary_disagrees(pairing):
        return
    if pairing.engine.ask("d2t_of_full", "harmless").value == "refused":
        yield warning(
            "TDM-D2T-OF-FULL-VOCABULARY",
            f"d2t is there, and the draft vocabulary is the whole of {length}: {pairing.engine.title} has no parameter "
            "for it and may refuse to load it.",
            file=tensor.file,
            where=tensor.name,
            found=list(tensor.shape),
            expected="no d2t",
            action="Remove d2t and t2d from the files (tandem-worker convert).",
        )


def t2d_form(pairing: Pairing) -> Iterable[Finding]:
    """t2d may be as short as the drafter's own vocab_size; `vocabulary_sizes` speaks of that difference."""
    tensor, length = pairing.parameters.get("t2d"), pairing.drafter.vocab_size.value
    if tensor is not None and len(tensor.shape) == 1 and length and 0 < length - tensor.shape[0] <= LARGEST_PADDING:
        if tensor.shape[0] == pairing.target.vocab_size.value:
            return  # it is as long as the target's vocabulary, and vocab_size is what is wrong
        yield warning(
            "TDM-VOCABULARY-PADDED",
            f"t2d has {tensor.shape[0]} entries; vocab_size is {length}. The ids above, probably padding, are "
            "never drafted.",
            file=tensor.file,
            where=tensor.name,
            found=tensor.shape[0],
            expected=length,
            action="Make sure that the ids above are not the tokenizer's.",
        )
        return
    yield from _vector_form("t2d", tensor, length, "vocab_size", T2D_DTYPES)


def header_only(pairing: Pairing) -> Iterable[Finding]:
    if pairing.header_only:
        message = "d2t and t2d were never written to disk (a copy of the header alone?); their values were not judged."
        yield note("TDM-VALUES-NOT-WRITTEN", message, file=pairing.drafter.checkpoint.path, where="d2t")


def d2t_values(pairing: Pairing) -> Iterable[Finding]:
    """What is written as d2t must be offsets, and they must lead to the right ids."""
    offsets, vocabulary = pairing.d2t, pairing.target.vocab_size.value or pairing.drafter.vocab_size.value
    if offsets is None or not len(offsets) or vocabulary is None:
        return
    if len(offsets) != pairing.drafter.vocabulary and not vocabulary_disagrees(pairing):
        return  # a list of another length is another list
    tensor = pairing.parameters["d2t"]
    wide = offsets.astype(np.int64)
    ids = np.arange(len(wide)) + wide
    marked = None if pairing.t2d is None else np.flatnonzero(pairing.t2d)
    if never_filled(pairing):
        yield error(
            "TDM-D2T-NEVER-FILLED",
            f"d2t is all zeros, and the draft vocabulary is {len(ids)} of {vocabulary} ids: only the first "
            f"{len(ids)} ids "
            "could ever be drafted. A map that was never filled looks like this.",
            file=tensor.file,
            where=tensor.name,
            found="zeros",
            expected="target id minus draft id",
            action=REWRITE_MAP,
        )
        return
    if _are_ids(wide, vocabulary, marked):
        witness = "does not lead out of the vocabulary" if marked is None else "equals the ids that t2d marks"
        message = f"d2t holds target ids, not offsets: read as ids, {wide[0]} to {wide[-1]}, it {witness}."
        action = "Subtract the draft id from each entry: d2t[i] = target id - i."
        yield error(
            "TDM-D2T-HOLDS-IDS", message, file=tensor.file, where=tensor.name, expected="offsets", action=action
        )
        return
    yield from _where_offsets_lead(pairing, tensor, wide, vocabulary, marked)


def _where_offsets_lead(
    pairing: Pairing, tensor: TensorInfo, wide: Array, vocabulary: int, marked: Array | None
) -> Iterable[Finding]:
    """To distinct ids of the target, and to those that t2d marks. wide: the offsets, int64."""
    ids = np.arange(len(wide)) + wide
    outside = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if len(outside):
        i = int(outside[0])
        yield error(
            "TDM-D2T-OUT-OF-RANGE",
            f"d2t leads {len(outside)} of {len(ids)} draft ids out of the target's vocabulary: "
            f"draft id {i} + {wide[i]} = {ids[i]}, the vocabulary has {vocabulary}.",
            file=tensor.file,
            where=f"{tensor.name}[{i}]",
            found=ids[i],
            expected=f"0 to {vocabulary - 1}",
            action=REWRITE_MAP,
        )
        return
    values, twice = distinct(ids)
    if len(values) < len(ids):
        yield error(
            "TDM-D2T-DUPLICATES",
            f"d2t leads several draft ids to one target id: {listed(twice)} ({len(values)} distinct of {len(ids)}).",
            file=tensor.file,
            where=tensor.name,
            found=f"{len(values)} distinct ids",
            expected=f"{len(ids)} distinct ids",
            action=REWRITE_MAP,
        )
    elif marked is not None and len(marked) == len(ids) and not np.array_equal(values, marked):
        yield _against_t2d(pairing, ids, marked)
    elif not np.all(np.diff(ids) > 0):
        message = "d2t leads to target ids that do not rise with the draft id; most training code writes them in order."
        yield warning("TDM-D2T-NOT-RISING", message, file=tensor.file, where=tensor.name)


def never_filled(pairing: Pairing) -> bool:
    """Training code makes d2t as zeros and t2d as ones, to be filled from the text; a witness that marks just the first
    ids clears the zeros.
    """
    offsets, marked = pairing.d2t, pairing.t2d
    if offsets is None or not len(offsets) or not pairing.reduced or offsets.any():
        return False
    return marked is None or bool(marked.all())


def t2d_count(pairing: Pairing) -> Iterable[Finding]:
    """As many True as draft ids: an engine cuts the target's probabilities down with it."""
    if pairing.t2d is None or never_filled(pairing):
        return
    offsets, vocabulary = pairing.d2t, pairing.drafter.vocab_size.value
    if vocabulary and not 0 <= vocabulary - len(pairing.t2d) <= LARGEST_PADDING:
        return  # a list of another length is another list
    if offsets is not None and len(distinct(np.arange(len(offsets)) + offsets)[0]) == pairing.t2d.sum() < len(offsets):
        return  # t2d marks what d2t reaches, which names some ids twice
    tensor, count, expected = pairing.parameters["t2d"], int(pairing.t2d.sum()), pairing.drafter.vocabulary
    if vocabulary_disagrees(pairing):
        expected = pairing.parameters["d2t"].shape[0]
    if count != expected and expected is not None:
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


def full_vocabulary(pairing: Pairing) -> Iterable[Finding]:
    if not pairing.reduced and "d2t" not in pairing.parameters:
        message = "The draft vocabulary is the whole vocabulary and there is no d2t: draft ids are target ids."
        yield note("TDM-FULL-DRAFT-VOCABULARY", message, file=pairing.drafter.checkpoint.path)


def _vector_form(
    name: str, tensor: TensorInfo | None, length: int | None, source: str, dtypes: dict[str, str]
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
    elif length is not None and tensor.shape[0] != length:
        yield error(f"{title}-LENGTH", f"{name} has {tensor.shape[0]} entries; {source} is {length}.", **details)


def distinct(ids: Array) -> tuple[Array, Array]:
    """Sorted distinct values, and those that stand more than once. (`np.unique` imports masked arrays first.)"""
    ordered = np.sort(ids)
    again = ordered[1:] == ordered[:-1]
    return ordered[np.concatenate(([True], ~again))] if len(ordered) else ordered, ordered[1:][again]


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


def _against_t2d(pairing: Pairing, ids: Array, marked: Array) -> Finding:
    tensor = pairing.parameters["d2t"]
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
