"""The target's own choice at every row, and how many drafted tokens it confirms.

Drafts are greedy, so a draft's distribution is a point mass on one token d. Exact rejection sampling (arXiv 2302.01318)
then accepts d with probability p(d) and otherwise draws from p without d, renormalised; p is what the request samples
from, after penalties, temperature and cuts. Drawing x from p and accepting d when x = d does precisely that: x = d has
probability p(d), and given x != d, x is distributed as p without d. Hence one rule for greedy and sampled text: *draw
the target's token for every row; drafted tokens are accepted as long as they equal it; the first that differs is
replaced by it.* The draw of position t depends on seed and t alone (see `chance`), so a seeded text is the same with
speculation and without.

This is the definition, in plain torch, and what a CPU runs; `kernels.draw` says the same on a GPU. Probabilities become
whole numbers before they are added: such sums do not depend on order, so a draw does not depend on how a device adds,
nor on how many rows share the batch.

Shapes: M rows, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem_worker.engine.request import Sampling
from tandem_worker.kernels.chance import ONE, halves, uniform


class Settings(NamedTuple):
    """What the requests of M rows ask for, [M] each."""

    temperature: Tensor  # float64; 0 is greedy
    top_k: Tensor  # int64; V where all tokens stay
    top_p: Tensor  # float64
    min_p: Tensor  # float64
    presence: Tensor  # float64, these penalties too
    frequency: Tensor
    repetition: Tensor
    seed_low: Tensor  # int64
    seed_high: Tensor

    @classmethod
    def of(cls, samplings: Sequence[Sampling], vocab: int, device: torch.device) -> Settings:
        seeds = [halves(one.seed) for one in samplings]

        def floats(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)

        def ints(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            floats([one.temperature for one in samplings]),
            ints([min(one.top_k or vocab, vocab) for one in samplings]),
            floats([one.top_p for one in samplings]),
            floats([one.min_p for one in samplings]),
            floats([one.presence_penalty for one in samplings]),
            floats([one.frequency_penalty for one in samplings]),
            floats([one.repetition_penalty for one in samplings]),
            ints([low for low, _ in seeds]),
            ints([high for _, high in seeds]),
        )


class Changes(NamedTuple):
    """What is done to logits [M, V] before anything is drawn from them."""

    bias: Tensor  # [M, V], added
    generated: Tensor  # [M, V] whole numbers: how often the text holds the token already, without the prompt
    prompt: Tensor  # [M, V] bool: the prompt holds it


def choose(logits: Tensor, settings: Settings, positions: Tensor, changes: Changes | None, cut: bool) -> Tensor:
    """The target's tokens [M]. logits [M, V]; positions [M] int64: where the tokens will stand.

    changes: None where no row has any. cut: whether a row may have top-k or top-p; either way other rows get the same.
    """
    weights = weigh(logits, settings, changes, cut)
    return draw(weights, uniform(settings.seed_low, settings.seed_high, positions))


def weigh(logits: Tensor, settings: Settings, changes: Changes | None = None, cut: bool = True) -> Tensor:
    """What is drawn from, as whole numbers in proportion to probabilities, [M, V] int64.

    In this order: bias; repetition, frequency and presence penalty; temperature; top-k; top-p; min-p. That is the order
    of transformers' processors. Top-k keeps all tokens that tie with the last of the k; top-p keeps the most probable
    tokens until their sum reaches it, the one that crosses it included, and all that tie with that one.
    """
    x = logits.double()
    if changes is not None:
        x = _changed(x, settings, changes)
    temperature = settings.temperature[:, None]
    greedy = temperature == 0
    best = x.argmax(-1, keepdim=True)  # the lowest token wins a tie
    x = x / torch.where(greedy, 1.0, temperature)
    likelihood = (x - x.amax(-1, keepdim=True)).exp()  # in proportion to the most probable token's
    weights = (likelihood * ONE).long()
    kept = weights >= (settings.min_p[:, None] * ONE).long()
    if cut:
        kept &= weights >= _least(weights, settings)
    only = torch.arange(x.shape[-1], device=x.device) == best
    return torch.where(greedy, only.long(), weights * kept)


def _changed(x: Tensor, settings: Settings, changes: Changes) -> Tensor:
    """Rows without penalties keep their bits: they are divided by 1, and 0 is subtracted."""
    repetition, present = settings.repetition[:, None], changes.generated > 0
    x = x + changes.bias
    repeated = torch.where(x > 0, x / repetition, x * repetition)  # arXiv 1909.05858
    x = torch.where(present | changes.prompt, repeated, x)
    return x - settings.frequency[:, None] * changes.generated - settings.presence[:, None] * present


def _least(weights: Tensor, settings: Settings) -> Tensor:
    """The smallest weight that top-k and top-p keep, [M, 1]."""
    ordered = weights.sort(-1, descending=True).values
    of_k = ordered.gather(-1, settings.top_k[:, None] - 1)
    among_k = torch.where(ordered >= of_k, ordered, 0)
    sums = among_k.cumsum(-1)
    top_p = settings.top_p[:, None]
    count = (sums - among_k < top_p * sums[:, -1:]).sum(-1, keepdim=True)  # tokens before which top-p is not reached
    of_p = ordered.gather(-1, (count - 1).clamp_min(0))
    return torch.where(top_p < 1, torch.maximum(of_k, of_p), of_k)


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse of the cumulative distribution. [M, V], [M] in [0, 1) -> [M] tokens, none of weight 0."""
    sums = weights.cumsum(-1)
    points = (uniforms * sums[:, -1]).long().minimum(sums[:, -1] - 1)
    return (sums <= points[:, None]).sum(-1)


def confirmed(proposals: Sequence[int], chosen: Sequence[int]) -> int:
    """How many drafted tokens equal the target's choice, from the first on."""
    for count, (proposal, token) in enumerate(zip(proposals, chosen, strict=False)):
        if proposal != token:
            return count
    return min(len(proposals), len(chosen))
