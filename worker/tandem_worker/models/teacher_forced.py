"""Attention of drafts from every position of known texts at once: what a probe replays each wiring with.

Shapes: B sequences, T positions, D head size.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from tandem_worker.models.layers import CausalAttention


class UnrolledAttention:
    """Of draft step j from all T positions at once.

    The query of position t sees the step-0 keys up to t and, of the later steps, only its own: what it would see if
    decoding had stopped at t.
    """

    def __init__(self) -> None:
        self.layers: defaultdict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        """Of each layer the keys and values of each step, [B, Hq, T, D]."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[2] // k.shape[2]
        query = q.transpose(1, 2)  # [B, Hq, T, D]
        key, value = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
        self.layers[layer].append((key, value))
        (k0, v0), *own = self.layers[layer]
        if not own:
            return CausalAttention()(layer, q, k, v)
        t = q.shape[1]
        ahead = torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1)
        shared = (query @ k0.transpose(-1, -2)).masked_fill(ahead, float("-inf"))  # [B, Hq, T, T]
        single = torch.stack([(query * own_key).sum(-1) for own_key, _ in own], -1)  # [B, Hq, T, j]
        weights = (torch.cat([shared, single], -1) * q.shape[-1] ** -0.5).softmax(-1)
        y = weights[..., :t] @ v0
        for i, (_, own_value) in enumerate(own):
            y = y + weights[..., t + i, None] * own_value
        return y.transpose(1, 2)
