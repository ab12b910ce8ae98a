# mypy: allow-untyped-defs
"""Residual + RMSNorm: adds a product's partials to the residual stream and norms the sum. `norm_slots` norms the
streams that a drafter is fed, where it has norms before `fc`.

Shapes. partials [S, M, H] float32, residual [M, H]; out [M, H]. The sum may be kept a second time, for the drafter, in
a slot of [M, streams * H]. One program a row; a few kilobytes each, so launch and latency are its cost (about 2 us).

Bits. The row's sum of squares runs in a layout that depends on H and the number of warps alone. WARPS is therefore part
of the arithmetic: with 8 instead of 16, one output in a million differs, and after 32 layers 38 % of the logits.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem_worker.kernels.launch import launch, power_of_2

WARPS = 16


@triton.jit
def normed(x, gain, eps, H: tl.constexpr):
    """x [H padded with zeros] float32."""
    return x * tl.rsqrt(tl.sum(x * x, 0) / H + eps) * gain


@triton.jit(do_not_specialize=["M", "stream_stride"])
def _add_norm(
    partial_ptr,
    from_ptr,
    rows_ptr,
    residual_ptr,
    gain_ptr,
    out_ptr,
    stream_ptr,
    stream_stride,
    M,
    eps,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
    S: tl.constexpr,
    GATHER: tl.constexpr,
    CAPTURE: tl.constexpr,
    PDL: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, H_PADDED)
    there = i < H
    if PDL:
        gdc_launch_dependents()
    gain = tl.load(gain_ptr + i, mask=there, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    source = m
    if GATHER:
        source = tl.load(rows_ptr + m).to(tl.int64)
    dtype: tl.constexpr = residual_ptr.dtype.element_ty
    x = tl.load(from_ptr + source * H + i, mask=there, other=0.0).to(tl.float32)
    total = tl.load(partial_ptr + m * H + i, mask=there, other=0.0)
    for s in tl.static_range(1, S):
        total += tl.load(partial_ptr + (s * M + m) * H + i, mask=there, other=0.0)
    kept = (x + total.to(dtype).to(tl.float32)).to(dtype)
    tl.store(residual_ptr + m * H + i, kept, mask=there)
    if CAPTURE:
        tl.store(stream_ptr + m * stream_stride + i, kept, mask=there)
    tl.store(out_ptr + m * H + i, normed(kept.to(tl.float32), gain, eps, H).to(dtype), mask=there)


def add_norm(partials, count, residual, gain, eps, out, rows, *, source=None, source_rows=None, stream=None) -> None:
    """residual[m] = source[source_rows[m]] + the sum of `count` partials, by default in place; out = norm(residual).

    stream: a view [M, H] of the captured streams that takes a copy.
    """
    width = residual.shape[-1]
    launch(
        _add_norm,
        (rows,),
        partials,
        residual if source is None else source,
        residual if source_rows is None else source_rows,
        residual,
        gain,
        out,
        residual if stream is None else stream,
        0 if stream is None else stream.stride(0),
        rows,
        eps,
        warps=WARPS,
        H=width,
        H_PADDED=power_of_2(width),
        S=count,
        GATHER=source_rows is not None,
        CAPTURE=stream is not None,
    )


@triton.jit
def _norm_slots(
    x_ptr,
    x_stride,
    gain_ptr,
    eps,
    W: tl.constexpr,
    W_PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1)
    i = tl.arange(0, W_PADDED)
    there = i < W
    if PDL:
        gdc_launch_dependents()
    gain = tl.load(gain_ptr + slot * W + i, mask=there, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    at = x_ptr + m * x_stride + slot * W + i
    x = tl.load(at, mask=there, other=0.0).to(tl.float32)
    tl.store(at, normed(x, gain, eps, W).to(x_ptr.dtype.element_ty), mask=there)


def norm_slots(x, gains, eps, rows) -> None:
    """In place: each of the `slots` parts of a row of x [M, slots * W] is normed by its own gain. gains: [slots, W]."""
    slots, width = gains.shape
    launch(_norm_slots, (rows, slots), x, x.stride(0), gains, eps, warps=WARPS, W=width, W_PADDED=power_of_2(width))
