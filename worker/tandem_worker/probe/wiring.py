"""A wiring: how drafter and target are joined. Plain data; nothing here knows an engine or computes.

What an engine will do with a pair is one wiring. What the drafter may have been trained for are others. The probe
measures them all on the same captured streams, and the difference between two wirings is what a diagnosis names.

n decoder layers of the target, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class View(StrEnum):
    """What is taken of a captured stream."""

    STREAM = "the stream as it is"
    FINAL_NORM = "the stream after the target's final norm"
    INPUT_NORM = "the stream after the input norm of the layer that it enters"


class DraftIds(StrEnum):
    """What makes a target id of a draft id."""

    OFFSETS = "d2t as offsets"
    IDS = "d2t as target ids"
    IGNORED = "no d2t: draft ids are target ids"
    MARKED = "the ids that t2d marks, in their order"


class Source(StrEnum):
    """Where a table's values come from."""

    OWN = "the drafter's own"
    TARGET = "the target's"
    RANDOM = "left at random"


class Pairs(StrEnum):
    """Which two values of a head a rotary embedding turns together."""

    HALVES = "one of each half"
    INTERLEAVED = "neighbours"


@dataclass(frozen=True)
class Wiring:
    capture: tuple[int, ...]  # capture index of each of fc's slots; with fc skipped one
    view: View = View.STREAM
    fused: bool = True  # False: fc is skipped, the feature is the one captured stream
    ids: DraftIds = DraftIds.OFFSETS
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    embedding: Source = Source.TARGET
    head: Source = Source.OWN
    rope_theta: float = 10000.0
    rope_pairs: Pairs = Pairs.HALVES
    random: frozenset[str] = frozenset()  # other parameters that keep the values of a fresh model


class Aspect(StrEnum):
    """One thing in which wirings differ, and one change mends. In the order in which they are told."""

    RANDOM = "random"
    FUSION = "fusion"
    CAPTURE = "capture"
    VIEW = "view"
    IDS = "ids"
    EMBEDDING = "embedding"
    HEAD = "head"
    NORM_BEFORE_RESIDUAL = "norm_before_residual"
    NORM_BEFORE_FC = "norm_before_fc"
    FC_NORM = "fc_norm"
    NORM_OUTPUT = "norm_output"
    ROPE_THETA = "rope_theta"
    ROPE_PAIRS = "rope_pairs"


FIELDS: dict[Aspect, tuple[str, ...]] = {aspect: (aspect.value,) for aspect in Aspect} | {
    Aspect.FUSION: ("fused", "capture", "view")
}
"""The fields that an aspect covers. Whether fc is applied says, too, what is captured for it."""


def differences(one: Wiring, other: Wiring) -> tuple[Aspect, ...]:
    fused = one.fused != other.fused
    hidden = FIELDS[Aspect.FUSION] if fused else ("fused",)
    differ = [
        aspect
        for aspect, fields in FIELDS.items()
        if aspect is not Aspect.FUSION
        and not set(fields) <= set(hidden)
        and any(getattr(one, field) != getattr(other, field) for field in fields)
    ]
    return tuple(sorted([*differ, *([Aspect.FUSION] if fused else [])], key=list(Aspect).index))


def taken_back(mended: Wiring, engine: Wiring, aspect: Aspect) -> Wiring:
    """`mended`, in this one aspect as the engine has it."""
    fields: dict[str, Any] = {field: getattr(engine, field) for field in FIELDS[aspect]}
    return replace(mended, **fields)
