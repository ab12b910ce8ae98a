"""The target's and the drafter's forwards as sequences of kernels over static buffers.

The same sequence runs a prompt's chunk, a verification and a plain step, eagerly or captured in a graph. Of a drafter's
rows only the last kept one of each request is asked for a proposal, and it has one layer: so of all others nothing is
computed but keys and values.

Shapes: M rows, B requests, H hidden size; the rest as in `kernels`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tandem_worker.engine.exchange import Exchange
from tandem_worker.engine.observed import Observed
from tandem_worker.engine.packed import Layer, PackedDrafter, PackedTarget, Shape
from tandem_worker.engine.pages import PAGE
from tandem_worker.engine.ranks import ALONE, Ranks
from tandem_worker.kernels.attention import Partials, attend
from tandem_worker.kernels.choice import COLUMNS, Best, largest
from tandem_worker.kernels.embed import embed, join_first, join_next
from tandem_worker.kernels.launch import cdiv
from tandem_worker.kernels.norm import add_norm, norm_slots
from tandem_worker.kernels.rope import rotate
from tandem_worker.kernels.tiling import Placing, Span, Tiling


class Space(NamedTuple):
    """What buffers are made for."""

    rows: int  # of a forward
    head_rows: int  # that go through a head at once
    pages: int
    positions: int  # with a rotary angle
    dtype: torch.dtype
    device: torch.device


class Cache(NamedTuple):
    keys: Tensor  # [layers, pages, Hk, PAGE, D]
    values: Tensor


class Block:
    """Buffers of one decoder stack and what happens inside a layer."""

    def __init__(self, shape: Shape, layers: int, vocab: int, space: Space, partials: Partials) -> None:
        self.shape, self.partials = shape, partials
        hidden, attended = shape.hidden, shape.heads * shape.head_dim

        def empty(*size: int, dtype: torch.dtype = space.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=space.device)

        self.residual, self.normed = empty(space.rows, hidden), empty(space.rows, hidden)
        self.q, self.attended = empty(space.rows, attended), empty(space.rows, attended)
        self.active = empty(space.rows, shape.intermediate)
        widest = max(hidden, attended + 2 * shape.kv_heads * shape.head_dim)
        self.sums = empty(2 * space.rows * widest, dtype=torch.float32)  # partials of products
        cache = (layers, space.pages, shape.kv_heads, PAGE, shape.head_dim)
        self.cache = Cache(empty(*cache), empty(*cache))
        self.logits = empty(space.head_rows, vocab)
        tiles = cdiv(vocab, COLUMNS)
        tokens = empty(space.head_rows, tiles, dtype=torch.int32)
        self.best = Best(empty(space.head_rows, tiles, dtype=torch.float32), tokens)
        cosines, sines = shape.rope(torch.arange(space.positions, device=space.device)[:, None], torch.float32)
        half = shape.head_dim // 2  # the other half is the same
        self.rotary = cosines[:, 0, 0, :half].contiguous(), sines[:, 0, 0, :half].contiguous()

    def qkv(self, index: int, layer: Layer, x: Tensor, rows: int, placing: Placing) -> None:
        """x [M, inputs] -> q, and keys and values in the cache."""
        count = layer.qkv(x, rows, self.sums)
        rotate(
            self.sums,
            count,
            self.q,
            self.cache.keys[index],
            self.cache.values[index],
            placing,
            self.rotary,
            rows,
            self.shape.kv_heads,
            bias=layer.bias,
            gains=layer.head_gains,
            eps=self.shape.eps,
        )

    def attend(self, index: int, placing: Placing, tiling: Tiling, span: Span | None = None) -> None:
        keys, values = self.cache.keys[index], self.cache.values[index]
        attend(self.q, keys, values, placing, tiling, self.partials, self.attended, self.shape.kv_heads, span=span)

    def mlp(self, layer: Layer, rows: int) -> int:
        """Of the normed rows; leaves partials."""
        layer.gate_up(self.normed, rows, self.active)
        return layer.down(self.active, rows, self.sums)


class TargetForward:
    def __init__(
        self,
        target: PackedTarget,
        capture: tuple[int, ...],
        space: Space,
        partials: Partials,
        ranks: Ranks = ALONE,
    ) -> None:
        self.target, self.capture, shape = target, capture, target.shape
        self.vocab, self.hidden = len(target.embedding), shape.hidden
        self.block = Block(shape, len(target.layers), target.head.outputs, space, partials)
        splits = max(linear.splits for layer in target.layers for linear in (layer.out, layer.down))
        self.exchange = Exchange(ranks, splits * space.rows * self.hidden, space.device)
        self.first = ranks.rank * target.head.outputs  # token that this rank's head begins with
        self.best = self.block.best  # of all tokens
        self.observed: Observed | None = None  # takes all streams of the next forwards; never while a graph is captured
        self.streams = torch.zeros(
            (space.rows, max(1, len(capture)) * shape.hidden), dtype=space.dtype, device=space.device
        )  # captured, side by side

    def __call__(
        self,
        tokens: Tensor,
        rows: int,
        placing: Placing,
        tiling: Tiling,
        *,
        capture: bool,
        lengths: Tensor | None = None,
        per_request: int = 0,
    ) -> None:
        """Leaves the final normed rows in `block.normed` and, with `capture`, the streams in `streams`.

        With `lengths`, positions are made from them (see `kernels.embed`).
        """
        target, block = self.target, self.block
        eps = target.shape.eps
        gains = [*(layer.input_gain for layer in target.layers[1:]), target.gain]
        embed(
            tokens,
            target.embedding,
            block.residual,
            target.layers[0].input_gain,
            eps,
            block.normed,
            rows,
            positions=placing.positions,
            lengths=lengths,
            per_request=per_request,
            stream=self._slot(0, capture),
        )
        self._observe(0, rows)
        for i, layer in enumerate(target.layers):
            block.qkv(i, layer, block.normed, rows, placing)
            block.attend(i, placing, tiling)
            count = layer.out(block.attended, rows, block.sums)
            sums, count = self.exchange.sums(block.sums, count, rows, self.hidden)
            add_norm(sums, count, block.residual, layer.mlp_gain, eps, block.normed, rows)
            count = block.mlp(layer, rows)
            sums, count = self.exchange.sums(block.sums, count, rows, self.hidden)
            stream = self._slot(i + 1, capture)
            add_norm(sums, count, block.residual, gains[i], eps, block.normed, rows, stream=stream)
            self._observe(i + 1, rows)

    def choose(self, normed: Tensor, rows: int) -> None:
        """Logits of `rows` normed rows, this rank's, and the best of every tile of all."""
        block = self.block
        self.target.head(normed, rows, block.logits)
        largest(block.logits, rows, block.best, self.first)
        self.best = self.exchange.best(block.best, rows)

    def logits(self, rows: int) -> Tensor:
        """Of all tokens, [rows, V]."""
        return self.exchange.logits(self.block.logits[:rows])

    def _observe(self, index: int, rows: int) -> None:
        if self.observed:
            self.observed.streams[index] = self.block.residual[:rows].clone()

    def _slot(self, index: int, capture: bool) -> Tensor | None:
        if not capture or index not in self.capture:
            return None
        slot = self.capture.index(index)
        return self.streams[:, slot * self.hidden : (slot + 1) * self.hidden]


