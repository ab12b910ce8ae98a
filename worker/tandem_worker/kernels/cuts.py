# mypy: allow-untyped-defs
"""Where top-k and top-p cut a row of weights, found without sorting it.

Both cuts ask for the smallest weight w such that less than so much stands above it: fewer than k tokens, or less than
p of the sum. What stands above a weight only falls as it grows, so bisection finds it, whole numbers and all, in 43
looks. To look at all tokens each time would take longer than the target; so a row's most probable ones are set
aside and looked at. Where these do not reach as far as the cut, it lies between two powers of two further down, and the
weights between those are set aside.

Shapes. A row has V weights, whole numbers up to `chance.ONE`, so no sum depends on its order. AHEAD and BEHIND of them
are set aside at most.
"""

import triton
import triton.language as tl

from tandem_worker.kernels.chance import ONE

AHEAD, BEHIND = 2048, 32768
"""Most tokens that are set aside: of the most probable ones, and of those with a cut among them."""

LENGTHS = tl.constexpr(64)  # of weights, in bits
_HIGHEST, _LOOKS = tl.constexpr(int(ONE)), tl.constexpr(int(ONE).bit_length())


@triton.jit
def kept(weight_ptr, start, n, least, STEPS: tl.constexpr, LANES: tl.constexpr):
    """[STEPS, LANES] numbers from `start` on, 0 for those below `least` or behind the first n. Whoever adds along STEPS
    first adds what a thread has loaded, and keeps many loads on their way."""
    i = start + tl.arange(0, STEPS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    w = tl.load(weight_ptr + i, mask=i < n, other=0)
    return tl.where(w >= least, w, 0)


@triton.jit
def _sum(weight_ptr, n, least, STEPS: tl.constexpr, LANES: tl.constexpr):
    sums = tl.zeros([LANES], tl.int64)
    for start in range(0, n, STEPS * LANES):
        sums += tl.sum(kept(weight_ptr, start, n, least, STEPS, LANES), 0)
    return tl.sum(sums, 0)


@triton.jit
def _least(weight_ptr, n, base, bound, COUNTS: tl.constexpr, STEPS: tl.constexpr, LANES: tl.constexpr):
    """The smallest of n weights above which stands less than `bound` (float64): tokens where COUNTS, else weights.

    base: what stands above all n of them."""
    low, high = tl.full([], -1, tl.int64), tl.full([], _HIGHEST, tl.int64)  # above `low` stands enough
    for _ in range(_LOOKS):
        middle = (low + high) >> 1
        above = tl.zeros([LANES], tl.int64)
        for start in range(0, n, STEPS * LANES):
            w = kept(weight_ptr, start, n, middle + 1, STEPS, LANES)
            above += tl.sum((w > 0).to(tl.int64) if COUNTS else w, 0)
        less = (base + tl.sum(above, 0)).to(tl.float64) < bound
        low, high = tl.where(less, low, middle), tl.where(less, middle, high)
    return high


@triton.jit
def _gather(weight_ptr, into_ptr, count_ptr, low, high, V, STEPS: tl.constexpr, LANES: tl.constexpr):
    """Sets the weights in [low, high) aside, in any order -> how many. There must be room."""
    tl.debug_barrier()  # all have read what was counted and set aside before
    tl.store(count_ptr, 0)
    tl.debug_barrier()
    for start in range(0, V, STEPS * LANES):
        i = start + tl.arange(0, STEPS * LANES)
        w = tl.load(weight_ptr + i, mask=i < V, other=-1)
        there, ones = (w >= low) & (w < high), tl.full([STEPS * LANES], 1, tl.int64)
        at = tl.atomic_add(count_ptr + tl.zeros_like(i), ones, mask=there, sem="relaxed", scope="cta")
        tl.store(into_ptr + at, w, mask=there)
    tl.debug_barrier()
    return tl.load(count_ptr)


@triton.jit
def _least_between(
    weight_ptr, count_ptr, behind_ptr, lengths, edge, base, bound, V, BEHIND: tl.constexpr, COUNTS: tl.constexpr,
    STEPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """As `_least`, of which is known that it lies in [edge, 2 edge), and what stands above those: base."""
    own = tl.sum(tl.where(tl.full([], 1, tl.int64) << tl.arange(0, LENGTHS) == 2 * edge, lengths, 0), 0)
    if own <= BEHIND:
        n = _gather(weight_ptr, behind_ptr, count_ptr, edge, 2 * edge, V, STEPS, LANES)
        least = _least(behind_ptr, n, base, bound, COUNTS, STEPS, LANES)
    else:
        least = _least(weight_ptr, V, 0, bound, COUNTS, STEPS, LANES)
    return least


@triton.jit
def least_of_cuts(
    weight_ptr, count_ptr, ahead_ptr, behind_ptr, lengths, top_k, top_p, V, AHEAD: tl.constexpr, BEHIND: tl.constexpr,
    STEPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The smallest weight that both keep. lengths [64]: how many weights have so many bits; of none, those behind the
    row's end are counted as well."""
    bits = tl.arange(0, LENGTHS)
    down_to = tl.sum(lengths, 0) - tl.cumsum(lengths, 0) + lengths  # tokens with so many bits or more
    fewest = tl.min(tl.where(down_to <= AHEAD, bits, LENGTHS - 1), 0)
    ahead = (tl.full([], 1, tl.int64) << fewest) >> 1  # the most probable tokens are those down to it
    count = _gather(weight_ptr, ahead_ptr, count_ptr, ahead, _HIGHEST + 1, V, STEPS, LANES)
    least = tl.full([], 0, tl.int64)
    if top_k < V:
        bound = top_k.to(tl.float64)
        if count >= top_k:
            least = _least(ahead_ptr, count, 0, bound, True, STEPS, LANES)
        else:
            length = tl.max(tl.where(down_to >= top_k, bits, 0), 0)
            base = tl.sum(tl.where(bits > length, lengths, 0), 0).to(tl.int64)
            edge = (tl.full([], 1, tl.int64) << length) >> 1
            least = _least_between(
                weight_ptr, count_ptr, behind_ptr, lengths, edge, base, bound, V, BEHIND, True, STEPS, LANES
            )
    if top_p < 1:
        if least >= ahead:
            total = _sum(ahead_ptr, count, least, STEPS, LANES)
        else:
            total = _sum(weight_ptr, V, least, STEPS, LANES)
        bound = top_p * total.to(tl.float64)
        base = _sum(ahead_ptr, count, 0, STEPS, LANES)
        if base.to(tl.float64) >= bound:
            of_p = _least(ahead_ptr, count, 0, bound, False, STEPS, LANES)
        else:
            edge, own = ahead, tl.full([], 0, tl.int64)
            while ((base + own).to(tl.float64) < bound) & (edge > 1):
                base += own  # what stands above 2 edge
                edge = edge >> 1
                own = _sum(weight_ptr, V, edge, STEPS, LANES) - base
            of_p = _least_between(
                weight_ptr, count_ptr, behind_ptr, lengths, edge, base, bound, V, BEHIND, False, STEPS, LANES
            )
        least = tl.maximum(least, of_p)
    return least
