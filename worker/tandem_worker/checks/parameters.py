"""Names: what the engine would drop, what nothing provides, what it borrows from the target."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from tandem_worker.checkpoint.errors import error, listed, note, warning
from tandem_worker.checks.pair import Pair
from tandem_worker.checks.resolution import VOCABULARY, parameter_name
from tandem_worker.finding import Finding

# Tensors that may be dropped without changing a draft: tables that can be computed, copies of the target's weights.
HARMLESS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|verifier_lm_head\.weight|verifier_norm\.weight)$")
UNUSED_FEATURE = re.compile(r"(^|\.)mask_hidden$")  # of parallel drafting, ignored by engines that draft in a chain


def dropped_tensors(pair: Pair) -> Iterable[Finding]:
    """A dropped weight changes what the drafter computes, and no engine says so at run time."""
    dropped = pair.resolution.dropped
    harmless = [key for key in dropped if HARMLESS.search(key)]
    unused = [key for key in dropped if UNUSED_FEATURE.search(key)]
    lost = [key for key in dropped if key not in harmless and key not in unused]
    path = pair.drafter_checkpoint.path
    if lost:
        yield error(
            "TDM-TENSORS-DROPPED",
            f"The builtin engine has no parameter for {len(lost)} tensors of the drafter and would drop them: "
            f"{listed(lost)}.",
            file=pair.drafter_checkpoint.tensors[lost[0]].file,
            where=lost[0],
            found=listed(lost),
            expected="fc, midlayer. (or layers.0.), norm, lm_head, embed_tokens, d2t, t2d, each with or without model.",
            action="Rename the tensors, or use a drafter without this feature.",
        )
    if unused:
        yield warning(
            "TDM-TENSORS-UNUSED", f"The builtin engine drafts in a chain and does not use {listed(unused)}.", file=path
        )
    if harmless:
        yield note("TDM-TENSORS-NOT-NEEDED", f"The builtin engine does not need {listed(harmless)}.", file=path)


def missing_parameters(pair: Pair) -> Iterable[Finding]:
    """Parameters that would keep the random values a fresh model starts with."""
    weights = [name for name in pair.resolution.missing if name not in VOCABULARY]
    maps = [name for name in pair.resolution.missing if name in VOCABULARY]
    path = pair.drafter_checkpoint.path
    if weights:
        yield error(
            "TDM-PARAMETERS-MISSING",
            f"Nothing provides {len(weights)} parameters of the drafter; they would stay random: {listed(weights)}."
            + _why_not_shared(pair, weights),
            file=path,
            where=weights[0],
            found=f"{len(weights)} missing",
            expected="every parameter in the drafter's files, or shared by the target",
            action="Check the tensor names (a prefix?) and that all shards are there.",
        )
    if maps:
        yield error(
            "TDM-DRAFT-VOCABULARY-MAP-MISSING",
            f"The draft vocabulary has {pair.drafter.draft_vocab_size} ids of {pair.drafter.vocab_size}; "
            f"without {listed(maps)} a draft id has no meaning.",
            file=path,
            where=maps[0],
            expected="d2t and t2d",
            action="Export the drafter with d2t and t2d.",
        )


def colliding_tensors(pair: Pair) -> Iterable[Finding]:
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for key in sorted(pair.drafter_checkpoint.tensors):
        name = parameter_name(key)
        if name is not None:
            keys[name].append(key)
    for name, several in keys.items():
        if len(several) > 1:
            yield error(
                "TDM-TENSORS-COLLIDE",
                f"{listed(several)} all mean the drafter's {name}; which one counts is unclear.",
                file=pair.drafter_checkpoint.path,
                where=several[0],
                found=listed(several),
                expected=f"one tensor for {name}",
                action="Remove the tensors that do not belong to the drafter.",
            )


def shared_parameters_told(pair: Pair) -> Iterable[Finding]:
    if "embed_tokens.weight" in pair.resolution.shared:
        message = "The drafter has no embedding of its own; it shares the target's."
        yield note("TDM-EMBEDDING-SHARED", message, file=pair.drafter_checkpoint.path, where="embed_tokens.weight")
    if "lm_head.weight" in pair.resolution.shared:
        message = "The drafter has no head of its own; it borrows the target's. Other engines may leave it random."
        yield warning("TDM-HEAD-BORROWED", message, file=pair.drafter_checkpoint.path, where="lm_head.weight")


def _why_not_shared(pair: Pair, missing: list[str]) -> str:
    drafter, target = pair.drafter, pair.target
    if "embed_tokens.weight" in missing and drafter.hidden_size != target.hidden_size:
        return f" The target's embedding is {target.hidden_size} wide, the drafter {drafter.hidden_size}."
    if "lm_head.weight" in missing and drafter.draft_vocab_size != target.vocab_size:
        return f" The target's head has {target.vocab_size} rows, the drafter's needs {drafter.draft_vocab_size}."
    return ""
