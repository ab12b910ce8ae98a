"""Runs one step on the device: the target over all scheduled rows, then the drafter behind it.

    verify  one target forward over prompts, newest tokens and drafted tokens; the target's choice where one is due
    draft   the drafter's rows of everything that was computed and kept, from the target's true streams; then K tokens
            drafted in a chain after each decoding request's newest token

Both work on the same tiles, so the streams go from one to the other without being moved.

Shapes: N tiles, R rows each, B drafting requests, H hidden size, K draft length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tandem_worker.engine.attention import Cache
from tandem_worker.engine.choosing import Choice, by_work, choose, rows_of
from tandem_worker.engine.observed import Observed
from tandem_worker.engine.pages import SCRATCH, padded, pages_for
from tandem_worker.engine.request import Request
from tandem_worker.engine.scheduler import Work
from tandem_worker.engine.tiles import TILE, Ints, Run, Tiles, lay_out, places_of
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama


class EngineBroken(Exception):
    """The model's output is not a number; nothing that it says can be trusted."""


class Placement(NamedTuple):
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Verified:
    """What the target said: for each work its choice at each deciding row. Runners add what their drafter needs."""

    chosen: list[list[Choice]]


@dataclass(frozen=True)
class VerifiedTiles(Verified):
    tiles: Tiles
    positions: Tensor  # [N, R]
    tables: Tensor  # [N, A]
    streams: list[Tensor]  # captured, [N, R, H of the target] each


