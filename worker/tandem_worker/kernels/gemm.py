# mypy: allow-untyped-defs
"""y = x W^T in Triton, with the weights on the left.

Idea. The product is computed transposed, W x^T: the weight's rows fill the 64-row side of wgmma, and the batch, which
is small in decoding, is its free side (16 to 256). Weights are read once, and little is padded.

Shapes. W [N, K], x [M, K]; y [splits, M, N] float32 partials for the consumer to add in index order, or [M, N] in x's
type. GATED: W holds gate above up, N = 2 I, and y = silu(gate) * up is [M, I].

Weights of 8 bits (FP8, INT8) come with a scale for every row and block of SCALE_K columns. A tile of them becomes, in
registers, the very tile that a bfloat16 copy of the matrix would hold: value times scale in float32, rounded once. So
the result's bits are those of that copy, and everything said here of bits holds.

Cost. Decoding reads N K weights once: 2 N K bytes (8 bits: N K, and 4 N for each block of columns) at 4.45 TB/s is the
floor. Programs run along M first, so that a prompt's many tiles of rows share a tile of weights while it is in L2.

Bits. Every output is one ascending chain over k per K split, from zero, in float32. Splits have fixed borders per
weight, whatever M is. TILE sizes, stages, warps and the tail do not enter the chain, and neither does who computes a
split: with SPLITS = 2 one program computes both, each from zero, and stores their sum, which is what two programs and
their consumer would make of it.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _weights(w_desc, scale_ptr, n, k, ROWS, TILE_N: tl.constexpr, SCALE_K: tl.constexpr, dtype: tl.constexpr):
    """W [n : n + TILE_N, k : k + TILE_K] of ROWS rows, in `dtype`. A tile lies within one block of SCALE_K columns."""
    w = w_desc.load([n, k])
    if SCALE_K > 0:
        rows = n + tl.arange(0, TILE_N)
        scale = tl.load(scale_ptr + (k // SCALE_K) * ROWS + rows, mask=rows < ROWS, other=0.0)
        w = (w.to(tl.float32) * scale[:, None]).to(dtype)
    return w


@triton.jit
def _gated(gate, up, dtype: tl.constexpr):
    """silu(gate) * up, both rounded as if they had been stored."""
    gate = gate.to(dtype).to(tl.float32)
    up = up.to(dtype).to(tl.float32)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _store(y_ptr, y, rows_n, rows_m, split, M, N):
    m = rows_m[None, :].to(tl.int64)
    mask = (rows_m[None, :] < M) & (rows_n[:, None] < N)
    tl.store(y_ptr + (split * M + m) * N + rows_n[:, None], y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["M"])
def gemm(
    w_desc,
    x_desc,
    tail_desc,
    y_ptr,
    M,
    N,
    K_SPLIT,
    scale_ptr,
    TILE_N: tl.constexpr,
    TILE_M: tl.constexpr,
    TAIL_M: tl.constexpr,
    TILE_K: tl.constexpr,
    GATED: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    SCALE_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tile of M, tile of N, K split). N is the number of outputs. TAIL_M: a second tile of rows beside the
    first, because 192 = 128 + 64 and Triton's tiles are powers of 2. SCALE_K 0: W is in x's type, without scales."""
    rows_w = N
    if GATED:
        rows_w = 2 * N
    m0 = tl.program_id(0) * (TILE_M + TAIL_M)
    n0 = tl.program_id(1) * TILE_N
    split = tl.program_id(2)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    k0 = split * SPLITS * K_SPLIT
    acc = tl.zeros([TILE_N, TILE_M], tl.float32)
    if GATED:
        acc_up = tl.zeros([TILE_N, TILE_M], tl.float32)
    if TAIL_M > 0:
        tail = tl.zeros([TILE_N, TAIL_M], tl.float32)
        if GATED:
            tail_up = tl.zeros([TILE_N, TAIL_M], tl.float32)
    for part in tl.static_range(SPLITS):
        if part > 0:
            first = acc
            acc = tl.zeros([TILE_N, TILE_M], tl.float32)
            if TAIL_M > 0:
                first_tail = tail
                tail = tl.zeros([TILE_N, TAIL_M], tl.float32)
            k0 += K_SPLIT
        for k in tl.range(k0, k0 + K_SPLIT, TILE_K, num_stages=STAGES):
            w = _weights(w_desc, scale_ptr, n0, k, rows_w, TILE_N, SCALE_K, x_desc.dtype)
            x = x_desc.load([m0, k]).T
            acc = tl.dot(w, x, acc)
            if GATED:
                up = _weights(w_desc, scale_ptr, n0 + N, k, rows_w, TILE_N, SCALE_K, x_desc.dtype)
                acc_up = tl.dot(up, x, acc_up)
            if TAIL_M > 0:
                x_tail = tail_desc.load([m0 + TILE_M, k]).T
                tail = tl.dot(w, x_tail, tail)
                if GATED:
                    tail_up = tl.dot(up, x_tail, tail_up)
        if part > 0:
            acc = first + acc
            if TAIL_M > 0:
                tail = first_tail + tail
    rows_n = n0 + tl.arange(0, TILE_N)
    if GATED:
        acc = _gated(acc, acc_up, y_ptr.dtype.element_ty)
    _store(y_ptr, acc, rows_n, m0 + tl.arange(0, TILE_M), split, M, N)
    if TAIL_M > 0:
        if GATED:
            tail = _gated(tail, tail_up, y_ptr.dtype.element_ty)
        _store(y_ptr, tail, rows_n, m0 + TILE_M + tl.arange(0, TAIL_M), split, M, N)
