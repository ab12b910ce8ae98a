"""Many texts of a model at once: what its drafter learns from.

All texts of a batch are written side by side, each to its end or to the same column, in a cache of a fixed size. There
is nobody to admit and nothing to answer in time, so none of what an engine does in between is needed; a step costs
what the GPU needs for it.

Shapes: B texts, C columns, V vocabulary; a group are the G = Hq / Hk query heads that share a key head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tandem_worker.models.llama import Llama

LOOK_EVERY = 16
"""Steps between two looks at whether all texts have ended, which wait for the GPU."""


class Sheet:
    """Keys and values of B texts, which end at the same column: text b begins at column first[b]."""

    def __init__(self, llama: Llama, first: Tensor, columns: int) -> None:
        target = llama.target
        like = llama.lm_head.weight
        self.texts, self.at = len(first), 0
        shape = (target.layers, self.texts, target.kv_heads, columns, target.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2))
        self.columns = torch.arange(columns, device=like.device)
        self.begun = self.columns >= first[:, None]  # [B, C]
        self.mask = self.begun  # of the rows that are being written, [B, 1, G * R, C so far]

    def begin(self, rows: int, group: int) -> None:
        """Of a forward over so many rows of each text. A row always sees itself, also before its text: what sees
        nothing is no number."""
        end = self.at + rows
        own, seen = self.columns[self.at : end, None], self.columns[None, :end]
        mask = (seen <= own) & self.begun[:, None, :end] | (seen == own)  # [B, R, end]
        self.mask = mask.repeat(1, group, 1)[:, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [1, B * R, Hq, D], k and v [1, B * R, Hk, D] -> [1, B * R, Hq, D]. Rows of a group stand one below the
        other, so that keys are not repeated for each of its heads."""
        _, rows, heads, d = q.shape
        r, kv_heads = rows // self.texts, k.shape[2]
        end = self.at + r
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self.at : end] = k.view(self.texts, r, kv_heads, d).transpose(1, 2)
        values[:, :, self.at : end] = v.view(self.texts, r, kv_heads, d).transpose(1, 2)
        query = q.view(self.texts, r, kv_heads, -1, d).permute(0, 2, 3, 1, 4).reshape(self.texts, kv_heads, -1, d)
        y = F.scaled_dot_product_attention(query, keys[:, :, :end], values[:, :, :end], attn_mask=self.mask)
        return y.view(self.texts, kv_heads, -1, r, d).permute(0, 3, 1, 2, 4).reshape(1, rows, heads, d)


@torch.inference_mode()
def write(llama: Llama, prompts: Sequence[Sequence[int]], greedy: Sequence[bool], longest: int) -> list[list[int]]:
    """What the model says after each prompt, greedily or sampled at temperature 1: `longest` tokens at most, an end
    token included."""
    device, ends = llama.lm_head.weight.device, torch.tensor(llama.target.eos_token_ids)
    width = max(map(len, prompts))
    first = torch.tensor([width - len(prompt) for prompt in prompts], device=device)
    tokens = torch.tensor([[0] * (width - len(prompt)) + [*prompt] for prompt in prompts], device=device)  # [B, R]
    plain, ends = torch.tensor(greedy, device=device)[:, None], ends.to(device)
    sheet, said = Sheet(llama, first, width + longest), list[Tensor]()
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for step in range(longest):
        logits = _after(llama, sheet, tokens)
        # Gumbel's trick: the largest of logits less log(E), E exponential, is a draw from their softmax.
        drawn = logits - torch.empty_like(logits).exponential_().log()
        tokens = torch.where(plain, logits, drawn).argmax(-1, keepdim=True)  # [B, 1]
        said.append(tokens)
        ended |= torch.isin(tokens[:, 0], ends)
        if step % LOOK_EVERY == 0 and bool(ended.all()):
            break
    return [_to_end(text, llama.target.eos_token_ids) for text in torch.cat(said, 1).tolist()]


def _after(llama: Llama, sheet: Sheet, tokens: Tensor) -> Tensor:
    """The next columns' tokens [B, R] -> float32 logits behind the last of them, [B, V]."""
    target, (texts, rows) = llama.target, tokens.shape
    sheet.begin(rows, target.heads // target.kv_heads)
    positions = (sheet.at + torch.arange(rows, device=tokens.device)).repeat(texts)[None]
    x, _ = llama(tokens.reshape(1, -1), positions, sheet)  # one block: there is no bit to keep here
    sheet.at += rows
    return llama.head(x.view(texts, rows, -1)[:, -1][None])[0].float()


def _to_end(text: list[int], ends: Sequence[int]) -> list[int]:
    length = next((i + 1 for i, token in enumerate(text) if token in ends), len(text))
    return text[:length]
