"""Drafts from every position of known texts at once, plainly written: what engine and probe are held to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.teacher_forced import UnrolledAttention


def draft_everywhere(drafter: Eagle3, tokens: Tensor, streams: list[Tensor], length: int) -> Tensor:
    """Greedy drafts after every position t whose next token is known.

    tokens [B, T + 1]; streams: what is captured of the target's forward over tokens[:, :-1], in order, [B, T, H] each.
    Returns proposals [length, B, T]: entry [k, b, t] is proposed for token t + 2 + k of sequence b.
    """
    feature = drafter.fuse(streams)
    newest, attend, proposals = tokens[:, 1:], UnrolledAttention(), []
    for j in range(length):
        positions = torch.arange(j, j + newest.shape[1], device=tokens.device).expand_as(newest)
        embedding = F.embedding(newest, drafter.embed_tokens.weight)
        feature = drafter.step(embedding, feature, positions, attend)
        newest = drafter.target_ids[drafter.head(feature).argmax(-1)]
        proposals.append(newest)
    return torch.stack(proposals)
