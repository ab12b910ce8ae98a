"""What measured shares say, with prompts as clusters: tokens of one text are alike, so a prompt counts as one draw.

A share is a ratio of sums over prompts, r = sum(x_b) / sum(n_b). Its variance is that of the ratio estimator,
B / (B - 1) * sum((x_b - r n_b)^2) / (sum n_b)^2 (Cochran, Sampling Techniques, 3rd ed., 2.11 and 6.4), and its interval
uses Student's t with B - 1 degrees of freedom. Two wirings are compared on the same prompts, by the share of the
differences: what makes a text easy or hard for both cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
LEAST_OVERLAP, KNOWING = 0.15, 1.5
LEAST_GAIN, LEAST_SHARE = 0.01, 0.025
"""Of a gain that is worth telling: so much overlap in all, and as a share of the better wiring's."""


@dataclass(frozen=True)
class Share:
    value: float
    error: float  # standard error
    clusters: int

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """For people. Within 0 and 1; of no acceptance at all, the upper end is that of `clusters` refused draws."""
        if self.clusters < 2:
            return 0.0, 1.0
        reach = quantile(1 - (1 - confidence) / 2, self.clusters - 1) * self.error
        if self.error == 0 and self.value in (0.0, 1.0):
            reach = 1 - (1 - confidence) ** (1 / self.clusters)
        return max(0.0, self.value - reach), min(1.0, self.value + reach)


def share(sums: Sequence[float], counts: Sequence[int]) -> Share:
    """sums [B] and counts [B], by prompt; prompts that count nothing are left out."""
    pairs = [(x, n) for x, n in zip(sums, counts, strict=True) if n]
    total, clusters = sum(n for _, n in pairs), len(pairs)
    if not total:
        return Share(0.0, 0.0, 0)
    value = sum(x for x, _ in pairs) / total
    spread = sum((x - value * n) ** 2 for x, n in pairs)
    error = math.sqrt(spread * clusters / (clusters - 1)) / total if clusters > 1 else 0.0
    return Share(value, error, clusters)


def gain(better: Sequence[float], worse: Sequence[float], counts: Sequence[int]) -> Share:
    """Of one wiring over another on the same prompts."""
    return share([a - b for a, b in zip(better, worse, strict=True)], counts)


def surely(difference: Share, wrong: float) -> bool:
    """Whether a difference is above zero, wrong at most so often where there is none."""
    if difference.clusters < 2:
        return False
    return difference.value > 0 and difference.value >= quantile(1 - wrong, difference.clusters - 1) * difference.error


def surely_below(share: Share, bound: float, wrong: float) -> bool:
    """Whether a share is below `bound`, wrong at most so often where it is not."""
    if share.clusters < 2:
        return False
    return share.value + quantile(1 - wrong, share.clusters - 1) * share.error < bound


def worth_telling(overlap: float) -> float:
    """By how much a wiring of such an overlap has to be better than the engine's."""
    return max(LEAST_GAIN, LEAST_SHARE * overlap)


def predicting(nothing: float) -> float:
    """The overlap of a drafter that predicts at all: so much, and so many times what one has that only knows how
    frequent tokens are, `nothing`.
    """
    return max(LEAST_OVERLAP, KNOWING * nothing)


@cache
def quantile(probability: float, freedom: int) -> float:
    """Of Student's t, by bisection on its distribution function. 0.5 <= probability < 1."""
    low, high = 0.0, 1.0
    while _below(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _below(t: float, freedom: int) -> float:
    """P(T <= t) for t >= 0: the finite series for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 4)."""
    angle, odd = math.atan(t / math.sqrt(freedom)), freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= math.cos(angle) ** 2 * ((2 * k) / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return 0.5 + inside / 2
