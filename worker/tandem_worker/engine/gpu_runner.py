"""Runs steps with the kernels, on a GPU.

`verify` and `draft` do what their namesakes in `runner` do, with the host in between: for chunks of prompts, for
log probabilities, for anything that is not plain decoding. That part goes through `rounds`. Both run the same kernels
on the same caches, and rows have the same bits in either.

Rows of a step lie behind each other without gaps: place does not matter here, so there are no tiles of rows as on the
CPU.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem_worker.engine.choosing import Choice, by_work, choose, rows_of
from tandem_worker.engine.forward import DrafterForward, Space, TargetForward
from tandem_worker.engine.observed import Observed
from tandem_worker.engine.packed import pack_drafter, pack_target
from tandem_worker.engine.pages import PAGE, padded, pages_for
from tandem_worker.engine.ranks import ALONE, Ranks
from tandem_worker.engine.rounds import Rounds, buckets
from tandem_worker.engine.runner import Verified
from tandem_worker.engine.scheduler import Work
from tandem_worker.kernels.attention import Partials, Placing, Tiling, tile_tokens, tilings_of_all_forms
from tandem_worker.kernels.choice import take
from tandem_worker.kernels.linear import TILES
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.share import Share

log = logging.getLogger(__name__)

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class VerifiedRows(Verified):
    firsts: tuple[int, ...]  # of each work, its first row
    rows: int
    placing: Placing


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
        self.device, self.draft_length, self.ranks = device, draft_length, ranks
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
        self._decided = torch.zeros(space.head_rows, llama.target.hidden_size, dtype=dtype, device=device)
        self.rounds = Rounds(
            self.target,
            self.drafter,
            max_batch=max_batch,
            draft_length=draft_length if eagle3 else 0,
            lengths=lengths,
            context_limit=context_limit,
            table_width=self.width,
        )

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
            target(nowhere, rows, placing, self._tiling([0, rows], 1), capture=drafter is not None)
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
    def verify(self, works: Sequence[Work], capture: bool) -> VerifiedRows:
        tokens: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        firsts: list[int] = []
        for owner, work in enumerate(works):
            firsts.append(len(tokens))
            tokens += [*work.request.tokens[work.start : work.end], *work.proposals]
            count = len(tokens) - firsts[-1]
            positions += range(work.start, work.start + count)
            owners += [owner] * count
        tables = np.array([padded(work.request.pages, self.width) for work in works], dtype=np.int32)
        placing = Placing(self._ints(positions), self._ints(owners), self._ints(tables))
        rows = len(tokens)
        tiling = self._tiling([*firsts, rows], max(positions) + 1)
        self.target(self._ints(tokens), rows, placing, tiling, capture=capture)
        return VerifiedRows(self._choose(works, firsts), tuple(firsts), rows, placing)

    def _tiling(self, borders: Sequence[int], context: int) -> Tiling:
        shape = self.target.target.shape
        longest = max(end - start for start, end in pairwise(borders))
        tokens = tile_tokens(shape.heads // shape.kv_heads, longest)
        firsts, counts = [], []
        for start, end in pairwise(borders):
            for first in range(start, end, tokens):
                firsts.append(first)
                counts.append(min(tokens, end - first))
        return Tiling(self._ints(firsts), self._ints(counts), len(firsts), tokens, context)

    def _choose(self, works: Sequence[Work], firsts: Sequence[int]) -> list[list[Choice]]:
        rows = [
            first + work.end - 1 - work.start + i
            for work, first in zip(works, firsts, strict=True)
            if work.decides
            for i in range(len(work.proposals) + 1)
        ]
        if not rows:
            return [[] for _ in works]
        n, block = len(rows), self.target.block
        torch.index_select(block.normed, 0, self._ints(rows), out=self._decided[:n])
        self.target.choose(self._decided, n)
        best = torch.zeros(n, dtype=torch.int32, device=self.device)
        take(self.target.best, n, best)
        deciding = rows_of(works)
        read = any(not row.sampling.greedy or row.sampling.logprobs is not None for row in deciding)
        logits = self.target.logits(n) if read else self.target.block.logits[:n]  # a rank's own, which nobody reads
        choices = choose(logits.float(), deciding, best)
        self.ranks.check()
        return by_work(works, choices)

    @torch.inference_mode()
    def draft(self, works: Sequence[Work], verified: Verified, drafting: Sequence[bool], length: int) -> None:
        """As in `runner`. Rows that were rejected stay as they are: the next ones overwrite them before they are
        seen."""
        assert isinstance(verified, VerifiedRows)
        assert self.drafter is not None
        following = np.zeros(verified.rows, dtype=np.int32)
        for work, first in zip(works, verified.firsts, strict=True):
            request = work.request
            if not request.finish:
                kept = request.tokens[work.start + 1 : request.computed + 1]
                following[first : first + len(kept)] = kept
                request.drafted = request.computed
        if self.target.observed:
            self.target.observed.fc_input = self.target.streams[: verified.rows].clone()
        self.drafter.extend(self.target.streams, self._ints(following), verified.rows, verified.placing)
        owners = [i for i, drafts in enumerate(drafting) if drafts]
        if owners:
            last = [verified.firsts[i] + works[i].request.computed - 1 - works[i].start for i in owners]
            for i, drafts in zip(owners, self._chain([works[i] for i in owners], last, length, verified), strict=True):
                works[i].request.proposals = drafts

    def _chain(
        self, works: Sequence[Work], last: Sequence[int], length: int, verified: VerifiedRows
    ) -> list[list[int]]:
        assert self.drafter is not None
        drafter, batch = self.drafter, len(works)
        context = max(work.request.computed for work in works) + length
        ones, each = self._ints([1] * batch), self._ints(range(batch))
        rows, lengths = self._ints(last), self._ints([work.request.computed for work in works])
        drafter.first(rows, batch, verified.placing, Tiling(rows, ones, batch, 1, context, compact=True))
        tables = np.array([padded(work.request.pages, self.width) for work in works], dtype=np.int32)
        placing = Placing(torch.zeros_like(each), each, self._ints(tables))
        drafts = torch.zeros(batch, length + 1, dtype=torch.int32, device=self.device)
        for step in range(1, length):
            column = drafts[:, step]
            drafter.next(step, batch, column, column, lengths, placing, Tiling(each, ones, batch, 1, context))
        take(drafter.block.best, batch, drafts[:, length], ids=drafter.drafter.ids)
        proposals: list[list[int]] = drafts[:, 1:].tolist()
        return proposals

    def wipe(self, pages: Sequence[int]) -> None:
        """Zeros in the pages of all caches, once the rounds that run have ended."""
        index = self._ints(pages).long()
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

    def _ints(self, values: Sequence[int] | range | Ints) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int32)).to(self.device)
