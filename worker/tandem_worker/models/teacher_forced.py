"""Drafts from every position of known sequences at once: what a probe replays each wiring with.

Speculation is lossless, so every wiring, however wrong, yields the target's own greedy text; wirings differ only in how
much of it they would have drafted. So the text is generated once and drafted at every position in K forwards.

Shapes: B sequences, T positions, H hidden size, D head size, K draft length, Vd draft vocabulary.
"""

from __future__ import annotations

import copy
from collections import defaultdict

import torch
from torch import Tensor
from torch.nn import functional as F

from tandem_worker.models.eagle3 import Eagle3
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


def draft_everywhere(
    drafter: Eagle3,
    tokens: Tensor,
    streams: list[Tensor],
    length: int,
    *,
    fused: bool = True,
    target_ids: Tensor | None = None,
    norm_before_residual: bool | None = None,
    norm_before_fc: bool | None = None,
    norm_output: bool | None = None,
    embedding: Tensor | None = None,
) -> Tensor:
    """Greedy drafts after every position t whose next token is known.

    tokens [B, T + 1]; streams: what is captured of the target's forward over tokens[:, :-1], in order, [B, T, H] each.
    Returns proposals [length, B, T]: entry [k, b, t] is proposed for token t + 2 + k of sequence b.

    The rest overrides the wiring: `fused` False takes the one stream given as the feature, without fc; `target_ids`
    [Vd] replaces draft id + d2t; `embedding` [V, H] replaces the drafter's table.
    """
    drafter = copy.copy(drafter)  # shares the parameters
    if norm_before_residual is not None:
        drafter.norm_before_residual = norm_before_residual
    if norm_before_fc is not None:
        drafter.norm_before_fc = norm_before_fc
    if norm_output is not None:
        drafter.norm_output = norm_output
    table = drafter.embed_tokens.weight if embedding is None else embedding
    target_ids = drafter.target_ids if target_ids is None else target_ids
    feature = drafter.fuse(streams) if fused else streams[0]
    newest, attend, proposals = tokens[:, 1:], UnrolledAttention(), []
    for j in range(length):
        positions = torch.arange(j, j + newest.shape[1], device=tokens.device).expand_as(newest)
        feature = drafter.step(F.embedding(newest, table), feature, positions, attend)
        newest = target_ids[drafter.head(feature).argmax(-1)]
        proposals.append(newest)
    return torch.stack(proposals)
