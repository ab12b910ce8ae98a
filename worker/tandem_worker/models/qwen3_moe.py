"""Qwen3-MoE: Qwen3 with experts in place of the MLP, chosen by the softmax over all of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tandem_worker.checkpoint.description import Moe, Target
from tandem_worker.models.layers import MLP
from tandem_worker.models.llama import Llama
from tandem_worker.models.moe import Experts
from tandem_worker.models.qwen3 import Qwen3Layer


class SoftmaxRouter(nn.Module):
    def __init__(self, hidden: int, moe: Moe) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(moe.experts, hidden))
        self.moe = moe

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.linear(rows, self.weight).float().softmax(-1)  # [M, E]
        weights, chosen = scores.topk(self.moe.per_token)
        if self.moe.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return chosen, weights.to(rows.dtype)


class SparseBlock(Experts):
    def __init__(self, hidden: int, moe: Moe) -> None:
        super().__init__(MLP(hidden, moe.intermediate_size) for _ in range(moe.experts))
        self.gate = SoftmaxRouter(hidden, moe)

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        chosen, weights = self.gate(rows)
        return chosen, weights

    def forward(self, x: Tensor) -> Tensor:
        return self.routed(x)


class Qwen3MoeLayer(Qwen3Layer):
    def __init__(self, target: Target, index: int) -> None:
        super().__init__(target)
        assert target.moe is not None
        if index not in target.moe.dense_layers:
            self.mlp = SparseBlock(target.hidden_size, target.moe)


class Qwen3Moe(Llama):
    @staticmethod
    def decoder_layer(target: Target, index: int) -> nn.Module:
        return Qwen3MoeLayer(target, index)
