# mypy: allow-untyped-defs
"""The attention of `attention` over prompts' chunks, in Gluon, for Hopper.

Idea. A program stays on its multiprocessor and takes one tile of 128 query rows after the other, the longest contexts
first, back and forth over the programs so that each gets long ones and short ones. One warp requests queries, keys and
values through the copy engine, up to two atoms ahead. Two groups of four warps take 64 rows each and share what it
brings: while one multiplies, the other takes exponentials. Triton's own pipeline has all warps of a program wait for
the same products.

Shapes as in `attention`, with D 128, pages of 64 and G a power of 2. A tile has TILE_ROWS / G tokens, fewer at the end
of a request, and at least one: of an empty tile nobody would say that its queries have been read, and the next one
would wait for ever. Nothing is split (Span.ALL). Tiles are best in the order of their contexts, the shortest first, as
a prompt's are; another order costs time only.

Cost. A layer of a prompt of 2048 tokens in the shape of Llama-3.1-8B takes 0.084 ms on one H200, as SDPA does;
`attention` takes 0.162. 180 KB of shared memory: one program on a multiprocessor.

Bits. Those of `attention`: atoms start from zero at the same positions, merges are `_merge` written out and come in the
same order, sums of exponentials are products with ones. D is cut into halves: of the output they are columns, and of q
and k the first half's products are added up first, as there. What a row must not see is an exact no-op. The compiler
fuses nothing but the multiply-adds that are written out (`enable_fp_fusion`): where an atom needs no mask it could fuse
scale and shift.

Behind the tile's last key, positions of its last atom hold what the request's page held before, or rows of the
request's next tile. Scores are masked there and weights are exact zeros, so values only have to be numbers, and `rope`
writes no others.
"""

import math

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem_worker.kernels import tiling as tiles
from tandem_worker.kernels.hopper import request, reshaped
from tandem_worker.kernels.launch import descriptor, launch

ATOM = gl.constexpr(tiles.ATOM)
GROUP = gl.constexpr(tiles.GROUP)
D, PAGE = gl.constexpr(128), gl.constexpr(64)
ROWS = gl.constexpr(64)  # of a tile that four warps take
HALF = gl.constexpr(64)  # of D: columns that the copy engine lays out in one piece
STAGES = gl.constexpr(2)
NEVER = gl.constexpr(-1.0e30)
UPPER, LOWER = gl.constexpr(0), gl.constexpr(1)


@gluon.jit
def _turns(items):
    """How many of so many items this program takes."""
    size = gl.num_programs(0)
    full = items // size
    place = gl.program_id(0)
    if full % 2 == 1:
        place = size - 1 - place
    if place < items - full * size:
        full += 1
    return full


@gluon.jit
def _item(turn):
    """Every other time the programs' order is reversed."""
    size = gl.num_programs(0)
    place = gl.program_id(0)
    if turn % 2 == 1:
        place = size - 1 - place
    return turn * size + place


@gluon.jit
def _request_atom(desc, at0, at1, bar, free, phase, slots, stage):
    """Two pages of keys or values, once both readers are done with what was there."""
    mbarrier.wait(free.index(stage), phase ^ 1)
    mbarrier.expect(bar.index(stage), ATOM * D * 2)
    for half in gl.static_range(2):
        slot = (stage * 2 + half) * 2
        request(desc, [at0, half * HALF], bar.index(stage), slots.index(slot))
        request(desc, [at1, half * HALF], bar.index(stage), slots.index(slot + 1))


