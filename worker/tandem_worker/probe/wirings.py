"""Ways in which an engine may join drafter and target: the declared one, and mistakes that are seen in the field.

Each hypothesis says what else the drafter may have been trained for. When one of them works where the declared wiring
does not, it names the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tandem_worker.checkpoint.layer_ids import FIELD, NESTED, as_outputs
from tandem_worker.checks import Pair
from tandem_worker.models.eagle3 import Eagle3


@dataclass(frozen=True)
class Wiring:
    """How drafts are made. `cause` completes a sentence that begins with what the engine will do."""

    capture: tuple[int, ...]
    cause: str = ""
    remedy: str = ""
    fused: bool = True  # False: fc skipped, the feature is the one captured stream
    target_ids: Tensor | None = None  # [Vd]; None: draft id + d2t
    norm_before_residual: bool | None = None  # None: as the config says


def declared(pair: Pair) -> Wiring:
    return Wiring(pair.resolution.capture_indexes)


def hypotheses(pair: Pair, drafter: Eagle3) -> Iterator[Wiring]:
    """Distinct from the declared wiring and from each other; the likeliest mistakes first."""
    right = declared(pair)
    seen = {right.capture}
    for capture in _captures(pair):
        if capture not in seen and all(0 <= i <= pair.target.layers for i in capture):
            seen.add(capture)
            yield _captured(right, capture)
    yield from _vocabularies(right, drafter)
    flipped = not pair.resolution.norm_before_residual
    yield replace(
        right,
        norm_before_residual=flipped,
        cause=f"will run it with norm_before_residual {str(not flipped).lower()}; the drafter answers to the opposite",
        remedy=f"declare norm_before_residual {str(flipped).lower()} in the drafter's config.json",
    )
    if pair.drafter.hidden_size == pair.target.hidden_size:
        yield replace(
            right,
            capture=(pair.target.layers,),
            fused=False,
            cause="will apply fc to three states; the drafter answers to the last state alone, without fc",
            remedy="use a drafter that was trained with fc",
        )


def _captures(pair: Pair) -> Iterator[tuple[int, ...]]:
    engine, layers = pair.resolution.capture_indexes, pair.target.layers
    if pair.trained_on is not None and len(pair.trained_on) == len(engine):
        yield pair.trained_on
    yield tuple(i + 1 for i in engine)
    yield tuple(i - 1 for i in engine)
    yield (2, layers // 2, layers - 3)
    yield (0, *engine[:-1])
    for slot in range(len(engine)):
        yield engine[:slot] + (0,) + engine[slot + 1 :]


def _captured(right: Wiring, capture: tuple[int, ...]) -> Wiring:
    return replace(
        right,
        capture=capture,
        cause=f"will capture {list(right.capture)}; the drafter answers to {list(capture)}",
        remedy=f"declare {list(capture)} at top level ({FIELD}) or {as_outputs(capture)} in {NESTED}",
    )


def _vocabularies(right: Wiring, drafter: Eagle3) -> Iterator[Wiring]:
    offsets = drafter.d2t
    same = torch.arange(len(offsets), device=offsets.device)
    if not offsets.any():
        return
    reads = "will read d2t as offsets; the drafter answers when"
    vocabulary = drafter.drafter.vocab_size
    if bool(((offsets >= 0) & (offsets < vocabulary)).all()):
        remedy = "write d2t as offsets, d2t[i] = target id - i"
        yield replace(right, target_ids=offsets, cause=f"{reads} its entries are taken as target ids", remedy=remedy)
    remedy = "write d2t as zeros, or train with the vocabulary that d2t describes"
    yield replace(right, target_ids=same, cause=f"{reads} d2t is ignored", remedy=remedy)
