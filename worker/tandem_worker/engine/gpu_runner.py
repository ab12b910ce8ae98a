"""Runs steps with the kernels, on a GPU.

`verify` and `draft` do what their namesakes in `runner` do, with the host in between: for chunks of prompts, for
log probabilities, for anything that is not plain decoding. That part goes through `rounds`. Both run the same kernels
on the same caches, and rows have the same bits in either.

Steps are made up to sizes for which there are graphs (`step_layout`), and so are the drafts behind them (Chain).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from tandem_worker.engine.forward import DrafterForward, Space, TargetForward
from tandem_worker.engine.graphs import Graphs
from tandem_worker.engine.inputs import Inputs
from tandem_worker.engine.observed import Observed
from tandem_worker.engine.packed import pack_drafter, pack_target
from tandem_worker.engine.pages import PAGE, pages_for
from tandem_worker.engine.ranks import ALONE, Ranks
from tandem_worker.engine.rounds import Rounds, buckets
from tandem_worker.engine.runner import Verified
from tandem_worker.engine.scheduler import Work
from tandem_worker.engine.step_choice import StepChoice
from tandem_worker.engine.step_layout import MOST_ROWS, Laid, Step, StepLayout
from tandem_worker.kernels.attention import Partials
from tandem_worker.kernels.choice import take
from tandem_worker.kernels.linear import TILES
from tandem_worker.kernels.tiling import Placing, Tiling, tile_tokens, tilings_of_all_forms
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.share import Share

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chain:
    """Drafts after a step."""

    batch: int
    length: int
    context: int


@dataclass(frozen=True)
class VerifiedRows(Verified):
    laid: Laid


class GpuRunner:
    def __init__(
        self,
        llama: Llama,
        eagle3: Eagle3 | None,
        page_count: int,
        *,
        max_batch: int,
        prefill_chunk: int,
        draft_length: int,
        lengths: Sequence[int],
        context_limit: int,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.device, self.ranks = device, ranks
        self.llama, self.eagle3 = llama, eagle3
        self.capture = eagle3.drafter.capture_indexes if eagle3 else ()
        batch = buckets(max_batch)[-1]
        ahead = 2 * draft_length + 2
        self.width = pages_for(context_limit + ahead)
        rows = prefill_chunk + batch * (draft_length + 1)
        dtype = llama.model.norm.weight.dtype
        space = Space(rows, batch * (draft_length + 1), page_count, self.width * PAGE, dtype, device)
        partials = Partials(device)
        packed = pack_target(llama, Share(ranks.rank, ranks.size))
        self.target = TargetForward(packed, self.capture, space, partials, ranks)
        self.drafter = None
        if eagle3:
            self.drafter = DrafterForward(pack_drafter(eagle3), space._replace(head_rows=batch), partials)
        self.graphs = Graphs(device, ranks)
        self._batch = batch
        shape = self.target.target.shape
        group = shape.heads // shape.kv_heads
        self.layout = StepLayout(rows, batch, self.width, group, draft_length, context_limit, device)
        self.placing = self.layout.placing
        self._drafting = Inputs(
            {"following": (rows,), "last": (batch,), "lengths": (batch,), "tables": (batch, self.width)}, device
        )
        self._drafts = torch.zeros(batch, draft_length + 1, dtype=torch.int32, device=device)
        self._each = torch.arange(batch, dtype=torch.int32, device=device)
        self._ones, self._chain_positions = torch.ones_like(self._each), torch.zeros_like(self._each)
        self.rounds = Rounds(
            self.target,
            self.drafter,
            self.graphs,
            max_batch=max_batch,
            draft_length=draft_length if eagle3 else 0,
            lengths=lengths,
            context_limit=context_limit,
            table_width=self.width,
        )
        self.choice = StepChoice(self.target, self.rounds.drawing, batch, draft_length, space)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Every kernel once in each form that prompts of any length need: what is met later would be compiled while a
        request waits. All rows stand at position 0 of the scratch page."""
        started = time.perf_counter()
        target, drafter = self.target, self.drafter
        room, head_room = len(target.streams), len(target.block.logits)
        nowhere = torch.zeros(room, dtype=torch.int32, device=self.device)
        placing = Placing(nowhere, nowhere, nowhere.new_zeros(1, self.width))
        for size in (*TILES, room):
            rows = min(size, room)
            empty = Tiling(nowhere, nowhere, 1, 1, 1)  # attention's forms come below
            target(nowhere, rows, placing, empty, capture=drafter is not None)
            target.choose(target.block.normed, min(rows, head_room))
            if drafter:
                drafter.extend(target.streams, nowhere, rows, placing)
        for block in (target.block, *([drafter.block] if drafter else [])):
            group = block.shape.heads // block.shape.kv_heads
            for tiling, span in tilings_of_all_forms(nowhere, tile_tokens(group, room)):
                block.attend(0, placing, tiling, span)
        torch.cuda.synchronize(self.device)
        log.info("Ran all kernels once, %.1f s", time.perf_counter() - started)

    @property
    def target_ids(self) -> Tensor:
        """[Vd]"""
        assert self.drafter is not None
        return self.drafter.drafter.ids

    @torch.inference_mode()
    def capture_all(self) -> None:
        """Graphs of steps, and of what is drafted behind them. All rows stand nowhere."""
        started = time.perf_counter()
        for step in self.layout.all_made_up((True, False) if self.drafter else (False,)):
            self._forward(step)
        if self.drafter:
            self._drafting.clear()
            self._drafting.send(self._batch)
            for batch, length, context in product(
                reversed(self.rounds.buckets), self.rounds.lengths, reversed(self.rounds.contexts)
            ):
                self._draft_chain(Chain(batch, length, context))
        log.info("Captured the graphs of steps in %.1f s", time.perf_counter() - started)

    @torch.inference_mode()
    def verify(self, works: Sequence[Work], capture: bool) -> VerifiedRows:
        laid = self.layout.lay_out(works, capture, as_it_is=bool(self.target.observed))
        rows = self.choice.lay_out(works, laid.firsts)
        self._forward(laid.step)
        return VerifiedRows(self.choice.choose(works, rows), laid)

    def _forward(self, step: Step) -> None:
        tokens, tiling = self.layout.device["tokens"], self.layout.tiling(step)

        def kernels() -> None:
            self.target(tokens, step.rows, self.placing, tiling, capture=step.capture)

        if step.rows > MOST_ROWS or self.target.observed:
            kernels()
        else:
            self.graphs.play(step, kernels)

    @torch.inference_mode()
    def draft(self, works: Sequence[Work], verified: Verified, drafting: Sequence[bool], length: int) -> None:
        """As in `runner`. Rows that were rejected stay as they are: the next ones overwrite them before they are
        seen."""
        assert isinstance(verified, VerifiedRows)
        assert self.drafter is not None
        self._drafting.clear()
        laid = self._drafting.host
        drafts: list[Work] = []
        for work, first, wanted in zip(works, verified.laid.firsts, drafting, strict=True):
            request = work.request
            if not request.finish:
                kept = request.tokens[work.start + 1 : request.computed + 1]
                laid["following"][first : first + len(kept)] = kept
                request.drafted = request.computed
            if wanted:
                row = len(drafts)
                laid["last"][row] = first + request.computed - 1 - work.start
                laid["lengths"][row] = request.computed
                pages = request.pages[: self.width]
                laid["tables"][row, : len(pages)] = pages
                drafts.append(work)
        self._drafting.send(self._batch if drafts else 0)
        if self.target.observed:
            self.target.observed.fc_input = self.target.streams[: verified.laid.rows].clone()
        rows, following = verified.laid.step.rows, self._drafting.device["following"]
        self.drafter.extend(self.target.streams, following, rows, self.placing)
        if drafts:
            longest = max(work.request.computed for work in drafts)
            size = next(b for b in self.rounds.buckets if len(drafts) <= b) if self.layout.padded else len(drafts)
            self._draft_chain(Chain(size, length, self.layout.context(longest + length)))
            for work, proposals in zip(drafts, self._drafts[: len(drafts), 1 : length + 1].tolist(), strict=True):
                work.request.proposals = proposals

    def _draft_chain(self, chain: Chain) -> None:
        """Of the first rows of `_drafting`, into those of `_drafts`. Begins with queries that `extend` has left."""
        assert self.drafter is not None
        drafter, laid, batch, context = self.drafter, self._drafting.device, chain.batch, chain.context
        last = Tiling(laid["last"], self._ones, batch, 1, context, compact=True)
        each = Tiling(self._each, self._ones, batch, 1, context)
        placing = Placing(self._chain_positions, self._each, laid["tables"])

        def kernels() -> None:
            drafter.first(laid["last"], batch, self.placing, last)
            for step in range(1, chain.length):
                column = self._drafts[:, step]
                drafter.next(step, batch, column, column, laid["lengths"], placing, each)
            take(drafter.block.best, batch, self._drafts[:, chain.length], ids=drafter.drafter.ids)

        self.graphs.play(chain, kernels, moved=(drafter.block.q,))

    def wipe(self, pages: Sequence[int]) -> None:
        """Zeros in the pages of all caches, once the rounds that run have ended."""
        index = torch.tensor(pages, dtype=torch.int64, device=self.device)
        for block in (self.target.block, *([self.drafter.block] if self.drafter else [])):
            for kept in block.cache:
                kept.index_fill_(1, index, 0)

    @contextmanager
    def observed(self) -> Iterator[Observed]:
        """As in `runner`."""
        observed = self.target.observed = Observed()
        try:
            yield observed
        finally:
            self.target.observed = None
