"""Decoding without the host in the way: a round is one graph, and the host is one round behind.

A round is everything between two verifications: the target over K + 1 rows of each request, accept, the drafter's rows,
K drafts. Its state (tokens, lengths, drafts) stays on the device and is moved on there, so the next round can be
started before anybody knows what this one accepted. The host reads a few integers of the round before, hands tokens out
and finds the texts that have ended; what the running round computes for those is dropped. A plain step is a round
without drafts.

Who takes part changes only while no round runs; then the state is written anew from the requests. A request that ends
keeps its row, pointed at the scratch page, until the batch shrinks to a smaller bucket or somebody is admitted.

Graphs exist per (batch bucket, speculating or not, context bucket, greedy or with drawing): attention's grid is as long
as the longest context that a graph is ready for, which costs nothing for one request and 0.2 ms for 32.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tandem_worker.engine.drawing import Drawing
from tandem_worker.engine.forward import DrafterForward, TargetForward
from tandem_worker.engine.graphs import Graphs
from tandem_worker.engine.pages import padded
from tandem_worker.engine.request import Request
from tandem_worker.engine.round_state import State
from tandem_worker.kernels.choice import FORCED, accept, take
from tandem_worker.kernels.tiling import Placing, Tiling, tile_tokens

log = logging.getLogger(__name__)

STAGING = 4
"""Uploads that may be on their way at once; two rounds are in flight at most."""


class Key(NamedTuple):
    batch: int
    drafts: int  # 0: plain
    context: int
    draws: bool  # somebody is not greedy, or takes no drafts (see `drawing`)


class Played(NamedTuple):
    """A round that has ended: rows of [accepted, T chosen tokens, K drafts], one per request."""

    requests: list[Request]
    drafts: int
    results: list[list[int]]
    seconds: float  # from the end of the round before, as the host saw it
    busy_seconds: float  # of the graph alone; 0 without a GPU


@dataclass(frozen=True)
class Flight:
    key: Key
    requests: list[Request]
    result: Tensor  # pinned
    events: tuple[torch.cuda.Event, ...]  # begun, played, copied
    started: float


class Rounds:
    def __init__(
        self,
        target: TargetForward,
        drafter: DrafterForward | None,
        graphs: Graphs,
        *,
        max_batch: int,
        draft_length: int,
        lengths: Sequence[int],
        context_limit: int,
        table_width: int,
    ) -> None:
        self.target, self.drafter, self.graphs, self.ranks = target, drafter, graphs, target.exchange.ranks
        self.lengths = lengths  # of drafts, that graphs are captured for at the start
        self.draft_length, self.context_limit, self.width = draft_length, context_limit, table_width
        self.device = target.streams.device
        self.buckets = buckets(max_batch)
        self.contexts = context_buckets(context_limit)
        largest, t = self.buckets[-1], draft_length + 1

        def ints(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=self.device)

        self._tokens, self._chosen, self._result = ints(largest * t), ints(largest * t), ints(largest * 2 * t)
        self._lengths, self._last_rows, self._turns = ints(largest), ints(largest), ints(largest)
        self._positions, self._draft_positions = ints(largest * t), ints(largest)
        self._tables = ints(largest, table_width)
        self.drawing = Drawing(largest, largest * t, target.vocab, self.device)
        self.forced = torch.full((FORCED,), -1, dtype=torch.int32, device=self.device)
        rows = torch.arange(largest * t, dtype=torch.int32, device=self.device)
        self._each, self._ones = rows[:largest], torch.ones_like(rows[:largest])
        self._owners = {size: rows // size for size in range(1, t + 1)}
        self._nths = {size: rows % size for size in range(1, t + 1)}
        self._counts = {size: torch.full_like(rows, size) for size in range(1, t + 1)}
        self._tiles = {rows_each: self._tiles_of(rows_each, rows) for rows_each in self._owners}
        pinned = self.device.type == "cuda"
        sizes = largest * (t + 1 + table_width), largest * 2 * t
        self._uploads, self._downloads = (
            [torch.zeros(size, dtype=torch.int32, pin_memory=pinned) for _ in range(STAGING)] for size in sizes
        )
        self._flights: deque[Flight] = deque()
        self._turn = 0
        self._batch: list[Request] = []
        self._known: list[tuple[int, ...]] = []  # pages on the device, by row
        self._drafts, self._draws = -1, False
        self._ended = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def takes(self, requests: Sequence[Request], drafts: int) -> bool:
        """Whether the next round can follow on the rounds in flight."""
        if not self._flights:
            return len(requests) <= self.buckets[-1]
        smaller = self._bucket(len(requests)) < self._bucket(len(self._batch))
        return drafts == self._drafts and not smaller and set(requests) <= set(self._batch)

    def forget(self) -> None:
        """The requests were moved on elsewhere: write the state anew. Only while no round is in flight."""
        assert not self._flights
        self._batch = []

    @torch.inference_mode()
    def start(self, requests: Sequence[Request], drafts: int, longest: int) -> None:
        """longest: positions that the round may reach."""
        if not self._flights and (drafts != self._drafts or list(requests) != self._batch):
            self._write(requests, drafts)
        else:
            self._update_tables()
        key = Key(self._bucket(len(self._batch)), drafts, next(c for c in self.contexts if longest <= c), self._draws)
        on_gpu = self.device.type == "cuda"
        events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(3)) if on_gpu else ()
        self._ensure(key)
        if on_gpu:
            events[0].record()
        self.graphs.play(key, lambda: self._play(key))
        if on_gpu:
            events[1].record()
        self._turn += 1
        size = len(self._batch) * 2 * (drafts + 1)
        result = self._downloads[self._turn % STAGING][:size]
        result.copy_(self._result[:size], non_blocking=True)
        if on_gpu:
            events[2].record()
        self._flights.append(Flight(key, self._batch, result, events, time.perf_counter()))

    def finish(self) -> Played:
        """Waits for the oldest round."""
        flight = self._flights.popleft()
        busy = 0.0
        if flight.events:
            begun, played, copied = flight.events
            copied.synchronize()
            busy = begun.elapsed_time(played) / 1000
        self.ranks.check()
        now = time.perf_counter()
        seconds, self._ended = now - max(flight.started, self._ended), now
        rows = flight.result.view(len(flight.requests), -1).tolist()
        return Played(flight.requests, flight.key.drafts, rows, seconds, busy)

    @torch.inference_mode()
    def capture_all(self) -> None:
        """Every graph, the largest first, so that the others fit into its memory."""
        started = time.perf_counter()
        kinds = [0, *self.lengths] if self.drafter else [0]
        sizes = product((False, True), reversed(self.buckets), kinds, reversed(self.contexts))
        keys = [Key(batch, drafts, context, draws) for draws, batch, drafts, context in sizes]
        for number, key in enumerate(keys, 1):
            self._ensure(key)
            if self.graphs.failure:
                return
            log.info("Graph %d of %d: batch %d, %d drafts, context %d, draws: %s", number, len(keys), *key)
        log.info("Captured %d graphs in %.1f s", len(keys), time.perf_counter() - started)

    def _bucket(self, batch: int) -> int:
        return next(b for b in self.buckets if batch <= b)

    def _write(self, requests: Sequence[Request], drafts: int) -> None:
        """State of all rows from the requests; rows of the bucket that nobody has point at the scratch page."""
        self._batch, self._drafts = list(requests), drafts
        bucket, t = self._bucket(len(requests)), drafts + 1
        tokens = np.zeros((bucket, t), dtype=np.int32)
        lengths = np.zeros(bucket, dtype=np.int32)
        for row, request in enumerate(requests):
            known = [request.tokens[-1], *request.proposals[:drafts]]
            tokens[row, : len(known)] = known  # fewer where drafts are not wanted
            lengths[row] = len(request.tokens) - 1
        self._known = [()] * bucket
        self._draws = not all(one.sampling.greedy and one.sampling.speculate for one in requests)
        if self._draws:
            self.drawing.write(requests, bucket)
        upload = self._staging(np.concatenate([tokens.ravel(), lengths]))
        self._tokens[: bucket * t].copy_(upload[: bucket * t], non_blocking=True)
        self._lengths[:bucket].copy_(upload[bucket * t :], non_blocking=True)
        self._tables[:bucket].zero_()
        self._update_tables()

    def _update_tables(self) -> None:
        pages = [() if request.finish else tuple(request.pages) for request in self._batch]
        if pages == self._known[: len(pages)]:
            return
        self._known[: len(pages)] = pages
        table = np.array([padded(owned, self.width) for owned in pages], dtype=np.int32)
        self._tables[: len(pages)].copy_(self._staging(table.ravel()).view(table.shape), non_blocking=True)

    def _staging(self, values: np.ndarray) -> Tensor:
        """Pinned, and left alone until the rounds that may still read it have ended."""
        self._uploads.append(self._uploads.pop(0))
        upload = self._uploads[-1][: values.size]
        upload.numpy()[:] = values
        return upload

    def _ensure(self, key: Key) -> None:
        """A graph for the key. The state must not be in use."""
        self.graphs.ensure(key, lambda: self._play(key), self._moved)

    @property
    def _moved(self) -> tuple[Tensor, ...]:
        return self._tokens, self._lengths, self._turns, self.drawing.generated

    def _play(self, key: Key) -> None:
        batch, drafts, context, draws = key
        t = drafts + 1
        state = self._state(batch, t)
        placing = Placing(self._positions, self._owners[t], self._tables)
        firsts, tokens = self._tiles[t]
        tiling = Tiling(firsts, self._counts[tokens], batch * t // tokens, tokens, context)
        self.target(
            self._tokens,
            batch * t,
            placing,
            tiling,
            capture=drafts > 0,
            lengths=self._lengths,
            per_request=t,
        )
        self.target.choose(self.target.block.normed, batch * t)
        if draws:
            logits, owners, nths = self.target.logits(batch * t), self._owners[t], self._nths[t]
            self.drawing.draw(logits, self.target.best, batch * t, owners, nths, state.tokens, state.lengths)
            self.drawing.refuse(state)
        accept(self.target.best, state, batch, drafts)
        if draws:
            self.drawing.count(state)
        if drafts:
            self._draft(state, batch, drafts, placing, context)

    def _draft(self, state: State, batch: int, drafts: int, placing: Placing, context: int) -> None:
        assert self.drafter is not None
        drafter, t = self.drafter, drafts + 1
        drafter.extend(self.target.streams, self._chosen, batch * t, placing)
        last = Tiling(self._last_rows, self._ones, batch, 1, context, compact=True)
        drafter.first(self._last_rows, batch, placing, last)
        each = Tiling(self._each, self._ones, batch, 1, context)
        chain = Placing(self._draft_positions, self._each, self._tables)
        for step in range(1, drafts):
            drafter.next(step, batch, state.tokens[:, step], state.result[:, t + step], state.lengths, chain, each)
        best = drafter.block.best
        take(best, batch, state.tokens[:, drafts], state.result[:, t + drafts], drafter.drafter.ids)

    def _state(self, batch: int, t: int) -> State:
        return State(
            self._tokens[: batch * t].view(batch, t),
            self._lengths[:batch],
            self._chosen[: batch * t].view(batch, t),
            self._last_rows[:batch],
            self._result[: batch * 2 * t].view(batch, 2 * t),
            self._turns[:batch],
            self.forced,
            self.context_limit,
        )

    def _tiles_of(self, t: int, rows: Tensor) -> tuple[Tensor, int]:
        """First rows of tiles of equal size, and the size, when requests bring T rows each."""
        shape = self.target.target.shape
        most = tile_tokens(shape.heads // shape.kv_heads, t)
        tokens = next(size for size in range(most, 0, -1) if t % size == 0)
        return rows[::tokens].contiguous(), tokens


def buckets(max_batch: int) -> list[int]:
    """1, 2, 4, 8, 16, 24, 32, ... up to the first that holds max_batch."""
    sizes = [1, 2, 4, 8, *range(16, max_batch + 8, 8)]
    return [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < max_batch]


def context_buckets(limit: int) -> list[int]:
    """512, 2048, 8192, ... and room behind the limit for rows that are dropped."""
    sizes = [512 * 4**i for i in range(12) if 512 * 4**i < limit]
    return [*sizes, limit + 64]
