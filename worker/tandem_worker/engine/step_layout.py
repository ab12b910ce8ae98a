"""Where the rows of a step lie, for the target's kernels on a GPU.

Rows lie behind each other without gaps: place does not matter here, so there are no tiles of rows as on the CPU. On a
GPU a step of up to MOST_ROWS is made up to one of a few sizes, for each of which there is a graph: rows and tiles that
nobody has stand at position 0 of the scratch page and are empty. More rows keep the GPU busy for longer than it takes
to launch their kernels one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch

from tandem_worker.engine.inputs import Inputs
from tandem_worker.engine.rounds import context_buckets
from tandem_worker.engine.scheduler import Work
from tandem_worker.kernels.tiling import Placing, Tiling, tile_tokens

MOST_ROWS = 512
STEP_ROWS = (16, 32, 64, 128, 192, 256, 384, MOST_ROWS)
FEW = 4
"""Requests. Tiles are counted for so many, or for as many as may run."""


@dataclass(frozen=True)
class Step:
    """A forward of the target, as its kernels are launched."""

    rows: int
    tiles: int
    tokens: int  # rows of a tile at most
    context: int
    capture: bool


class Laid(NamedTuple):
    step: Step
    firsts: tuple[int, ...]  # of each work, its first row
    rows: int  # that somebody has


class StepLayout:
    def __init__(
        self, rows: int, batch: int, width: int, group: int, draft_length: int, context_limit: int, device: torch.device
    ) -> None:
        """rows, batch: of a step at most; width: pages of a text; group: query heads that share a key head."""
        self.padded = device.type == "cuda"
        self.room, self.batch, self.width = rows, batch, width
        self.contexts = context_buckets(context_limit)
        self.sizes = sorted({min(size, rows) for size in STEP_ROWS})
        self._group, self._verified = group, draft_length + 1
        tiles = rows // tile_tokens(group, self._verified) + max(FEW, batch)  # no step needs more
        self._inputs = Inputs(
            {
                "tokens": (rows,),
                "positions": (rows + 1,),  # behind the last row is one that no step has, at position 0
                "owners": (rows + 1,),
                "tile_rows": (tiles,),
                "tile_counts": (tiles,),
                "tables": (1 + batch, width),  # the first is nobody's: the scratch page
            },
            device,
        )
        laid = self.device = self._inputs.device
        self.placing = Placing(laid["positions"], laid["owners"], laid["tables"])

    def lay_out(self, works: Sequence[Work], capture: bool, as_it_is: bool = False) -> Laid:
        """Puts the rows where the kernels read them. as_it_is: it is not made up to another size."""
        self._inputs.clear()
        laid = self._inputs.host
        counts = [work.end - work.start + len(work.proposals) for work in works]
        prompts = max(counts) > self._verified
        tokens = tile_tokens(self._group, self.room if prompts else self._verified)
        firsts, rows, tiles, context = [], 0, 0, 1
        for owner, (work, count) in enumerate(zip(works, counts, strict=True), 1):
            own = slice(rows, rows + count)
            laid["tokens"][own] = (*work.request.tokens[work.start : work.end], *work.proposals)
            laid["positions"][own] = range(work.start, work.start + count)
            laid["owners"][own] = owner
            pages = work.request.pages[: self.width]
            laid["tables"][owner, : len(pages)] = pages
            for first in range(rows, rows + count, tokens):
                laid["tile_rows"][tiles], laid["tile_counts"][tiles] = first, min(tokens, rows + count - first)
                tiles += 1
            firsts.append(rows)
            rows, context = rows + count, max(context, work.start + count)
        laid["tile_rows"][tiles:] = self.room
        self._inputs.send(1 + len(works))
        step = Step(rows, tiles, tokens, context, capture)
        if self.padded and not as_it_is and rows <= self.sizes[-1]:
            step = self._made_up(step, len(works))
        return Laid(step, tuple(firsts), rows)

    def all_made_up(self, kinds: Sequence[bool]) -> list[Step]:
        """Every step that others are made up to, the largest first: with prompts, and without, which are those of
        requests that rounds do not take. All rows stand nowhere. kinds: with streams captured, and without."""
        self._inputs.clear()
        self._inputs.send(1 + self.batch)
        steps = []
        for rows, works in product(reversed(self.sizes), sorted({FEW, max(FEW, self.batch)})):
            forms = [tile_tokens(self._group, self.room)]
            if rows <= self._size(min(works, self.batch) * self._verified):
                forms.append(tile_tokens(self._group, self._verified))
            for tokens, context, capture in product(forms, reversed(self.contexts), kinds):
                steps.append(Step(rows, _most_tiles(rows, works, tokens), tokens, context, capture))
        return list(dict.fromkeys(steps))

    def tiling(self, step: Step) -> Tiling:
        rows, counts = self.device["tile_rows"], self.device["tile_counts"]
        filled = step.rows > MOST_ROWS  # such a step is not made up: there is no empty tile
        return Tiling(rows, counts, step.tiles, step.tokens, step.context, filled=filled)

    def context(self, positions: int) -> int:
        return next(c for c in self.contexts if positions <= c) if self.padded else positions

    def _made_up(self, step: Step, works: int) -> Step:
        rows = self._size(step.rows)
        tiles = _most_tiles(rows, FEW if works <= FEW else self.batch, step.tokens)
        return Step(rows, tiles, step.tokens, self.context(step.context), step.capture)

    def _size(self, rows: int) -> int:
        return next((size for size in self.sizes if rows <= size), self.sizes[-1])


def _most_tiles(rows: int, works: int, tokens: int) -> int:
    """As many as so many rows of so many requests may need."""
    return min(rows // tokens + works, rows)
