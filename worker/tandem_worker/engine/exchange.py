"""What a target's forward takes from the other ranks (see `ranks`): their parts of sums, and of the head's rows.

Shapes: M rows, H hidden size, V tokens; W = V / ranks of them are a rank's own, in tiles of `choice.COLUMNS`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem_worker.engine.ranks import Ranks
from tandem_worker.kernels.choice import Best


class Exchange:
    def __init__(self, ranks: Ranks, sums: int, device: torch.device) -> None:
        """sums: floats of a rank's partials of a product, at most."""
        self.ranks, alone = ranks, ranks.group is None
        self._sums = torch.zeros(0 if alone else ranks.size * sums, dtype=torch.float32, device=device)

    def sums(self, own: Tensor, count: int, rows: int, hidden: int) -> tuple[Tensor, int]:
        """A rank's `count` partials [count, M, H] -> all that are to be added, and how many they are."""
        if self.ranks.group is None:
            return own, count
        size = count * rows * hidden
        whole = self._sums[: self.ranks.size * size]
        self.ranks.gather(own[:size], whole)
        return whole, self.ranks.size * count

    def best(self, own: Best, rows: int) -> Best:
        """The best of each tile of all ranks, in the order of tokens."""
        if self.ranks.group is None:
            return own
        parts = torch.stack([own.values[:rows].view(torch.int32), own.tokens[:rows]])  # [2, M, tiles]
        values, tokens = self._side_by_side(parts)
        return Best(values.view(torch.float32), tokens)

    def logits(self, own: Tensor) -> Tensor:
        """[M, W] -> [M, V]"""
        return own if self.ranks.group is None else self._side_by_side(own)

    def _side_by_side(self, own: Tensor) -> Tensor:
        """[..., n] -> [..., ranks * n]"""
        whole = own.new_empty(self.ranks.size, *own.shape)
        self.ranks.gather(own.contiguous(), whole)
        return whole.movedim(0, -2).flatten(-2).contiguous()
