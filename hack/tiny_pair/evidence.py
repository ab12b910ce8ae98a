"""How many drafts tell a mistake from the right wiring, and how far from independent drafts are."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tiny_pair.replay import Tally

ERROR = 1e-4
MOST_DRAFTS = 20000


def design_effect(tally: Tally) -> float:
    """Variance of position-0 acceptance over prompts against what independent drafts would give.

    0 where no prompt differs from another, as when nothing is ever accepted.
    """
    p, count = tally.rates[0], len(tally.prompts)
    if p in (0.0, 1.0) or count < 2:
        return 0.0
    spread = sum((prompt.accepted[0] - prompt.drafts * p) ** 2 for prompt in tally.prompts)
    return spread * count / (count - 1) / (tally.drafts * p * (1 - p))


def drafts_to_tell(p: float, q: float, error: float = ERROR) -> int | None:
    """Least number of independent drafts at which some threshold tells rate p from q, both errors at most `error`.

    An exact binomial test. None: more than MOST_DRAFTS. Above 200 drafts in steps of 2 %.
    """
    low, high = sorted((p, q))
    coarse = (round(200 * 1.02**i) for i in range(int(math.log(MOST_DRAFTS / 200, 1.02))))
    for n in (*range(1, 200), *coarse):
        below = binomial(n, high).cumsum(0)  # P(at most c | high)
        above = 1 - binomial(n, low).cumsum(0)  # P(more than c | low)
        if ((below <= error) & (above <= error)).any():
            return n
    return None


def binomial(n: int, rate: float) -> Tensor:
    """-> [n + 1]: probability of each count."""
    rate = min(max(rate, 1e-9), 1 - 1e-9)
    counts = torch.arange(n + 1, dtype=torch.float64)
    choose = math.lgamma(n + 1) - torch.lgamma(counts + 1) - torch.lgamma(n - counts + 1)
    return (choose + counts * math.log(rate) + (n - counts) * math.log1p(-rate)).exp()


def distinct_share(texts: Sequence[Sequence[int]], size: int = 4) -> float:
    """Share of n-grams that differ, over all texts together: loops and stock phrases lower it."""
    grams = [tuple(text[i : i + size]) for text in texts for i in range(len(text) - size + 1)]
    return len(set(grams)) / len(grams)
