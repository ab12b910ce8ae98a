# mypy: allow-untyped-defs
"""The target's token at every row that is not greedy: `engine.sampling` in one kernel, without a sort.

A program takes one row after the other and goes over its tokens a few times:

    logits -> the largest, where bias and penalties change them
           -> weights, whole numbers in proportion to probabilities; how many there are of each length in bits
           -> the smallest weight that top-k and top-p keep (`cuts`)
           -> sums of the kept weights, and the token at which they pass the random point

A row without cuts is not searched for one, and greedy rows are left alone. When all rows were sorted, 32 requests with
three drafts each took 13.3 ms a round on an H200, of which everything but drawing was 6.2; so it is 6.5.

Shapes. M rows of V logits; B requests; owners, nths [M]: row m stands behind the newest token of request owners[m] and
nths[m] of its drafts. tokens [B, T] newest and drafted, lengths [B] position of the newest. What requests ask for is
laid out by `engine.drawing`: reals [B, 6], wholes [B, 4], and bias, generated, prompt [B, V].

Bits. Whatever is added is whole numbers, and a maximum does not depend on order: a row's token depends on nothing
beside it, and not on how the work is split.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tandem_worker.kernels.chance import MULTIPLIER, ONE, ROUNDS, WEYL
from tandem_worker.kernels.choice import largest_of
from tandem_worker.kernels.cuts import AHEAD, BEHIND, LENGTHS, kept, least_of_cuts
from tandem_worker.kernels.launch import cdiv, launch, power_of_2


class Form(NamedTuple):
    """How a program's threads go over a row."""

    block: int  # tokens at a time, where logits become weights
    steps: int  # and of weights
    lanes: int
    warps: int


FORM = Form(block=4096, steps=8, lanes=1024, warps=16)

DRAWS, BIASED, PENALISES, ALONE = 1, 2, 4, 8
"""Flags of a request: it is not greedy; it has a bias, penalties; it takes no drafts."""

REALS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
WHOLES = ("top_k", "seed_low", "seed_high", "flags")
"""What a request asks for, in columns."""

_REALS, _WHOLES = tl.constexpr(len(REALS)), tl.constexpr(len(WHOLES))
_TEMPERATURE, _TOP_P, _MIN_P, _PRESENCE, _FREQUENCY, _REPETITION = map(tl.constexpr, range(len(REALS)))
_TOP_K, _SEED_LOW, _SEED_HIGH, _FLAGS = map(tl.constexpr, range(len(WHOLES)))
_DRAWS, _BIASED, _PENALISES = tl.constexpr(DRAWS), tl.constexpr(BIASED), tl.constexpr(PENALISES)
_ONE, _ROUNDS, _WEYL, _MULTIPLIER = map(tl.constexpr, (ONE, ROUNDS, WEYL, MULTIPLIER))


@triton.jit
def _uniform(low, high, key):
    """`chance` on scalars, in halves of 32 bits -> [0, 1) float64."""
    low, high, key = low.to(tl.uint32), high.to(tl.uint32), key.to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        above, below = tl.umulhi(low, _MULTIPLIER), low * _MULTIPLIER
        low, high = above ^ key ^ high, below
        key += _WEYL
    bits = (low.to(tl.int64) << 21) | (high.to(tl.int64) >> 11)
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2**-53


@triton.jit
def _changed(x, i, there, b, nth, flags, real_ptr, bias_ptr, generated_ptr, prompt_ptr, token_ptr, T, V):
    """x [BLOCK] float64 of tokens i, as the request wants them. real_ptr: its own row."""
    if flags & _BIASED:
        x += tl.load(bias_ptr + b * V + i, mask=there, other=0.0).to(tl.float64)
    if flags & _PENALISES:
        presence, frequency = tl.load(real_ptr + _PRESENCE), tl.load(real_ptr + _FREQUENCY)
        repetition = tl.load(real_ptr + _REPETITION)
        generated = tl.load(generated_ptr + b * V + i, mask=there, other=0)
        for j in range(nth):
            generated += (tl.load(token_ptr + b * T + 1 + j) == i).to(tl.int32)
        present = generated > 0
        held = tl.load(prompt_ptr + b * V + i, mask=there, other=0) != 0
        x = tl.where(present | held, tl.where(x > 0, x / repetition, x * repetition), x)
        x -= frequency * generated.to(tl.float64)
        x -= tl.where(present, presence, 0.0)
    return x


