# mypy: allow-untyped-defs
"""Causal attention over the paged cache, for decoded rows, verified rows and chunks of prompts alike.

Idea. Query rows come in *tiles*: neighbouring rows of one request, times the G query heads that share a key head. A
tile's context is cut at fixed absolute positions, ATOM by ATOM. One reduction tree serves everybody: an atom is
computed from zero; GROUP / ATOM atoms are merged left to right into a group, also from zero; groups are merged left to
right. A program takes an atom, a group, or the whole context of its tile (`Span`); `_combine` merges what is left. Who
merges does not matter, because `_merge` is the same code everywhere, with its fused multiply-adds written out.

Shapes. q [M, Hq, D]; out [M, Hq, D], or [tiles, Hq, D] when COMPACT; caches [pages, Hk, PAGE, D]; tile_rows [tiles]
first row of each tile, tile_counts [tiles] its rows; positions and owners [M]; tables [owners, width]. Partials: maxima
and sums [tiles, Hk, splits, ROWS], values [..., ROWS, D], float32.

Cost. Keys and values are read once per tile: 4 Hk D bytes a position in bf16. Short contexts of few requests are a
matter of latency: about 5 us with the merge.

Bits. Positions that a row must not see are exact no-ops, so it does not matter which rows share its tile. The sums of
exponentials are products with ones, made by the matrix unit from the same rounded values as the output, and maxima do
not depend on order: so no layout, warp count or number of rows enters a sum.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem_worker.kernels.launch import cdiv, is_hopper, is_interpreted, launch, power_of_2
from tandem_worker.kernels.tiling import ATOM, GROUP, Span, Tiling, pace_for, span_for


@triton.jit
def _merge(m, total, values, m2, total2, values2):
    """Append one softmax partial to another."""
    top = tl.maximum(m, m2)
    a = tl.exp2(m - top)
    b = tl.exp2(m2 - top)
    return top, tl.fma(b, total2, total * a), tl.fma(b[:, None], values2, values * a[:, None])


@triton.jit(do_not_specialize=["WIDTH", "SPLITS"])
def _attend(
    q_ptr,
    k_ptr,
    v_ptr,
    position_ptr,
    owner_ptr,
    table_ptr,
    tile_row_ptr,
    tile_count_ptr,
    max_ptr,
    sum_ptr,
    value_ptr,
    out_ptr,
    scale,
    WIDTH,
    SPLITS,
    HK: tl.constexpr,
    G: tl.constexpr,
    G_PADDED: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    ATOM: tl.constexpr,
    GROUP: tl.constexpr,
    DIRECT: tl.constexpr,
    COMPACT: tl.constexpr,
    PAGE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (key head, split of the context, tile)."""
    h = tl.program_id(0)
    split = tl.program_id(1)
    tile = tl.program_id(2)
    if PDL:
        gdc_launch_dependents()
    count = tl.load(tile_count_ptr + tile)
    if COMPACT:  # a kernel chose the rows; else the host did, before any kernel was launched
        if PDL:
            gdc_wait()
        first = tl.load(tile_row_ptr + tile)
        owner = tl.load(owner_ptr + first)
    else:
        first = tl.load(tile_row_ptr + tile)
        owner = tl.load(owner_ptr + first)
        if PDL:
            gdc_wait()
    position = tl.load(position_ptr + first)
    keys = position + count  # seen by the tile's last row
    start = 0
    end = keys
    if SPAN == 1:
        start = split * ATOM
        end = tl.minimum(keys, start + ATOM)
    if SPAN == 2:
        start = split * GROUP
        end = tl.minimum(keys, start + GROUP)
    if start < end:
        r = tl.arange(0, ROWS)
        t = r // G_PADDED
        g = r % G_PADDED
        there = (t < count) & (g < G)
        limit = position + t + 1
        d = tl.arange(0, D)
        head = h * G + g
        q_at = ((first + t).to(tl.int64) * (HK * G) + head) * D
        q = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=there[:, None], other=0.0)
        ones = tl.full([ATOM, 16], 1.0, v_ptr.dtype.element_ty)
        all_max = tl.full([ROWS], -1.0e30, tl.float32)
        all_sum = tl.zeros([ROWS], tl.float32)
        all_values = tl.zeros([ROWS, D], tl.float32)
        for g0 in range(start, end, GROUP):
            group_max = tl.full([ROWS], -1.0e30, tl.float32)
            group_sum = tl.zeros([ROWS], tl.float32)
            group_values = tl.zeros([ROWS, D], tl.float32)
            for p0 in tl.range(g0, tl.minimum(g0 + GROUP, end), ATOM, num_stages=STAGES):
                p = p0 + tl.arange(0, ATOM)
                known = p < keys
                page = tl.load(table_ptr + owner * WIDTH + p // PAGE, mask=known, other=0).to(tl.int64)
                at = ((page * HK + h) * PAGE + p % PAGE) * D
                k = tl.load(k_ptr + at[None, :] + d[:, None], mask=known[None, :], other=0.0)
                v = tl.load(v_ptr + at[:, None] + d[None, :], mask=known[:, None], other=0.0)
                seen = p[None, :] < limit[:, None]
                scores = tl.where(seen, tl.dot(q, k) * scale, -1.0e30)
                atom_max = tl.max(scores, 1)
                weights = tl.where(seen, tl.exp2(scores - atom_max[:, None]), 0.0).to(v.dtype)
                atom_sum = tl.max(tl.dot(weights, ones), 1)  # all 16 columns are the same
                atom_values = tl.dot(weights, v)
                group_max, group_sum, group_values = _merge(
                    group_max, group_sum, group_values, atom_max, atom_sum, atom_values
                )
            if SPAN == 0:
                all_max, all_sum, all_values = _merge(all_max, all_sum, all_values, group_max, group_sum, group_values)
            else:
                all_max = group_max
                all_sum = group_sum
                all_values = group_values
        if DIRECT:
            out_at = q_at
            if COMPACT:
                out_at = (tile.to(tl.int64) * (HK * G) + head) * D
            out = all_values / all_sum[:, None]
            tl.store(out_ptr + out_at[:, None] + d[None, :], out.to(out_ptr.dtype.element_ty), mask=there[:, None])
        else:
            part = ((tile * HK + h) * SPLITS + split).to(tl.int64) * ROWS + r
            tl.store(max_ptr + part, all_max, mask=there)
            tl.store(sum_ptr + part, all_sum, mask=there)
            tl.store(value_ptr + part[:, None] * D + d[None, :], all_values, mask=there[:, None])


@triton.jit(do_not_specialize=["SPLITS", "TOKENS"])
def _combine(
    position_ptr,
    tile_row_ptr,
    tile_count_ptr,
    max_ptr,
    sum_ptr,
    value_ptr,
    out_ptr,
    SPLITS,
    TOKENS,
    HK: tl.constexpr,
    G: tl.constexpr,
    G_PADDED: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    POSITIONS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    COMPACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (key head, query row). Splits hold POSITIONS each; PER_GROUP of them make a group.

    TOKENS, the rows of a tile, is no constant: a prompt's length is one, and would be compiled for."""
    h = tl.program_id(0)
    tile = tl.program_id(1) // TOKENS
    t = tl.program_id(1) % TOKENS
    if PDL:
        gdc_launch_dependents()
    count = tl.load(tile_count_ptr + tile)
    if COMPACT:
        if PDL:
            gdc_wait()
        first = tl.load(tile_row_ptr + tile)
    else:
        first = tl.load(tile_row_ptr + tile)
        if PDL:
            gdc_wait()
    if t < count:
        # a row that nobody reads may stand behind what the launch was made for
        splits = tl.minimum(tl.cdiv(tl.load(position_ptr + first) + t + 1, POSITIONS), SPLITS)
        d = tl.arange(0, D)
        g = tl.arange(0, G_PADDED)
        base = ((tile * HK + h) * SPLITS).to(tl.int64) * ROWS + t * G_PADDED + g
        all_max = tl.full([G_PADDED], -1.0e30, tl.float32)
        all_sum = tl.zeros([G_PADDED], tl.float32)
        all_values = tl.zeros([G_PADDED, D], tl.float32)
        for s0 in range(0, splits, PER_GROUP):
            group_max = tl.full([G_PADDED], -1.0e30, tl.float32)
            group_sum = tl.zeros([G_PADDED], tl.float32)
            group_values = tl.zeros([G_PADDED, D], tl.float32)
            for j in tl.static_range(PER_GROUP):
                s = s0 + j
                there = (g < G) & (s + 0 * g < splits)
                part = base + s * ROWS
                part_max = tl.load(max_ptr + part, mask=there, other=-1.0e30)
                part_sum = tl.load(sum_ptr + part, mask=there, other=0.0)
                part_values = tl.load(value_ptr + part[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
                group_max, group_sum, group_values = _merge(
                    group_max, group_sum, group_values, part_max, part_sum, part_values
                )
            all_max, all_sum, all_values = _merge(all_max, all_sum, all_values, group_max, group_sum, group_values)
        row = first + t
        if COMPACT:
            row = tile
        out_at = (row.to(tl.int64) * (HK * G) + h * G + g[:, None]) * D + d[None, :]
        out = all_values / all_sum[:, None]
        tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=g[:, None] < G)


class Partials:
    """Room for what `_combine` merges. It grows on demand; what was outgrown is kept, for graphs that write to it."""

    def __init__(self, device: torch.device) -> None:
        self._held = [torch.empty(0, dtype=torch.float32, device=device)]

    def views(self, parts: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """maxima [parts], sums [parts], values [parts, D]"""
        wanted, held = parts * (head_dim + 2), self._held[-1]
        if held.numel() < wanted:
            held = held.new_empty(2 * wanted)
            self._held.append(held)
        return held[:parts], held[parts : 2 * parts], held[2 * parts : wanted]


@cache
def has_hopper_form() -> bool:
    """With Triton 3.9 the compiler spills in it, and nobody has compared its bits."""
    return is_hopper() and not is_interpreted() and triton.__version__.startswith("3.6.")


def suits_hopper_form(span: Span, tiling: Tiling, group: int, keys: Tensor) -> bool:
    """Whether `attention_hopper` was measured for it: whole contexts of prompts, in the shape of Llama-3.1-8B."""
    full = tiling.tokens * group == 128 and tiling.filled and not tiling.compact
    return full and span is Span.ALL and group == 4 and keys.shape[-2:] == (64, 128) and keys.dtype is torch.bfloat16


def attend(q, keys, values, placing, tiling, partials, out, kv_heads, *, span=None, warps=0, stages=0) -> None:
    """q, out: [rows, Hq * D] buffers. keys, values: one layer's cache."""
    page, head_dim = keys.shape[-2:]
    group = q.shape[-1] // head_dim // kv_heads
    padded = power_of_2(group)
    span = span_for(tiling.tiles, tiling.context) if span is None else span
    if has_hopper_form() and suits_hopper_form(span, tiling, group, keys):
        from tandem_worker.kernels.attention_hopper import attend_prompts  # not for the interpreter

        attend_prompts(q, keys, values, placing, tiling, out, kv_heads)
        return
    size = {Span.ALL: tiling.context, Span.ATOM: ATOM, Span.GROUP: GROUP}[span]
    splits = cdiv(tiling.context, size)
    direct = splits == 1
    rows = max(16, power_of_2(tiling.tokens * padded))
    best = pace_for(span, rows, tiling.tiles)
    parts = 1 if direct else tiling.tiles * kv_heads * splits * rows
    room = partials.views(parts, head_dim)
    shape = {"HK": kv_heads, "G": group, "G_PADDED": padded, "D": head_dim, "ROWS": rows, "COMPACT": tiling.compact}
    launch(
        _attend,
        (kv_heads, splits, tiling.tiles),
        q,
        keys,
        values,
        placing.positions,
        placing.owners,
        placing.tables,
        tiling.rows,
        tiling.counts,
        *room,
        out,
        math.log2(math.e) * head_dim**-0.5,
        placing.tables.shape[1],
        splits,
        warps=warps or best.warps,
        SPAN=int(span),
        DIRECT=direct,
        PAGE=page,
        STAGES=stages or best.stages,
        ATOM=ATOM,
        GROUP=GROUP,
        **shape,
    )
    if not direct:
        launch(
            _combine,
            (kv_heads, tiling.tiles * tiling.tokens),
            placing.positions,
            tiling.rows,
            tiling.counts,
            *room,
            out,
            splits,
            tiling.tokens,
            warps=4,
            POSITIONS=size,
            PER_GROUP=GROUP // ATOM if span is Span.ATOM else 1,
            **shape,
        )
