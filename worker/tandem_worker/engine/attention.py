"""Attention over a paged cache, in plain torch with static shapes.

A request's context is cut at fixed absolute positions into pages. Scores, exponentials and weighted values are computed
page by page with one shape, and the pages' parts are added left to right. Pages behind a row's position contribute
exact zeros, so it does not matter how many pages the longest neighbour in the batch brings along: a row's bits depend
on its own context only.

Shapes: N tiles, R rows, A pages of a tile, P pages of the cache, Hq query heads, Hk key and value heads, G = Hq / Hk,
D head size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tandem_worker.engine.pages import PAGE

LOG2_E = math.log2(math.e)
"""Exponentials are taken to base 2: torch's exp on CPU is up to 20 times slower where its argument is -inf."""


class Cache:
    """Keys and values of every layer, [layers][P * Hk, PAGE, D], one piece of memory each."""

    def __init__(
        self, layers: int, pages: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, pages * kv_heads, PAGE, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self._heads = torch.arange(kv_heads, device=device)
        self._positions = torch.arange(pages * PAGE, device=device).view(-1, 1, PAGE)  # of keys, by page of a request
        self._zero = torch.zeros((), dtype=dtype, device=device)
        self._never = torch.full((), -math.inf, dtype=dtype, device=device)

    def attention(self, positions: Tensor, places: Tensor, tables: Tensor) -> PagedAttention:
        """positions and places [N, R], tables [N, A], as in `tiles`."""
        page, offset = places.view(-1, 1) // PAGE, places.view(-1, 1) % PAGE
        rows = ((page * self.kv_heads + self._heads) * PAGE + offset).flatten()  # [N * R * Hk]
        blocks = (tables[..., None] * self.kv_heads + self._heads).flatten()  # [N * A * Hk]
        ahead = self._positions[: tables.shape[1]] > positions[:, None, :, None]  # [N, A, R, PAGE]
        mask = torch.where(ahead, self._never, self._zero)
        return PagedAttention(self, rows, blocks, mask[:, :, None, None])


class PagedAttention:
    """Attention of one forward: writes the new rows, then reads."""

    def __init__(self, cache: Cache, rows: Tensor, blocks: Tensor, mask: Tensor) -> None:
        self.cache, self.rows, self.blocks = cache, rows, blocks
        self.mask = mask  # [N, A, 1, 1, R, PAGE]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, R, Hq, D], k and v [N, R, Hk, D] -> [N, R, Hq, D]."""
        n, r, _, d = q.shape
        a, hk = self.mask.shape[1], self.cache.kv_heads
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys.view(-1, d).index_copy_(0, self.rows, k.reshape(-1, d))
        values.view(-1, d).index_copy_(0, self.rows, v.reshape(-1, d))

        q = q.view(n, r, hk, -1, d).permute(0, 2, 3, 1, 4).reshape(n, 1, hk, -1, d)  # rows of a group: G * R
        q = q.expand(-1, a, -1, -1, -1).reshape(n * a * hk, -1, d)
        scores = torch.bmm(q, keys.index_select(0, self.blocks).transpose(1, 2)).view(n, a, hk, -1, r, PAGE)
        scores = torch.add(self.mask, scores, alpha=d**-0.5 * LOG2_E)
        weights = scores.sub_(scores.amax((1, 5), keepdim=True)).exp2_().view(n * a * hk, -1, PAGE)
        y = torch.bmm(weights, values.index_select(0, self.blocks)).view(n, a, hk, -1, d)
        total = weights.sum(-1, keepdim=True).view(n, a, hk, -1, 1)
        y = left_to_right(y) / left_to_right(total)  # [N, Hk, G * R, D]
        return y.view(n, hk, -1, r, d).permute(0, 3, 1, 2, 4).reshape(n, r, -1, d)


def left_to_right(parts: Tensor) -> Tensor:
    """Sum over the pages in a fixed order. parts [N, A, ...] -> [N, ...]."""
    first, *rest = parts.unbind(1)
    for part in rest:
        first = first + part
    return first
