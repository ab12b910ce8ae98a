"""Greedy continuations by the target alone, all prompts side by side.

Shapes: B sequences, R rows of this forward, S positions that the cache holds, Hq and Hk heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tandem_worker.models.layers import attend_with_sinks
from tandem_worker.models.llama import Llama


class DenseCache:
    """Keys [B, S, Hk, D] and values [B, S, Hk, Dv] of B sequences, per layer; serves as the models' `attend`.

    Prompts of unequal length are padded on the right. What padding wrote at a position is written over when the
    sequence gets there, and nothing looks further than its own position before.
    """

    def __init__(self, llama: Llama, batch: int, length: int) -> None:
        self.length, self.layers = length, dict[int, tuple[Tensor, Tensor]]()  # made by the first rows of each
        self.sequences = torch.arange(batch, device=llama.model.embed_tokens.weight.device)[:, None]
        self.positions: Tensor  # [B, R] of this forward

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, sinks: Tensor | None = None
    ) -> Tensor:
        if layer not in self.layers:
            keys, values = (x.new_zeros((len(x), self.length, *x.shape[2:])) for x in (k, v))
            self.layers[layer] = keys, values
        keys, values = self.layers[layer]
        keys[self.sequences, self.positions], values[self.sequences, self.positions] = k, v
        reach = int(self.positions.max()) + 1
        back = self.positions[:, None, :, None] - torch.arange(reach, device=q.device)  # [B, 1, R, S]
        seen = (back >= 0) & (back < (window or reach))
        q, keys, values = (x.transpose(1, 2) for x in (q, keys[:, :reach], values[:, :reach]))
        return attend_with_sinks(q, keys, values, seen, sinks).transpose(1, 2)


def continue_greedily(llama: Llama, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """Each prompt with up to `new_tokens` more; a text that ends (eos) is cut there."""
    device = llama.model.embed_tokens.weight.device
    rows = pad(prompts, device)  # [B, R]
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    cache = DenseCache(llama, len(prompts), rows.shape[1] + new_tokens)
    positions = torch.arange(rows.shape[1], device=device).expand_as(rows)
    last = lengths - 1
    made: list[Tensor] = []
    for step in range(new_tokens):
        cache.positions = positions
        x, _ = llama(rows, positions, cache)
        newest = llama.head(x[cache.sequences, last[:, None]])[:, 0].argmax(-1)  # [B]
        made.append(newest)
        rows, positions, last = newest[:, None], (lengths + step)[:, None], torch.zeros_like(last)
    continuations = torch.stack(made, 1).tolist()
    ends = set(llama.target.eos_token_ids)
    return [prompt + _until_end(more, ends) for prompt, more in zip(prompts, continuations, strict=True)]


def pad(texts: list[list[int]], device: torch.device) -> Tensor:
    """[B, longest]; zeros on the right, which causal attention does not see."""
    return pad_sequence([torch.tensor(text, device=device) for text in texts], batch_first=True)


def _until_end(tokens: list[int], ends: set[int]) -> list[int]:
    for i, token in enumerate(tokens):
        if token in ends:
            return tokens[: i + 1]
    return tokens
