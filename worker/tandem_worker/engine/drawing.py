"""What requests sample with, kept on the device for `kernels.draw`, which takes the place of the most probable tokens
with what is drawn, so that everything behind it is the same. Greedy requests keep theirs.

A round whose requests are all greedy knows nothing of this.

Shapes: B requests, M rows, V tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tandem_worker.engine.request import Request, Sampling
from tandem_worker.kernels.chance import halves
from tandem_worker.kernels.draw import ALONE, BIASED, DRAWS, PENALISES, REALS, WHOLES, Scratch, draw

if TYPE_CHECKING:
    from tandem_worker.engine.round_state import State
    from tandem_worker.kernels.choice import Best

NOBODY = Sampling(max_tokens=0)


class Drawing:
    def __init__(self, batch: int, rows: int, vocab: int, device: torch.device) -> None:
        """rows: that are drawn from together, at most."""
        self.vocab, self.device = vocab, device
        self.reals = torch.zeros(batch, len(REALS), dtype=torch.float64, device=device)
        self.wholes = torch.zeros(batch, len(WHOLES), dtype=torch.int64, device=device)
        self.bias = torch.zeros(batch, vocab, device=device)
        self.generated = torch.zeros(batch, vocab, dtype=torch.int32, device=device)
        self.prompt = torch.zeros(batch, vocab, dtype=torch.bool, device=device)
        self._alone = torch.zeros(batch, dtype=torch.bool, device=device)  # takes no drafts
        self._scratch = Scratch(vocab, rows, device)

    def write(self, requests: Sequence[Request], rows: int) -> None:
        """The first `rows` requests, of which the last ones may be nobody's. Only while no round is in flight."""
        samplings = [request.sampling for request in requests] + [NOBODY] * (rows - len(requests))
        wholes = [self._wholes(one) for one in samplings]
        self.reals[:rows] = self._there([[getattr(one, name) for name in REALS] for one in samplings], np.float64)
        self.wholes[:rows] = self._there(wholes, np.int64)
        self._alone[:rows] = self._there([flags & ALONE != 0 for *_, flags in wholes], np.bool_)
        for kept in (self.bias, self.generated, self.prompt):
            kept[:rows].zero_()
        biases = [(row, *pair) for row, request in enumerate(requests) for pair in request.sampling.logit_bias]
        if biases:
            owners, tokens, values = (np.asarray(some) for some in zip(*biases, strict=True))
            self.bias.view(-1)[self._there(owners * self.vocab + tokens, np.int64)] = self._there(values, np.float32)
        penalised = [(row, request) for row, request in enumerate(requests) if request.sampling.penalises]
        if penalised:
            self.prompt.view(-1)[self._places_of((row, one.prompt) for row, one in penalised)] = True
            places = self._places_of((row, one.tokens[len(one.prompt) :]) for row, one in penalised)
            self.generated.view(-1).scatter_add_(0, places, torch.ones_like(places, dtype=torch.int32))

    def draw(
        self, logits: Tensor, best: Best, rows: int, owners: Tensor, nths: Tensor, tokens: Tensor, lengths: Tensor
    ) -> None:
        """Puts what is drawn into `best`. logits [M, V]; the rest as in `kernels.draw`."""
        changes = (self.bias, self.generated, self.prompt)
        draw(logits, best, rows, owners, nths, tokens, lengths, self.reals, self.wholes, changes, self._scratch)

    def refuse(self, state: State) -> None:
        """Drafts that are not wanted become wrong ones: after `draw`, which reads drafts, and before acceptance."""
        batch, t = state.tokens.shape
        if t > 1:
            state.tokens[:, 1].masked_fill_(self._alone[:batch], -1)

    def count(self, state: State) -> None:
        """After acceptance: what was generated in this round."""
        batch, t = state.chosen.shape
        kept = torch.arange(t, device=self.device) <= state.result[:, :1]
        self.generated[:batch].scatter_add_(1, state.chosen.long(), kept.int())

    def _wholes(self, sampling: Sampling) -> tuple[int, int, int, int]:
        flags = 0 if sampling.greedy else DRAWS
        flags |= (BIASED if sampling.logit_bias else 0) | (PENALISES if sampling.penalises else 0)
        flags |= 0 if sampling.speculate else ALONE
        return min(sampling.top_k or self.vocab, self.vocab), *halves(sampling.seed), flags

    def _places_of(self, texts: Iterable[tuple[int, Sequence[int]]]) -> Tensor:
        """Of (request, its tokens), in [B * V]."""
        places = [row * self.vocab + np.asarray(text, np.int64) for row, text in texts]
        return self._there(np.concatenate(places), np.int64)

    def _there(self, values: object, dtype: type) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype)).to(self.device)