@triton.jit
def _at_point(weight_ptr, sum_ptr, least, uniform, V, SUMS: tl.constexpr, STEPS: tl.constexpr, LANES: tl.constexpr):
    """Inverse of the cumulative distribution -> token. sum_ptr: room for SUMS numbers."""
    for start in range(0, V, STEPS * LANES):
        of_lanes = tl.sum(kept(weight_ptr, start, V, least, STEPS, LANES), 1)
        tl.store(sum_ptr + start // LANES + tl.arange(0, STEPS), of_lanes)
    tl.debug_barrier()
    each = tl.arange(0, SUMS)
    sums = tl.load(sum_ptr + each, mask=each * LANES < V, other=0)
    total = tl.sum(sums, 0)
    point = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
    passed = tl.cumsum(sums, 0) <= point
    before = tl.sum(tl.where(passed, sums, 0), 0)
    start = tl.sum(passed.to(tl.int32), 0) * LANES
    i = start + tl.arange(0, LANES)
    w = tl.load(weight_ptr + i, mask=i < V, other=0)
    within = before + tl.cumsum(tl.where(w >= least, w, 0), 0)
    return tl.minimum(start + tl.sum((within <= point).to(tl.int32), 0), V - 1)  # whatever the weights are


@triton.jit
def _largest_changed(
    row_ptr, b, nth, flags, real_ptr, bias_ptr, generated_ptr, prompt_ptr, token_ptr, T, V, BLOCK: tl.constexpr
):
    """-> the largest, float64, and its token: the lowest wins a tie."""
    most = tl.full([BLOCK], float("-inf"), tl.float64)
    where = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + i, mask=i < V, other=float("-inf")).to(tl.float64)
        x = _changed(x, i, i < V, b, nth, flags, real_ptr, bias_ptr, generated_ptr, prompt_ptr, token_ptr, T, V)
        where = tl.where(x > most, i, where)
        most = tl.maximum(most, x)
    largest = tl.max(most, 0)
    return largest, tl.min(tl.where(most == largest, where, V), 0)


