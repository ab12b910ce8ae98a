"""How query rows are put into tiles, how their contexts are cut, and what one program of attention takes.

ATOM and GROUP are part of the arithmetic: where contexts are cut decides what is added to what. All else is chosen for
speed alone and enters no sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from tandem_worker.kernels.launch import is_interpreted, power_of_2

ATOM, GROUP = (32, 64) if is_interpreted() else (128, 512)
"""Positions. Shorter in the interpreter, so that a small test meets the whole tree."""

TILE_ROWS = 32 if is_interpreted() else 128
"""Query rows, times heads of a group, that a program takes at most. Fewer in the interpreter, too."""


class Span(IntEnum):
    """What one program takes."""

    ALL = 0
    ATOM = 1
    GROUP = 2


@dataclass(frozen=True)
class Placing:
    """Where rows stand. int32 tensors on the device, whole buffers."""

    positions: Tensor  # [M]
    owners: Tensor  # [M] rows of tables
    tables: Tensor  # [owners, width] pages


class Tiling(NamedTuple):
    """Query rows in tiles, and the longest context that the launch must be ready for."""

    rows: Tensor  # [tiles] first rows
    counts: Tensor  # [tiles]
    tiles: int
    tokens: int  # rows of a tile at most
    context: int  # positions
    compact: bool = False
    filled: bool = False  # no tile is empty


def tile_tokens(group: int, rows: int) -> int:
    """Query tokens of a tile when a request brings `rows` of them."""
    return max(1, min(rows, TILE_ROWS // power_of_2(group)))


def span_for(tiles: int, context: int) -> Span:
    """Few requests with short contexts need many programs; what fits one group needs no merge."""
    if tiles * context <= 8 * GROUP and context > ATOM:
        return Span.ATOM
    return Span.ALL if context <= GROUP or tiles >= 64 else Span.GROUP


class Pace(NamedTuple):
    warps: int
    stages: int


def pace_for(span: Span, rows: int, tiles: int) -> Pace:
    """Found by timing whole rounds of the Llama-3.1-8B shape on one H200; bits do not depend on it."""
    if span is Span.ATOM:
        if rows == 16:
            return Pace(4, 3)
        return Pace(8, 2) if tiles < 4 or rows == 128 else Pace(4, 1)
    return Pace(4, 1) if rows in (32, 64) else Pace(8, 2)


def tilings_of_all_forms(zeros: Tensor, most: int) -> Iterator[tuple[Tiling, Span]]:
    """One launch for each form that `attend` is compiled in, for tiles of up to `most` rows. zeros: int32."""
    sizes = [1 << i for i in range(most.bit_length())]
    # few tiles and many have paces of their own
    for tokens, span, tiles, filled in itertools.product(sizes, Span, (1, 4), (False, True)):
        counts = torch.full_like(zeros[:tiles], tokens)
        yield Tiling(zeros, counts, tiles, tokens, GROUP + 1, filled=filled), span
        if tokens == 1:
            yield Tiling(zeros, counts, tiles, 1, GROUP + 1, compact=True), span
