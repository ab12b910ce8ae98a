"""Attention of drafts from many positions of known texts at once: what a probe replays each wiring with.

Shapes: B sequences, T positions, J of them that drafts start from, D head size.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from tandem_worker.models.layers import CausalAttention, attend_with_sinks


class UnrolledAttention:
    """Of draft step j from J positions of each sequence at once.

    The query of position t sees the step-0 keys up to t and, of the later steps, only its own: what it would see if
    decoding had stopped at t. Step 0 gives keys for all T positions; layer `last` of a drafter asks for the J alone,
    the layers before it for all of them, since they feed it.
    """

    def __init__(self, places: Tensor | None = None, last: int = 0) -> None:
        """places [B, J]; None: drafts start from all positions."""
        self.places, self.last = places, last
        self.layers: defaultdict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        """Of each layer the keys and values of each step, [B, Hq, T, D] of step 0, [B, Hq, J, D] of the others."""

    def copy(self) -> UnrolledAttention:
        """To go on from here in another way; keys and values are shared."""
        other = UnrolledAttention(self.places, self.last)
        other.layers.update((layer, list(steps)) for layer, steps in self.layers.items())
        return other

    def keep(self, chosen: Tensor) -> None:
        """Only these drafts go on: chosen [B, J'], indexes into the J."""
        assert self.places is not None, "drafts from everywhere all go on"
        self.places = self.places.gather(1, chosen)
        for steps in self.layers.values():
            steps[1:] = [(_chosen(key, chosen), _chosen(value, chosen)) for key, value in steps[1:]]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[2] // k.shape[2]
        query = q.transpose(1, 2)  # [B, Hq, J, D]
        key, value = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
        self.layers[layer].append((key, value))
        (k0, v0), *own = self.layers[layer]
        t = k0.shape[2]
        seen = self._seen(t, q.device)  # [B or 1, 1, J, T]
        if not own:
            if self.places is None or layer < self.last:
                return CausalAttention()(layer, q, k, v)
            return attend_with_sinks(query, k0, v0, seen, None).transpose(1, 2)
        shared = (query @ k0.transpose(-1, -2)).masked_fill(~seen, float("-inf"))  # [B, Hq, J, T]
        single = torch.stack([(query * own_key).sum(-1) for own_key, _ in own], -1)  # [B, Hq, J, j]
        weights = (torch.cat([shared, single], -1) * q.shape[-1] ** -0.5).softmax(-1)
        y = weights[..., :t] @ v0
        for i, (_, own_value) in enumerate(own):
            y = y + weights[..., t + i, None] * own_value
        return y.transpose(1, 2)

    def _seen(self, length: int, device: torch.device) -> Tensor:
        every = torch.arange(length, device=device)
        places = every[None] if self.places is None else self.places
        return (every <= places[..., None])[:, None]


def _chosen(x: Tensor, chosen: Tensor) -> Tensor:
    """x [B, Hq, J, D] -> [B, Hq, J', D]"""
    index = chosen[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)
