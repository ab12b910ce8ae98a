# mypy: allow-untyped-defs
"""From logits to tokens: the largest logit, and which drafted tokens the target confirms.

    largest   [M, V] logits -> per tile of COLUMNS the largest and its token; the lowest token wins a tie
    accept    the target's token at every row; drafts count as long as they equal it (see `engine.sampling`); moves the
              requests' state on: newest token, length, last kept row
    take      the token of one more draft
    `join` in `embed` does the same as `take` and goes on to the next draft step

Shapes. B requests, T = K + 1 rows each; tokens [B, T] newest and drafted; lengths [B] position of the newest token;
result [B, 2 T] what the host reads: accepted, T chosen tokens, K new drafts.

Logits that are not finite give token -1, which the host takes for a broken engine. `forced` is the switch of
benchmarks: where it is not negative, it replaces the number of accepted tokens after everything was computed; the
kernels are the same.

Bits. A maximum does not depend on order.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem_worker.kernels.launch import launch, power_of_2

COLUMNS = 1024
FORCED = 60
"""Rounds after which a forced pattern repeats."""


@triton.jit
def _largest(logit_ptr, value_ptr, token_ptr, V, TILES, FIRST, COLUMNS: tl.constexpr, PDL: tl.constexpr):
    m = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0)
    i = tile * COLUMNS + tl.arange(0, COLUMNS)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    x = tl.load(logit_ptr + m * V + i, mask=i < V, other=0.0).to(tl.float32)
    broken = tl.max(((x - x) != 0).to(tl.int32), 0)  # infinite or not a number
    value, at = tl.max(tl.where(i < V, x, float("-inf")), 0, return_indices=True)
    tl.store(value_ptr + m * TILES + tile, tl.where(broken > 0, float("inf"), value))
    tl.store(token_ptr + m * TILES + tile, tl.where(broken > 0, -1, FIRST + tile * COLUMNS + at))


@triton.jit
def largest_of(value_ptr, token_ptr, row, TILES: tl.constexpr, TILES_PADDED: tl.constexpr):
    """The token of a row's best tile."""
    i = tl.arange(0, TILES_PADDED)
    values = tl.load(value_ptr + row * TILES + i, mask=i < TILES, other=float("-inf"))
    best = tl.argmax(values, 0)
    return tl.load(token_ptr + row * TILES + best)


@triton.jit
def _accept(
    value_ptr,
    token_ptr,
    tokens_ptr,
    length_ptr,
    chosen_ptr,
    last_row_ptr,
    result_ptr,
    forced_ptr,
    round_ptr,
    limit,
    T: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PADDED: tl.constexpr,
    FORCED: tl.constexpr,
    PDL: tl.constexpr,
):
    b = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    turn = tl.load(round_ptr + b)
    forced = tl.load(forced_ptr + turn % FORCED)
    tl.store(round_ptr + b, turn + 1)
    alive = forced > -2  # true
    accepted = 0
    newest = 0
    for t in tl.static_range(T):
        token = largest_of(value_ptr, token_ptr, b * T + t, TILES, TILES_PADDED)
        tl.store(result_ptr + b * 2 * T + 1 + t, token)
        token = tl.maximum(token, 0)
        tl.store(chosen_ptr + b * T + t, token)
        newest = tl.where(alive, token, newest)
        if t < T - 1:
            same = tl.load(tokens_ptr + b * T + t + 1) == token
            alive = alive & tl.where(forced < 0, same, t < forced)
            accepted += alive.to(tl.int32)
    tl.store(result_ptr + b * 2 * T, accepted)
    tl.store(last_row_ptr + b, b * T + accepted)
    tl.store(tokens_ptr + b * T, newest)
    tl.store(length_ptr + b, tl.minimum(tl.load(length_ptr + b) + accepted + 1, limit))


@triton.jit
def _take(
    value_ptr,
    token_ptr,
    id_ptr,
    out_ptr,
    out_stride,
    more_ptr,
    more_stride,
    TILES: tl.constexpr,
    TILES_PADDED: tl.constexpr,
    MAPPED: tl.constexpr,
    PDL: tl.constexpr,
):
    m = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = largest_of(value_ptr, token_ptr, m, TILES, TILES_PADDED)
    if MAPPED:
        token = tl.load(id_ptr + tl.maximum(token, 0))
    tl.store(out_ptr + m * out_stride, token)
    tl.store(more_ptr + m * more_stride, token)


class Best:
    """Best logit of every tile of columns: values and tokens [rows, TILES], float32 and int32."""

    def __init__(self, values, tokens) -> None:
        self.values, self.tokens, self.tiles = values, tokens, values.shape[-1]

    @property
    def shape(self) -> dict[str, int]:
        return {"TILES": self.tiles, "TILES_PADDED": power_of_2(self.tiles)}


def largest(logits, rows, best, first=0) -> None:
    """first: the token of the first column, where these are not all."""
    vocab, tiles = logits.shape[-1], best.tiles
    launch(_largest, (tiles, rows), logits, best.values, best.tokens, vocab, tiles, first, warps=4, COLUMNS=COLUMNS)


def accept(best, state, batch, drafted) -> None:
    """state: `engine.rounds.State`. Works on `batch` requests with `drafted` tokens each."""
    launch(
        _accept,
        (batch,),
        best.values,
        best.tokens,
        state.tokens,
        state.lengths,
        state.chosen,
        state.last_rows,
        state.result,
        state.forced,
        state.turns,
        state.limit,
        warps=4,
        T=drafted + 1,
        FORCED=FORCED,
        **best.shape,
    )


def take(best, rows, out, more=None, ids=None) -> None:
    """out[m] = more[m] = the token of row m, through the draft vocabulary's `ids` when given. Strided views."""
    more = out if more is None else more
    launch(
        _take,
        (rows,),
        best.values,
        best.tokens,
        best.tokens if ids is None else ids,
        out,
        out.stride(0),
        more,
        more.stride(0),
        warps=4,
        MAPPED=ids is not None,
        **best.shape,
    )
