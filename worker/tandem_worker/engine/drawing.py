"""What the requests of rounds sample with, kept on the device, and how it changes what a round decides.

A round whose requests are all greedy knows nothing of this. In any other, the target's tokens are drawn by
`sampling.choose` behind the kernels that find the most probable ones, and take their place, so everything that follows
is the same. Greedy requests in such a round keep the kernels' tokens.

Shapes: B requests, T = K + 1 rows each, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tandem_worker.engine.request import Request, Sampling
from tandem_worker.engine.sampling import Changes, Settings, choose

if TYPE_CHECKING:
    from tandem_worker.engine.round_state import State
    from tandem_worker.kernels.choice import Best

ROWS_AT_ONCE = 32
"""Rows are drawn from in portions: in between, each takes some 50 bytes for a token of the vocabulary."""

NOBODY = Sampling(max_tokens=0)


class Drawing:
    def __init__(self, batch: int, vocab: int, device: torch.device) -> None:
        self.settings = Settings.of([NOBODY] * batch, vocab, device)
        self.bias = torch.zeros(batch, vocab, device=device)
        self.generated = torch.zeros(batch, vocab, dtype=torch.int32, device=device)
        self.prompt = torch.zeros(batch, vocab, dtype=torch.bool, device=device)
        self.greedy = torch.ones(batch, dtype=torch.bool, device=device)
        self.alone = torch.zeros(batch, dtype=torch.bool, device=device)  # takes no drafts
        self.vocab, self.device = vocab, device

    def write(self, requests: Sequence[Request], rows: int) -> None:
        """The first `rows` rows, of which the last ones may be nobody's. Only while no round is in flight."""
        samplings = [request.sampling for request in requests] + [NOBODY] * (rows - len(requests))
        for kept, new in zip(self.settings, Settings.of(samplings, self.vocab, self.device), strict=True):
            kept[:rows] = new
        self.greedy[:rows] = self._tensor([one.greedy for one in samplings])
        self.alone[:rows] = self._tensor([not one.speculate for one in samplings])
        for kept in (self.bias, self.generated, self.prompt):
            kept[:rows].zero_()
        for row, request in enumerate(requests):
            if bias := request.sampling.logit_bias:
                tokens, values = zip(*bias, strict=True)
                self.bias[row, self._tensor(tokens)] = self._tensor(values)
            if request.sampling.penalises:
                generated = self._tensor(request.tokens[len(request.prompt) :]).long()
                self.generated[row].scatter_add_(0, generated, torch.ones_like(generated, dtype=torch.int32))
                self.prompt[row, self._tensor(request.prompt)] = True

    def decide(self, logits: Tensor, best: Best, state: State) -> None:
        """Puts what is drawn into `best`, as the only candidate of its row. logits [B * T, V]."""
        batch, t = state.tokens.shape
        rows = torch.arange(batch * t, device=self.device)
        drawn = torch.cat([self._draw(logits, portion, state) for portion in rows.split(ROWS_AT_ONCE)])
        probable = best.most_probable(batch * t)  # negative where logits are broken
        chosen = torch.where(self.greedy[rows // t] | (probable < 0), probable, drawn.int())
        best.replace(chosen)
        if t > 1:  # a draft that is not wanted becomes one that is wrong
            wrong = (chosen.view(batch, t)[:, 0] + 1) % self.vocab
            state.tokens[:, 1] = torch.where(self.alone[:batch], wrong, state.tokens[:, 1])

    def _draw(self, logits: Tensor, rows: Tensor, state: State) -> Tensor:
        t = state.tokens.shape[1]
        owners, nth = rows // t, rows % t
        drafted = state.tokens[owners, 1:].long()  # [rows, K], of which a row's text holds the first `nth`
        held = torch.arange(t - 1, device=self.device) < nth[:, None]
        generated = self.generated[owners].scatter_add_(1, drafted, held.int())
        changes = Changes(self.bias[owners], generated, self.prompt[owners])
        positions = state.lengths[owners].long() + 1 + nth
        return choose(logits[rows], self.settings.rows(owners), positions, changes, cut=True)

    def count(self, state: State) -> None:
        """After acceptance: what was generated in this round."""
        batch, t = state.chosen.shape
        kept = torch.arange(t, device=self.device) <= state.result[:, :1]
        self.generated[:batch].scatter_add_(1, state.chosen.long(), kept.int())

    def _tensor(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=self.device)
