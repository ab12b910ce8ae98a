"""The target's own choice at every row, and how many drafted tokens it confirms.

Drafts are greedy, so a draft's distribution is a point mass on one token d. Exact rejection sampling (arXiv 2302.01318)
then accepts d with probability p(d) and otherwise draws from p without d, renormalised. Drawing x from p and accepting
d when x = d does precisely that: x = d has probability p(d), and given x != d, x is distributed as p without d. Hence
one rule for greedy and sampled text: *draw the target's token for every row; drafted tokens are accepted as long as
they equal it; the first that differs is replaced by it.*

The draw of position t depends on seed and t alone, so a seeded text is the same with speculation and without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_worker.engine.request import Sampling


def uniform(seed: int, position: int) -> float:
    """In [0, 1), the same on every machine; 53 bits, so that it never rounds up to 1."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def choose(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    """The target's tokens. logits [M, V]; per row its request's settings and the position that the token will have."""
    return draw(logits, samplings, positions, logits.argmax(-1).tolist())


def draw(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], greedy: list[int]) -> list[int]:
    """`choose`, where the most probable tokens are known already."""
    chosen = list(greedy)
    drawn = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    if drawn:
        probabilities = processed(logits[drawn], [samplings[row] for row in drawn])
        draws = [uniform(samplings[row].seed, positions[row]) for row in drawn]
        for row, token in zip(drawn, invert(probabilities, draws), strict=True):
            chosen[row] = token
    return chosen


def processed(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """What is sampled from: temperature, then top-p. [M, V] -> probabilities [M, V] in float64, in order of token ids.

    Top-p keeps the most probable tokens until their sum reaches it, the one that crosses it included.
    """
    settings = torch.tensor([[s.temperature, s.top_p] for s in samplings], dtype=torch.float64, device=logits.device)
    temperature, top_p = settings.split(1, dim=1)  # [M, 1]
    probabilities = (logits.double() / temperature).softmax(-1)
    if all(sampling.top_p >= 1 for sampling in samplings):
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p, 0.0)
    kept = torch.zeros_like(probabilities).scatter_(-1, order, ordered)
    return kept / kept.sum(-1, keepdim=True)


def invert(probabilities: Tensor, draws: Sequence[float]) -> list[int]:
    """Inverse of the cumulative distribution. [M, V], M draws in [0, 1) -> M token ids, none of probability 0."""
    cumulative = probabilities.cumsum(-1)
    points = torch.tensor(draws, dtype=cumulative.dtype, device=cumulative.device)[:, None] * cumulative[:, -1:]
    tokens: list[int] = torch.searchsorted(cumulative, points, right=True)[:, 0].tolist()
    return tokens


def confirmed(proposals: Sequence[int], chosen: Sequence[int]) -> int:
    """How many drafted tokens equal the target's choice, from the first on."""
    for count, (proposal, token) in enumerate(zip(proposals, chosen, strict=False)):
        if proposal != token:
            return count
    return min(len(proposals), len(chosen))
