"""A mixture of experts: each token visits the few experts that a router chooses, and mixes what they say.

Only experts that some token of the forward visits are opened. In a large target they are most of the weights, so that
the streamed forward opens them from disk, one at a time (`Opener`).

Shapes: x [N, R, H]; M = N R tokens, E experts, k of them per token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn


class Opener(Protocol):
    """Where experts come from that are not in memory."""

    def announce(self, experts: Collection[int]) -> None:
        """These will be opened, in this order."""

    def open(self, expert: int) -> Callable[[Tensor], Tensor]:
        """Rows [1, M, H] -> [1, M, H]."""


class Experts(nn.Module, ABC):
    """The routed experts. Subclasses bring a router and what else the layer adds."""

    def __init__(self, experts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.opener: Opener | None = None  # None: they are in memory

    @abstractmethod
    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows [M, H] -> experts [M, k] and their weights [M, k]."""

    def routed(self, x: Tensor) -> Tensor:
        """[N, R, H] -> [N, R, H]."""
        rows = x.flatten(0, 1)  # [M, H]
        chosen, weights = self.route(rows)
        hit = chosen.unique().tolist()
        if self.opener:
            self.opener.announce(hit)
        total = torch.zeros_like(rows)
        for expert in hit:
            token, slot = torch.where(chosen == expert)
            run = self.opener.open(expert) if self.opener else self.experts[expert]
            said = run(rows[token][None])[0]  # [tokens of this expert, H]
            total.index_add_(0, token, (said * weights[token, slot, None]).to(total.dtype))
            del run  # it may hold the expert's weights, and the next one's are about to come
        return total.view_as(x)
