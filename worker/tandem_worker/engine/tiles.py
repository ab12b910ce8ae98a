"""Rows of a step, laid out in tiles: what makes greedy text the same with speculation and without, bit by bit.

Two positions of one request give the same bits only if they go through the same arithmetic, and BLAS chooses its order
of summation by the number of rows and treats rows differently by place. So a row's place never changes: position p
always sits in slot p mod TILE of a tile that holds the positions of its own aligned group, every product is over TILE
rows, and attention runs over whole pages. One row of plain decoding then takes the very path that it takes among the
K + 1 rows of a verification, or in a chunk of a prompt. Slots without a row hold token 0 and are written to scratch.

Shapes: N tiles, R = TILE rows each, A pages of the longest request in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem_worker.engine.pages import PAGE, padded, pages_for

TILE = 8

Ints = NDArray[np.int64]


class Run(NamedTuple):
    """Neighbouring rows of one request."""

    start: int  # position of the first row
    tokens: Sequence[int]
    pages: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Tiles(NamedTuple):
    tokens: Ints  # [N, R]
    positions: Ints  # [N, R]; 0 where there is no row
    places: Ints  # [N, R] page * PAGE + offset where the row is kept
    tables: Ints  # [N, A] pages of the tile's request, then SCRATCH
    firsts: tuple[int, ...]  # of each run, the index of its first row among the N * R


def lay_out(runs: Sequence[Run]) -> Tiles:
    counts = [(run.end - 1) // TILE - run.start // TILE + 1 for run in runs]
    width = max(pages_for(run.end) for run in runs)
    tokens, positions, places = np.zeros((3, sum(counts) * TILE), dtype=np.int64)
    tables = np.array([padded(run.pages, width) for run in runs], dtype=np.int64).repeat(counts, 0)
    firsts, tile = [], 0
    for run, count in zip(runs, counts, strict=True):
        first = tile * TILE + run.start % TILE
        rows = slice(first, first + len(run.tokens))
        tokens[rows] = run.tokens
        positions[rows] = np.arange(run.start, run.end)
        places[rows] = places_of(run.pages, positions[rows])
        firsts.append(first)
        tile += count
    by_tile = (-1, TILE)
    return Tiles(tokens.reshape(by_tile), positions.reshape(by_tile), places.reshape(by_tile), tables, tuple(firsts))


def places_of(pages: Sequence[int], positions: Ints) -> Ints:
    return np.asarray(pages)[positions // PAGE] * PAGE + positions % PAGE
