"""Which part of a target one GPU of several holds (*tensor parallelism*).

A rank has whole heads and columns of the MLP: q, k, v, gate and up are cut by their outputs, the attention's output and
down by their inputs, so that what they give is one rank's part of a sum. Everything else is there on each of them:
embedding and head (of which each multiplies by rows of its own), norms, the drafter.

The part is a target of its own with fewer heads and a narrower MLP, so a module made for it has parameters of the right
shapes, and how a parameter is cut shows in how its shape differs from the whole one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tandem_worker.checkpoint.description import Target
from tandem_worker.models.quantised import Kept


class Share(NamedTuple):
    rank: int = 0
    size: int = 1

    def of(self, target: Target) -> Target:
        """`checks.builtin.indivisible` says of what nothing may be left over."""
        return replace(
            target,
            heads=target.heads // self.size,
            kv_heads=target.kv_heads // self.size,
            intermediate_size=target.intermediate_size // self.size,
        )

    def cut(self, weight: Tensor, shape: Sequence[int]) -> Tensor:
        """The part of a weight, which has this shape. A copy, so that the whole one can be forgotten."""
        for dim, part in enumerate(shape):
            if part < weight.shape[dim]:
                return weight.narrow(dim, self.rank * part, part).clone(memory_format=torch.contiguous_format)
        return weight

    def cut_kept(self, kept: Kept, shape: Sequence[int]) -> Kept | None:
        """None where a block of inputs with one scale would be torn, or rows no longer begin at 16 bytes."""
        outputs, inputs = shape
        blocks = len(kept.scale) * inputs / kept.values.shape[1] if len(kept.scale) > 1 else 1
        if inputs % 16 or blocks % 1:
            return None
        return Kept(self.cut(kept.values, shape), self.cut(kept.scale, (int(blocks), outputs)))


WHOLE = Share()