class Runner:
    def __init__(self, llama: Llama, eagle3: Eagle3 | None, page_count: int, placement: Placement) -> None:
        self.llama, self.eagle3, self.device = llama, eagle3, placement.device
        target = llama.target
        self.cache = Cache(target.layers, page_count, target.kv_heads, target.head_dim, *placement)
        self.capture: tuple[int, ...] = ()
        if eagle3 is not None:
            drafter = eagle3.drafter
            self.capture = drafter.capture_indexes
            self.drafter_cache = Cache(drafter.layers, page_count, drafter.kv_heads, drafter.head_dim, *placement)
            self.target_ids = eagle3.target_ids  # [Vd]

    @torch.inference_mode()
    def verify(self, works: Sequence[Work], capture: bool) -> VerifiedTiles:
        runs = [Run(w.start, (*w.request.tokens[w.start : w.end], *w.proposals), w.request.pages) for w in works]
        tiles = lay_out(runs)
        positions, tables = self._tensor(tiles.positions), self._tensor(tiles.tables)
        attend = self.cache.attention(positions, self._tensor(tiles.places), tables)
        indexes = self.capture if capture else ()
        x, streams = self.llama(self._tensor(tiles.tokens), positions, attend, indexes)
        chosen = self._choose(x, works, tiles)
        return VerifiedTiles(chosen, tiles, positions, tables, [streams[i] for i in indexes])

    def _choose(self, x: Tensor, works: Sequence[Work], tiles: Tiles) -> list[list[Choice]]:
        """The target's tokens after the last known row and after each proposal, where the work reaches that far."""
        rows = [
            first + work.end - 1 - work.start + i
            for work, first in zip(works, tiles.firsts, strict=True)
            if work.decides
            for i in range(len(work.proposals) + 1)
        ]
        if not rows:
            return [[] for _ in works]
        deciding = sorted({row // TILE for row in rows})  # the head runs on whole tiles, see `tiles`
        at = [deciding.index(row // TILE) * TILE + row % TILE for row in rows]
        logits = self.llama.head(x[deciding]).flatten(0, 1)[at].float()  # [M, V]
        return by_work(works, choose(logits, rows_of(works)))

    @torch.inference_mode()
    def draft(self, works: Sequence[Work], verified: Verified, drafting: Sequence[bool], length: int) -> None:
        """After the verdict: brings the drafter's rows up to date and drafts `length` tokens where `drafting` says so.

        Requests' tokens and `computed` are those after acceptance. Sets `drafted` and `proposals`.
        """
        assert self.eagle3 is not None
        assert isinstance(verified, VerifiedTiles)
        hidden = self._extend(self.eagle3, works, verified).flatten(0, 1)  # [N * R, H]
        drafters = [work for work, drafts in zip(works, drafting, strict=True) if drafts]
        if not drafters:
            return
        firsts = [first for first, drafts in zip(verified.tiles.firsts, drafting, strict=True) if drafts]
        last = [first + w.request.computed - 1 - w.start for w, first in zip(drafters, firsts, strict=True)]
        requests = [work.request for work in drafters]
        proposals = self._chain(self.eagle3, requests, hidden[last][:, None], length)
        for request, proposed in zip(requests, proposals.tolist(), strict=True):
            request.proposals = proposed

    def _extend(self, eagle3: Eagle3, works: Sequence[Work], verified: VerifiedTiles) -> Tensor:
        """The drafter's step-0 rows of all rows that were kept -> hidden [N, R, H]. Rejected rows go to scratch."""
        tiles = verified.tiles
        following, places = np.zeros(tiles.tokens.size, dtype=np.int64), np.full(tiles.places.size, SCRATCH)
        for work, first in zip(works, tiles.firsts, strict=True):
            request = work.request
            if request.finish:
                continue
            rows = slice(first, first + request.computed - work.start)
            following[rows] = request.tokens[work.start + 1 : request.computed + 1]
            places[rows] = tiles.places.flat[rows]
            request.drafted = request.computed
        attend = self.drafter_cache.attention(verified.positions, self._tensor(places), verified.tables)
        embedding = F.embedding(self._tensor(following.reshape(tiles.tokens.shape)), eagle3.embed_tokens.weight)
        return eagle3.step(embedding, eagle3.fuse(verified.streams), verified.positions, attend)

    def _chain(self, eagle3: Eagle3, requests: Sequence[Request], hidden: Tensor, length: int) -> Tensor:
        """hidden [B, 1, H] of step 0 -> proposals [B, length]."""
        newest = self.target_ids[eagle3.head(hidden).argmax(-1)]  # [B, 1]
        proposals = [newest]
        positions = np.array(
            [range(r.computed, r.computed + length - 1) for r in requests], dtype=np.int64
        )  # [B, K - 1]
        places = np.array([places_of(r.pages, row) for r, row in zip(requests, positions, strict=True)], dtype=np.int64)
        width = max(pages_for(r.computed + length) for r in requests)
        tables = self._tensor(np.array([padded(r.pages, width) for r in requests], dtype=np.int64))
        for j in range(length - 1):
            position = self._tensor(positions[:, j : j + 1])
            attend = self.drafter_cache.attention(position, self._tensor(places[:, j : j + 1]), tables)
            hidden = eagle3.step(F.embedding(newest, eagle3.embed_tokens.weight), hidden, position, attend)
            newest = self.target_ids[eagle3.head(hidden).argmax(-1)]
            proposals.append(newest)
        return torch.cat(proposals, -1)

    def wipe(self, pages: Sequence[int]) -> None:
        """Zeros in the pages of all caches."""
        for cache in (self.cache, *([self.drafter_cache] if self.eagle3 else [])):
            for kept in (cache.keys, cache.values):
                kept.unflatten(1, (-1, cache.kv_heads))[:, list(pages)] = 0

    @contextmanager
    def observed(self) -> Iterator[Observed]:
        """Shows what the next forwards feed to `fc`, and all streams it could have come from."""
        observed, layers = Observed(), self.llama.model.layers
        assert self.eagle3 is not None

        def entering(i: int) -> Any:
            return lambda module, arguments: observed.streams.__setitem__(i, arguments[1])

        def behind_last(module: nn.Module, arguments: Any, output: Tensor) -> None:
            observed.streams[len(layers)] = output

        fuse = self.eagle3.fuse

        def watched(streams: list[Tensor]) -> Tensor:  # not fc itself: norms may stand before it
            observed.fc_input = torch.cat(streams, -1)
            return fuse(streams)

        self.eagle3.fuse = watched  # type: ignore[method-assign]
        hooks = [layer.register_forward_pre_hook(entering(i)) for i, layer in enumerate(layers)]
        hooks += [layers[-1].register_forward_hook(behind_last)]
        try:
            yield observed
        finally:
            del self.eagle3.fuse  # the method of the class shows again
            for hook in hooks:
                hook.remove()

    def _tensor(self, array: Ints) -> Tensor:
        return torch.from_numpy(array).to(self.device)