class DrafterForward:
    def __init__(self, drafter: PackedDrafter, space: Space, partials: Partials) -> None:
        self.drafter, shape = drafter, drafter.shape
        self.block = Block(shape, 1, drafter.head.outputs, space, partials)
        self.joined = torch.zeros((space.rows, 2 * shape.hidden), dtype=space.dtype, device=space.device)
        self.hidden = torch.zeros((space.head_rows, shape.hidden), dtype=space.dtype, device=space.device)
        self.fed = torch.zeros_like(self.hidden) if drafter.norm_output else self.hidden  # what the next step gets

    def extend(self, streams: Tensor, following: Tensor, rows: int, placing: Placing) -> None:
        """Step 0 of M rows as far as keys and values: streams [M, ...], which norms before fc change, and the tokens
        that came next."""
        drafter, block = self.drafter, self.block
        for gains in drafter.stream_gains:
            norm_slots(streams, gains, drafter.shape.eps, rows)
        count = drafter.fc(streams, rows, block.sums)
        feature = block.residual
        join_first(
            following,
            drafter.embedding,
            block.sums,
            count,
            feature,
            drafter.gains,
            drafter.norm_first,
            drafter.shape.eps,
            self.joined,
            rows,
        )
        block.qkv(0, drafter.layer, self.joined, rows, placing)

    def first(self, last_rows: Tensor, batch: int, placing: Placing, tiling: Tiling) -> None:
        """The rest of step 0 for one row of each request; the best drafts are in `block.best`."""
        self.block.attend(0, placing, tiling)
        self._finish(batch, self.block.residual, last_rows)

    def next(
        self, step: int, batch: int, tokens: Tensor, result: Tensor, lengths: Tensor, placing: Placing, tiling: Tiling
    ) -> None:
        """Step > 0: takes the best drafts into tokens [B] and result [B], strided, and drafts the next."""
        drafter, block = self.drafter, self.block
        join_next(
            block.best,
            drafter.ids,
            tokens,
            result,
            lengths,
            placing.positions,
            step,
            drafter.embedding,
            self.fed,
            drafter.gains,
            drafter.norm_first,
            drafter.shape.eps,
            self.joined,
            batch,
        )
        block.qkv(0, drafter.layer, self.joined, batch, placing)
        block.attend(0, placing, tiling)
        self._finish(batch, self.fed, None)

    def _finish(self, batch: int, feature: Tensor, rows: Tensor | None) -> None:
        """From attended rows to logits."""
        drafter, block, eps = self.drafter, self.block, self.drafter.shape.eps
        layer = drafter.layer
        count = layer.out(block.attended, batch, block.sums)
        add_norm(
            block.sums,
            count,
            self.hidden,
            layer.mlp_gain,
            eps,
            block.normed,
            batch,
            source=feature,
            source_rows=rows,
        )
        count = block.mlp(layer, batch)
        normed = self.fed if drafter.norm_output else block.normed
        add_norm(block.sums, count, self.hidden, drafter.gain, eps, normed, batch)
        drafter.head(normed, batch, block.logits)
        largest(block.logits, batch, block.best)