@gluon.jit
def _produce(descs, rows, tables, slots, bars, WIDTH, tiles, HK: gl.constexpr, G: gl.constexpr):
    q_desc, k_desc, v_desc = descs
    position_ptr, tile_row_ptr, tile_count_ptr = rows
    owner_ptr, table_ptr = tables
    q_slots, k_slots, v_slots = slots
    q_full, q_free, k_full, k_free, v_full, v_free = bars
    n = 0
    for turn in range(_turns(tiles * HK)):
        item = _item(turn)
        tile = tiles - 1 - item // HK
        h = item % HK
        first = gl.load(tile_row_ptr + tile)
        owner = gl.load(owner_ptr + first)
        keys = gl.load(position_ptr + first) + gl.load(tile_count_ptr + tile)
        for w in gl.static_range(2):
            mbarrier.wait(q_free.index(w), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(w), ROWS * D * 2)
            request(q_desc, [first + w * (ROWS // G), h * G, 0], q_full.index(w), q_slots.index(w))
        for p0 in range(0, keys, ATOM):
            stage = n % STAGES
            phase = (n // STAGES) & 1
            table = table_ptr + owner * WIDTH + p0 // PAGE
            page0 = gl.load(table)
            page1 = page0  # behind the tile's keys any numbers will do
            if p0 + PAGE < keys:
                page1 = gl.load(table + 1)
            at0 = (page0 * HK + h) * PAGE
            at1 = (page1 * HK + h) * PAGE
            _request_atom(k_desc, at0, at1, k_full, k_free, phase, k_slots, stage)
            _request_atom(v_desc, at0, at1, v_full, v_free, phase, v_slots, stage)
            n += 1


@gluon.jit
def _consume(w: gl.constexpr, rows, out_ptr, scale, memory, ones, bars, tiles, HK: gl.constexpr, G: gl.constexpr):
    """Rows w * ROWS to (w + 1) * ROWS of every tile."""
    position_ptr, tile_row_ptr, tile_count_ptr = rows
    q_memory, k_memory, v_memory = memory
    q_full, q_free, k_full, k_free, v_full, v_free = bars
    score: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    value: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 16, 16])
    row_s: gl.constexpr = gl.SliceLayout(1, score)
    row_v: gl.constexpr = gl.SliceLayout(1, value)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    start: gl.constexpr = w * (ROWS // G)
    n = 0
    for turn in range(_turns(tiles * HK)):
        item = _item(turn)
        tile = tiles - 1 - item // HK
        h = item % HK
        first = gl.load(tile_row_ptr + tile)
        tokens = gl.load(tile_count_ptr + tile)
        position = gl.load(position_ptr + first)
        keys = position + tokens
        limit = position + start + gl.arange(0, ROWS, row_s) // G + 1
        all_max = gl.full([ROWS], NEVER, gl.float32, row_v)
        all_sum = gl.full([ROWS], 0.0, gl.float32, row_v)
        all0 = gl.full([ROWS, HALF], 0.0, gl.float32, value)
        all1 = gl.full([ROWS, HALF], 0.0, gl.float32, value)
        mbarrier.wait(q_full.index(w), turn & 1)
        for g0 in range(0, keys, GROUP):
            group_max = gl.full([ROWS], NEVER, gl.float32, row_v)
            group_sum = gl.full([ROWS], 0.0, gl.float32, row_v)
            group0 = gl.full([ROWS, HALF], 0.0, gl.float32, value)
            group1 = gl.full([ROWS, HALF], 0.0, gl.float32, value)
            for p0 in range(g0, min(g0 + GROUP, keys), ATOM):
                stage = n % STAGES
                phase = (n // STAGES) & 1
                n += 1
                mbarrier.wait(k_full.index(stage), phase)
                zeros = gl.full([ROWS, ATOM], 0.0, gl.float32, score)
                k0 = k_memory.index(stage * 2).permute((1, 0))
                k1 = k_memory.index(stage * 2 + 1).permute((1, 0))
                s = warpgroup_mma(q_memory.index(w * 2), k0, zeros, use_acc=False, is_async=True)
                s = warpgroup_mma(q_memory.index(w * 2 + 1), k1, s, is_async=True)
                s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
                mbarrier.arrive(k_free.index(stage))
                if p0 + ATOM >= keys:
                    mbarrier.arrive(q_free.index(w))
                s = s * scale
                if p0 + ATOM > position + start + 1:  # else every row sees the whole atom
                    p = p0 + gl.arange(0, ATOM, gl.SliceLayout(0, score))
                    s = gl.where(p[None, :] < limit[:, None], s, NEVER)
                atom_max = gl.max(s, 1)
                shift = gl.where(atom_max > NEVER, atom_max, 0.0)  # of a row that sees nothing, exponentials are 0
                weights = gl.exp2(s - shift[:, None]).to(gl.bfloat16)
                a = gl.convert_layout(weights, gl.DotOperandLayout(0, value, 2))
                a_sum = gl.convert_layout(weights, gl.DotOperandLayout(0, summed, 2))
                mbarrier.wait(v_full.index(stage), phase)
                zero_sum = gl.full([ROWS, 16], 0.0, gl.float32, summed)
                zero = gl.full([ROWS, HALF], 0.0, gl.float32, value)
                sums = warpgroup_mma(a_sum, ones, zero_sum, use_acc=False, is_async=True)
                x0 = warpgroup_mma(a, v_memory.index(stage * 2), zero, use_acc=False, is_async=True)
                x1 = warpgroup_mma(a, v_memory.index(stage * 2 + 1), zero, use_acc=False, is_async=True)
                sums, x0 = warpgroup_mma_wait(num_outstanding=1, deps=(sums, x0))
                atom_sum = gl.convert_layout(gl.max(sums, 1), row_v)  # all 16 columns are the same
                m = gl.convert_layout(atom_max, row_v)
                top = gl.maximum(group_max, m)
                old = gl.exp2(group_max - top)
                new = gl.exp2(m - top)
                group_max = top
                group_sum = gl.fma(new, atom_sum, group_sum * old)
                group0 = gl.fma(new[:, None], x0, group0 * old[:, None])
                x1, a = warpgroup_mma_wait(num_outstanding=0, deps=(x1, a))
                mbarrier.arrive(v_free.index(stage))
                group1 = gl.fma(new[:, None], x1, group1 * old[:, None])
            top = gl.maximum(all_max, group_max)
            old = gl.exp2(all_max - top)
            new = gl.exp2(group_max - top)
            all_max = top
            all_sum = gl.fma(new, group_sum, all_sum * old)
            all0 = gl.fma(new[:, None], group0, all0 * old[:, None])
            all1 = gl.fma(new[:, None], group1, all1 * old[:, None])
        r = gl.arange(0, ROWS, gl.SliceLayout(1, wide))
        t = start + r // G
        at = ((first + t).to(gl.int64) * (HK * G) + h * G + r % G) * D
        c = gl.arange(0, HALF, gl.SliceLayout(0, wide))
        there = (t < tokens)[:, None]
        out0 = gl.convert_layout((all0 / all_sum[:, None]).to(gl.bfloat16), wide)
        gl.store(out_ptr + at[:, None] + c[None, :], out0, mask=there)
        out1 = gl.convert_layout((all1 / all_sum[:, None]).to(gl.bfloat16), wide)
        gl.store(out_ptr + at[:, None] + HALF + c[None, :], out1, mask=there)


@gluon.jit
def _barriers(COUNT: gl.constexpr):
    return gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())


@gluon.jit(
    do_not_specialize=["WIDTH", "tiles"],
    do_not_specialize_on_alignment=["position_ptr", "owner_ptr", "table_ptr", "tile_row_ptr", "tile_count_ptr"],
)
def attend_hopper(
    q_desc,  # [M, Hq, D], block [ROWS / G, G, D]
    k_desc,  # [pages * Hk * PAGE, D], block [PAGE, HALF]
    v_desc,
    position_ptr,
    owner_ptr,
    table_ptr,
    tile_row_ptr,
    tile_count_ptr,
    out_ptr,
    scale,
    WIDTH,
    tiles,
    HK: gl.constexpr,
    G: gl.constexpr,
    PDL: gl.constexpr,
    num_warps: gl.constexpr,
):
    """One program on every multiprocessor. What is requested is laid out page by page and read atom by atom."""
    q_slots = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS // G, G, D], q_desc.layout)
    k_slots = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 4, PAGE, HALF], k_desc.layout)
    v_slots = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 4, PAGE, HALF], v_desc.layout)
    q_memory = reshaped(q_slots, [4, ROWS, HALF], k_slots)
    k_memory = reshaped(k_slots, [STAGES * 2, ATOM, HALF], k_slots)
    v_memory = reshaped(v_slots, [STAGES * 2, ATOM, HALF], k_slots)
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    ones_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ATOM, 16], gl.bfloat16)
    ones = gl.allocate_shared_memory(gl.bfloat16, [ATOM, 16], ones_layout, gl.full([ATOM, 16], 1.0, gl.bfloat16, flat))
    q_full, q_free = _barriers(2), _barriers(2)
    k_full, k_free = _barriers(STAGES), _barriers(STAGES)
    v_full, v_free = _barriers(STAGES), _barriers(STAGES)
    for w in gl.static_range(2):
        mbarrier.init(q_full.index(w), count=1)
        mbarrier.init(q_free.index(w), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_free.index(stage), count=2)
    fence_async_shared()
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    rows = (position_ptr, tile_row_ptr, tile_count_ptr)
    memory = (q_memory, k_memory, v_memory)
    descs = (q_desc, k_desc, v_desc)
    slots = (q_slots, k_slots, v_slots)
    bars = (q_full, q_free, k_full, k_free, v_full, v_free)
    gl.warp_specialize(
        [
            (_consume, (UPPER, rows, out_ptr, scale, memory, ones, bars, tiles, HK, G)),
            (_consume, (LOWER, rows, out_ptr, scale, memory, ones, bars, tiles, HK, G)),
            (_produce, (descs, rows, (owner_ptr, table_ptr), slots, bars, WIDTH, tiles, HK, G)),
        ],
        [4, 1],
        [240, 24],
    )


def attend_prompts(q, keys, values, placing, tiling, out, kv_heads) -> None:
    """As `attention.attend`, for what `suits_hopper_form`."""
    head_dim = keys.shape[-1]
    heads = q.shape[-1] // head_dim
    group = heads // kv_heads
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    launch(
        attend_hopper,
        (min(processors, tiling.tiles * kv_heads),),
        descriptor(q.view(-1, heads, head_dim), [ROWS.value // group, group, head_dim], gluon=True),
        descriptor(keys.view(-1, head_dim), [PAGE.value, HALF.value], gluon=True),
        descriptor(values.view(-1, head_dim), [PAGE.value, HALF.value], gluon=True),
        placing.positions,
        placing.owners,
        placing.tables,
        tiling.rows,
        tiling.counts,
        out,
        math.log2(math.e) * head_dim**-0.5,
        placing.tables.shape[1],
        tiling.tiles,
        warps=4,
        HK=kv_heads,
        G=group,
        enable_fp_fusion=False,
    )
