# mypy: allow-untyped-defs
"""Rotates q and k and writes k and v into the paged cache. Before that it adds biases (Qwen2) and norms each head of q
and k (Qwen3), where the model does.

Shapes. partials [S, M, (Hq + 2 Hk) D] float32 as the qkv product left them; q out [M, Hq, D]; cosines and sines
[positions, D / 2] float32; caches [pages, Hk, PAGE, D]; positions [M] and owners [M], the row of `tables` [owners,
width] that holds the pages of the row's request. Program (row, key head). Cost: it
reads its partials once, about 2 us.

Bits. Every output comes from its own two inputs, by one product and one fused multiply-add that are written out: left
to the compiler, two forms of this kernel fused differently, and texts differed with them.

Values are numbers, always. One that is not (NaN or infinite: of a damaged weight, or of a text that drives the model
there) would reach rows that must not see it, because its product with a weight of zero is NaN. Those are earlier rows
of its own text, whose pages others may share, and rows of the page's next owner: a request that ends before its logits
are looked at gives its pages back as they are. So a 0 is written, and NaN into the key beside it: scores are masked
where attention must not see them, and whoever does see it is as broken as before.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem_worker.kernels.launch import launch, power_of_2


@triton.jit
def _plus(a, b, c, d):
    """a b + c d"""
    return tl.fma(a, b, c * d)


@triton.jit
def _minus(a, b, c, d):
    """a b - c d"""
    return tl.fma(a, b, -(c * d))


@triton.jit
def _is_number(x):
    return tl.abs(x.to(tl.float32)) < float("inf")


@triton.jit
def _normed(low, high, gain_ptr, i, eps, D: tl.constexpr):
    """Halves of heads, [heads, D / 2] each, float32. The sums run in a layout that nothing but the shape decides."""
    scale = tl.rsqrt(tl.sum(tl.fma(low, low, high * high), 1) / D + eps)[:, None]
    gain_low = tl.load(gain_ptr + i).to(tl.float32)
    gain_high = tl.load(gain_ptr + i + D // 2).to(tl.float32)
    return low * scale * gain_low, high * scale * gain_high


@triton.jit(do_not_specialize=["M", "WIDTH"])
def _rotate(
    partial_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    position_ptr,
    owner_ptr,
    table_ptr,
    cos_ptr,
    sin_ptr,
    bias_ptr,
    q_gain_ptr,
    k_gain_ptr,
    eps,
    M,
    WIDTH,
    HK: tl.constexpr,
    G: tl.constexpr,
    G_PADDED: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    S: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    HALF: tl.constexpr = D // 2
    ROW: tl.constexpr = (HK * G + 2 * HK) * D
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    i = tl.arange(0, HALF)[None, :]
    g = tl.arange(0, G_PADDED)[:, None]
    there = (g < G) & (i < HALF)
    q_at = (h * G + g) * D + i
    k_at = (HK * G + h) * D + i
    q_low = tl.zeros([G_PADDED, HALF], tl.float32)
    q_high = tl.zeros([G_PADDED, HALF], tl.float32)
    k_low = tl.zeros([1, HALF], tl.float32)
    k_high = tl.zeros([1, HALF], tl.float32)
    v_low = tl.zeros([1, HALF], tl.float32)
    v_high = tl.zeros([1, HALF], tl.float32)
    for s in tl.static_range(S):
        row = partial_ptr + (s * M + m) * ROW
        q_low += tl.load(row + q_at, mask=there, other=0.0)
        q_high += tl.load(row + q_at + HALF, mask=there, other=0.0)
        k_low += tl.load(row + k_at)
        k_high += tl.load(row + k_at + HALF)
        v_low += tl.load(row + k_at + HK * D)
        v_high += tl.load(row + k_at + HK * D + HALF)
    if BIAS:
        q_low += tl.load(bias_ptr + q_at, mask=there, other=0.0).to(tl.float32)
        q_high += tl.load(bias_ptr + q_at + HALF, mask=there, other=0.0).to(tl.float32)
        k_low += tl.load(bias_ptr + k_at).to(tl.float32)
        k_high += tl.load(bias_ptr + k_at + HALF).to(tl.float32)
        v_low += tl.load(bias_ptr + k_at + HK * D).to(tl.float32)
        v_high += tl.load(bias_ptr + k_at + HK * D + HALF).to(tl.float32)
    if NORM:
        q_low, q_high = _normed(q_low, q_high, q_gain_ptr, i, eps, D)
        k_low, k_high = _normed(k_low, k_high, k_gain_ptr, i, eps, D)
    # behind the loads above, which do not wait for these
    position = tl.load(position_ptr + m)
    owner = tl.load(owner_ptr + m)
    cos = tl.load(cos_ptr + position * HALF + i)
    sin = tl.load(sin_ptr + position * HALF + i)
    page = tl.load(table_ptr + owner * WIDTH + position // PAGE).to(tl.int64)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    q = q_ptr + m * HK * G * D + q_at
    tl.store(q, _minus(q_low, cos, q_high, sin).to(dtype), mask=there)
    tl.store(q + HALF, _plus(q_high, cos, q_low, sin).to(dtype), mask=there)
    at = ((page * HK + h) * PAGE + position % PAGE) * D + i
    v_low = v_low.to(dtype)
    v_high = v_high.to(dtype)
    whole_low = _is_number(v_low)
    whole_high = _is_number(v_high)
    tl.store(k_ptr + at, tl.where(whole_low, _minus(k_low, cos, k_high, sin), float("nan")).to(dtype))
    tl.store(k_ptr + at + HALF, tl.where(whole_high, _plus(k_high, cos, k_low, sin), float("nan")).to(dtype))
    tl.store(v_ptr + at, tl.where(whole_low, v_low, 0.0))
    tl.store(v_ptr + at + HALF, tl.where(whole_high, v_high, 0.0))


def rotate(
    partials, count, q, keys, values, placing, rotary, rows, kv_heads, *, bias=None, gains=None, eps=0.0
) -> None:
    """placing: `Placing`, with positions, owners and tables; rotary: cosines and sines; keys, values: one layer's.

    bias: [(Hq + 2 Hk) D]; gains: of q's and of k's heads, [D] each.
    """
    page, head_dim = keys.shape[-2:]
    group = q.shape[-1] // head_dim // kv_heads
    launch(
        _rotate,
        (rows, kv_heads),
        partials,
        q,
        keys,
        values,
        placing.positions,
        placing.owners,
        placing.tables,
        *rotary,
        q if bias is None else bias,
        *((q, q) if gains is None else gains),
        eps,
        rows,
        placing.tables.shape[1],
        warps=2,
        HK=kv_heads,
        G=group,
        G_PADDED=power_of_2(group),
        D=head_dim,
        PAGE=page,
        S=count,
        BIAS=bias is not None,
        NORM=gains is not None,
    )
