# mypy: allow-untyped-defs
"""The product of `gemm`, in Gluon, for Hopper and up to 192 rows.

Idea. The weight tiles of all pipeline stages are requested *before* the wait for the kernel that makes x. While a norm,
a rotation or attention runs, up to 26 MB of weights already stream into shared memory. Triton's own pipeliner can not
do that: it loads x and W in one loop. A whole decode step gains 3 %.

Shapes, cost and bits as in `gemm`: the same chains, made by the same instruction.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem_worker.kernels.hopper import request


@gluon.jit
def _request_w(w_desc, n0, N, k, bar, w, up, GATED: gl.constexpr, pred):
    request(w_desc, [n0, k], bar, w, pred=pred)
    if GATED:
        request(w_desc, [n0 + N, k], bar, up, pred=pred)


@gluon.jit
def _request_x(x_desc, tail_desc, m0, k, bar, x, tail, TILE_M: gl.constexpr, TAIL_M: gl.constexpr, pred):
    request(x_desc, [m0, k], bar, x, pred=pred)
    if TAIL_M > 0:
        request(tail_desc, [m0 + TILE_M, k], bar, tail, pred=pred)


@gluon.jit
def _store(
    y_ptr,
    acc,
    acc_up,
    n0,
    m0,
    split,
    M,
    N,
    TILE_N: gl.constexpr,
    TILE_M: gl.constexpr,
    GATED: gl.constexpr,
    mma: gl.constexpr,
):
    rows_n = n0 + gl.arange(0, TILE_N, gl.SliceLayout(1, mma))
    rows_m = m0 + gl.arange(0, TILE_M, gl.SliceLayout(0, mma))
    if GATED:
        gate = acc.to(y_ptr.dtype.element_ty).to(gl.float32)
        up = acc_up.to(y_ptr.dtype.element_ty).to(gl.float32)
        acc = gate / (1.0 + gl.exp(-gate)) * up
    m = rows_m[None, :].to(gl.int64)
    mask = (rows_m[None, :] < M) & (rows_n[:, None] < N)
    gl.store(y_ptr + (split * M + m) * N + rows_n[:, None], acc.to(y_ptr.dtype.element_ty), mask=mask)


@gluon.jit(do_not_specialize=["M"])
def gemm_hopper(
    w_desc,
    x_desc,
    tail_desc,
    y_ptr,
    M,
    N,
    K_SPLIT,
    TILE_N: gl.constexpr,
    TILE_M: gl.constexpr,
    TAIL_M: gl.constexpr,
    TILE_K: gl.constexpr,
    STAGES: gl.constexpr,
    GATED: gl.constexpr,
    LAG: gl.constexpr,
    PDL: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Program (tile of M, tile of N, K split); K_SPLIT is a multiple of TILE_K and holds at least STAGES tiles.

    LAG 0: a tile's products are waited for before its buffer is filled again, which suits few rows. LAG 1: the buffer
    of the tile before is filled again while this tile's products run.
    """
    m0 = gl.program_id(0) * (TILE_M + TAIL_M)
    n0 = gl.program_id(1) * TILE_N
    split = gl.program_id(2)
    k0 = split * K_SPLIT
    tiles = K_SPLIT // TILE_K
    w_buffer = gl.allocate_shared_memory(w_desc.dtype, [STAGES, TILE_N, TILE_K], w_desc.layout)
    up_buffer = w_buffer
    if GATED:
        up_buffer = gl.allocate_shared_memory(w_desc.dtype, [STAGES, TILE_N, TILE_K], w_desc.layout)
    x_buffer = gl.allocate_shared_memory(w_desc.dtype, [STAGES, TILE_M, TILE_K], x_desc.layout)
    tail_buffer = x_buffer
    if TAIL_M > 0:
        tail_buffer = gl.allocate_shared_memory(w_desc.dtype, [STAGES, TAIL_M, TILE_K], tail_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    BYTES: gl.constexpr = (TILE_N * (2 if GATED else 1) + TILE_M + TAIL_M) * TILE_K * 2
    if PDL:
        gdc_launch_dependents()
    for i in gl.static_range(STAGES):
        mbarrier.expect(bars.index(i), BYTES)
        _request_w(w_desc, n0, N, k0 + i * TILE_K, bars.index(i), w_buffer.index(i), up_buffer.index(i), GATED, True)
    if PDL:
        gdc_wait()
    for i in gl.static_range(STAGES):
        k = k0 + i * TILE_K
        _request_x(
            x_desc, tail_desc, m0, k, bars.index(i), x_buffer.index(i), tail_buffer.index(i), TILE_M, TAIL_M, True
        )
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, TILE_M, 16]
    )
    mma_tail: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, TAIL_M if TAIL_M > 0 else TILE_M, 16]
    )
    acc = gl.zeros([TILE_N, TILE_M], gl.float32, mma)
    acc_up = acc
    tail = acc
    tail_up = acc
    if GATED:
        acc_up = gl.zeros([TILE_N, TILE_M], gl.float32, mma)
    if TAIL_M > 0:
        tail = gl.zeros([TILE_N, TAIL_M], gl.float32, mma_tail)
        if GATED:
            tail_up = gl.zeros([TILE_N, TAIL_M], gl.float32, mma_tail)
    RUNNING: gl.constexpr = LAG * (2 if GATED else 1) * (2 if TAIL_M > 0 else 1)  # products that may still run
    slot = 0
    phase = 0
    last = 0
    for tile in range(tiles):
        mbarrier.wait(bars.index(slot), phase)
        x = x_buffer.index(slot).permute((1, 0))
        acc = warpgroup_mma(w_buffer.index(slot), x, acc, is_async=True)
        if GATED:
            acc_up = warpgroup_mma(up_buffer.index(slot), x, acc_up, is_async=True)
        if TAIL_M > 0:
            x_tail = tail_buffer.index(slot).permute((1, 0))
            tail = warpgroup_mma(w_buffer.index(slot), x_tail, tail, is_async=True)
            if GATED:
                tail_up = warpgroup_mma(up_buffer.index(slot), x_tail, tail_up, is_async=True)
        if GATED and TAIL_M > 0:
            acc, acc_up, tail, tail_up = warpgroup_mma_wait(num_outstanding=RUNNING, deps=(acc, acc_up, tail, tail_up))
        elif GATED:
            acc, acc_up = warpgroup_mma_wait(num_outstanding=RUNNING, deps=(acc, acc_up))
        elif TAIL_M > 0:
            acc, tail = warpgroup_mma_wait(num_outstanding=RUNNING, deps=(acc, tail))
        else:
            acc = warpgroup_mma_wait(num_outstanding=RUNNING, deps=(acc,))
        free = slot
        if LAG == 1:
            free = last
        ahead = tile - LAG + STAGES
        more = (ahead < tiles) & (tile >= LAG)
        k = k0 + ahead * TILE_K
        bar = bars.index(free)
        mbarrier.expect(bar, BYTES, pred=more)
        _request_w(w_desc, n0, N, k, bar, w_buffer.index(free), up_buffer.index(free), GATED, more)
        _request_x(x_desc, tail_desc, m0, k, bar, x_buffer.index(free), tail_buffer.index(free), TILE_M, TAIL_M, more)
        last = slot
        slot += 1
        if slot == STAGES:
            slot = 0
            phase ^= 1
    if GATED and TAIL_M > 0:
        acc, acc_up, tail, tail_up = warpgroup_mma_wait(num_outstanding=0, deps=(acc, acc_up, tail, tail_up))
    elif GATED:
        acc, acc_up = warpgroup_mma_wait(num_outstanding=0, deps=(acc, acc_up))
    elif TAIL_M > 0:
        acc, tail = warpgroup_mma_wait(num_outstanding=0, deps=(acc, tail))
    else:
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(bars.index(i))
    _store(y_ptr, acc, acc_up, n0, m0, split, M, N, TILE_N, TILE_M, GATED, mma)
    if TAIL_M > 0:
        _store(y_ptr, tail, tail_up, n0, m0 + TILE_M, split, M, N, TILE_N, TAIL_M, GATED, mma_tail)
