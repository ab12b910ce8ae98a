# mypy: allow-untyped-defs
"""What goes into the first layer: the target's embedding, and the drafter's [norm(embedding), norm(feature)].

Shapes. tokens [M] or, in a round, [B, T]; table [V, H]; residual [M, H]; out [M, H] for the target, [M, 2 H] for the
drafter. One program a row. The norms have the layout of `norm`, for the same reason.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem_worker.kernels.choice import largest_of
from tandem_worker.kernels.launch import launch, power_of_2
from tandem_worker.kernels.norm import WARPS, normed


@triton.jit
def _embed(
    token_ptr,
    table_ptr,
    length_ptr,
    position_ptr,
    residual_ptr,
    gain_ptr,
    out_ptr,
    stream_ptr,
    stream_stride,
    eps,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
    T: tl.constexpr,
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
    if T > 0:
        tl.store(position_ptr + m, tl.load(length_ptr + m // T) + (m % T).to(tl.int32))
    token = tl.load(token_ptr + m).to(tl.int64)
    x = tl.load(table_ptr + token * H + i, mask=there, other=0.0)
    tl.store(residual_ptr + m * H + i, x, mask=there)
    if CAPTURE:
        tl.store(stream_ptr + m * stream_stride + i, x, mask=there)
    out = normed(x.to(tl.float32), gain, eps, H)
    tl.store(out_ptr + m * H + i, out.to(out_ptr.dtype.element_ty), mask=there)


def embed(
    tokens, table, residual, gain, eps, out, rows, *, positions, lengths=None, per_request=0, stream=None
) -> None:
    """residual[m] = table[tokens[m]], out = its norm. With `lengths`, row m = (b, t) gets position lengths[b] + t."""
    width = table.shape[1]
    launch(
        _embed,
        (rows,),
        tokens,
        table,
        positions if lengths is None else lengths,
        positions,
        residual,
        gain,
        out,
        residual if stream is None else stream,
        0 if stream is None else stream.stride(0),
        eps,
        warps=WARPS,
        H=width,
        H_PADDED=power_of_2(width),
        T=0 if lengths is None else per_request,
        CAPTURE=stream is not None,
    )


@triton.jit(do_not_specialize=["M"])
def _join(
    token_ptr,
    value_ptr,
    best_ptr,
    id_ptr,
    draft_ptr,
    draft_stride,
    result_ptr,
    result_stride,
    length_ptr,
    position_ptr,
    step,
    table_ptr,
    partial_ptr,
    feature_ptr,
    embedding_gain_ptr,
    feature_gain_ptr,
    out_ptr,
    M,
    eps,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
    S: tl.constexpr,
    DRAFTED: tl.constexpr,
    NORM_FIRST: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, H_PADDED)
    there = i < H
    if PDL:
        gdc_launch_dependents()
    embedding_gain = tl.load(embedding_gain_ptr + i, mask=there, other=0.0).to(tl.float32)
    feature_gain = tl.load(feature_gain_ptr + i, mask=there, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    if DRAFTED:
        token = tl.load(id_ptr + tl.maximum(largest_of(value_ptr, best_ptr, m, TILES, TILES_PADDED), 0))
        tl.store(draft_ptr + m * draft_stride, token)
        tl.store(result_ptr + m * result_stride, token)
        tl.store(position_ptr + m, tl.load(length_ptr + m) - 1 + step)
    else:
        token = tl.load(token_ptr + m)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    embedding = tl.load(table_ptr + token.to(tl.int64) * H + i, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + m * 2 * H + i, normed(embedding, embedding_gain, eps, H).to(dtype), mask=there)
    if S > 0:
        total = tl.load(partial_ptr + m * H + i, mask=there, other=0.0)
        for s in tl.static_range(1, S):
            total += tl.load(partial_ptr + (s * M + m) * H + i, mask=there, other=0.0)
        feature = total.to(dtype)
    else:
        feature = tl.load(feature_ptr + m * H + i, mask=there, other=0.0)
    out = normed(feature.to(tl.float32), feature_gain, eps, H).to(dtype)
    tl.store(out_ptr + m * 2 * H + H + i, out, mask=there)
    if NORM_FIRST:
        tl.store(feature_ptr + m * H + i, out, mask=there)
    elif S > 0:
        tl.store(feature_ptr + m * H + i, feature, mask=there)


def join_first(tokens, table, partials, count, feature, gains, norm_first, eps, out, rows) -> None:
    """Step 0: features from `fc`'s partials, embeddings of the tokens that came next. `feature` becomes the
    residual."""
    shape = {"S": count, "DRAFTED": False, "TILES": 1, "TILES_PADDED": 1}
    nothing = (tokens, tokens, tokens, tokens, 0, tokens, 0, tokens, tokens, 0)
    _launch_join((tokens, *nothing), table, partials, feature, gains, norm_first, eps, out, rows, shape)


def join_next(
    best, ids, drafts, result, lengths, positions, step, table, feature, gains, norm_first, eps, out, rows
) -> None:
    """Step `step` > 0: takes the token that was drafted last and its own last hidden state, `feature`.

    drafts, result: strided views [rows] that get the token.
    """
    shape = dict(S=0, DRAFTED=True, **best.shape)
    state = (drafts, drafts.stride(0), result, result.stride(0), lengths, positions, step)
    head = (drafts, best.values, best.tokens, ids, *state)
    _launch_join(head, table, feature, feature, gains, norm_first, eps, out, rows, shape)


def _launch_join(head, table, partials, feature, gains, norm_first, eps, out, rows, shape) -> None:
    width = table.shape[1]
    where = {"H": width, "H_PADDED": power_of_2(width), "NORM_FIRST": norm_first}
    launch(_join, (rows,), *head, table, partials, feature, *gains, out, rows, eps, warps=WARPS, **where, **shape)