@triton.jit(
    do_not_specialize=["M", "T"],
    do_not_specialize_on_alignment=["owner_ptr", "nth_ptr", "token_ptr", "length_ptr"],  # of rounds, or of a step
)
def _draw(
    logit_ptr,
    value_ptr,
    best_ptr,
    owner_ptr,
    nth_ptr,
    token_ptr,
    length_ptr,
    real_ptr,
    whole_ptr,
    bias_ptr,
    generated_ptr,
    prompt_ptr,
    scratch_ptr,
    M,
    T,
    V,
    TILES: tl.constexpr,
    TILES_PADDED: tl.constexpr,
    AHEAD: tl.constexpr,
    BEHIND: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    weights = scratch_ptr + tl.program_id(0).to(tl.int64) * (V + SUMS + AHEAD + BEHIND + 1)
    sums = weights + V
    ahead, behind, count = sums + SUMS, sums + SUMS + AHEAD, sums + SUMS + AHEAD + BEHIND
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        m = tl.full([], 0, tl.int64) + row
        b = tl.load(owner_ptr + m).to(tl.int64)
        reals, wholes = real_ptr + b * _REALS, whole_ptr + b * _WHOLES
        flags = tl.load(wholes + _FLAGS)
        token = largest_of(value_ptr, best_ptr, m, TILES, TILES_PADDED)
        if (flags & _DRAWS) != 0 and token >= 0:
            nth, row_ptr = tl.load(nth_ptr + m), logit_ptr + m * V
            largest = tl.load(row_ptr + token).to(tl.float64)
            if flags & (_BIASED | _PENALISES):
                largest, token = _largest_changed(
                    row_ptr, b, nth, flags, reals, bias_ptr, generated_ptr, prompt_ptr, token_ptr, T, V, BLOCK
                )
            temperature, top_p = tl.load(reals + _TEMPERATURE), tl.load(reals + _TOP_P)
            if temperature > 0:
                largest = largest / temperature
                lengths = tl.zeros([LENGTHS], tl.int32)
                for start in range(0, V, BLOCK):
                    i = start + tl.arange(0, BLOCK)
                    x = tl.load(row_ptr + i, mask=i < V, other=float("-inf")).to(tl.float64)
                    x = _changed(
                        x, i, i < V, b, nth, flags, reals, bias_ptr, generated_ptr, prompt_ptr, token_ptr, T, V
                    )
                    w = tl.exp(x / temperature - largest) * _ONE
                    bits = (w.to(tl.int64, bitcast=True) >> 52) - 1022  # of the whole number; below 1 it has none
                    tl.store(weights + i, w.to(tl.int64), mask=i < V)
                    lengths += tl.histogram(tl.maximum(bits, 0).to(tl.int32), LENGTHS)
                tl.debug_barrier()
                least, top_k = (tl.load(reals + _MIN_P) * _ONE).to(tl.int64), tl.load(wholes + _TOP_K)
                if (top_k < V) | (top_p < 1):
                    of_cuts = least_of_cuts(
                        weights, count, ahead, behind, lengths, top_k, top_p, V, AHEAD, BEHIND, STEPS, LANES
                    )
                    least = tl.maximum(least, of_cuts)
                seed_low, seed_high = tl.load(wholes + _SEED_LOW), tl.load(wholes + _SEED_HIGH)
                uniform = _uniform(tl.load(length_ptr + b) + 1 + nth, seed_high, seed_low)
                token = _at_point(weights, sums, least, uniform, V, SUMS, STEPS, LANES)
            tl.debug_barrier()  # the scratch is free
            # Whoever looks for the largest finds this token. Broken rows, whose tiles say infinite too, are not here.
            tl.store(value_ptr + m * TILES, float("inf"))
            tl.store(best_ptr + m * TILES, token)


class Scratch:
    """A row for each program, [programs, V + ...]: weights, sums of some of them, those set aside, and their count."""

    def __init__(self, vocab, rows, device, ahead=AHEAD, behind=BEHIND, form=FORM) -> None:
        self.ahead, self.behind, self.form = ahead, behind, form
        self.sums = power_of_2(cdiv(vocab, form.lanes * form.steps) * form.steps)
        at_once = 2 if device.type != "cuda" else torch.cuda.get_device_properties(device).multi_processor_count
        self.programs = min(rows, at_once)
        self.room = torch.zeros(self.programs, vocab + self.sums + ahead + behind + 1, dtype=torch.int64, device=device)


def draw(logits, best, rows, owners, nths, tokens, lengths, reals, wholes, changes, scratch) -> None:
    """Puts what is drawn into `best`, whose tokens stay for greedy rows and for those whose logits are broken.

    logits [M, V]; changes: bias float32, generated int32, prompt bool, [B, V] each.

    Products and sums are rounded one by one, as torch does it: tokens that tie stay tied."""
    form, vocab = scratch.form, logits.shape[-1]
    assert all(change.shape[-1] == vocab for change in changes)
    launch(
        _draw,
        (min(rows, scratch.programs),),
        logits,
        best.values,
        best.tokens,
        owners,
        nths,
        tokens,
        lengths,
        reals,
        wholes,
        *changes,
        scratch.room,
        rows,
        tokens.shape[-1],
        vocab,
        warps=form.warps,
        enable_fp_fusion=False,
        AHEAD=scratch.ahead,
        BEHIND=scratch.behind,
        SUMS=scratch.sums,
        BLOCK=form.block,
        STEPS=form.steps,
        LANES=form.lanes,
        **best.shape,
    )
