"""DeepSeek-V3 (arXiv 2412.19437), Kimi-K2, and the text model of Kimi-K2.5: latent attention, first layers with a plain
MLP, then experts with a shared one.

The router scores experts by sigmoids. A learned bias is added for the choice alone, never to the weights: it keeps the
experts evenly busy. Experts stand in groups; only the best groups, by the sum of their two best experts, are chosen
from. Weights are the chosen experts' scores, normalised and scaled. Routing is float32 whatever the layer's dtype.

Shapes as in `moe`; G groups.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tandem_worker.checkpoint.description import Moe, Target
from tandem_worker.models.layers import MLP, Attend, RMSNorm, Rope
from tandem_worker.models.llama import Llama
from tandem_worker.models.mla import LatentAttention
from tandem_worker.models.moe import Experts


class SigmoidRouter(nn.Module):
    def __init__(self, hidden: int, moe: Moe) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(moe.experts, hidden))
        self.e_score_correction_bias = nn.Parameter(torch.empty(moe.experts))
        self.moe = moe

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        moe = self.moe
        scores = F.linear(rows.float(), self.weight.float()).sigmoid()  # [M, E]
        choice = (scores + self.e_score_correction_bias.float()).unflatten(-1, (moe.groups, -1))  # [M, G, E / G]
        best_of_group = choice.topk(min(2, choice.shape[-1])).values.sum(-1)  # [M, G]
        kept = torch.zeros_like(best_of_group, dtype=torch.bool)
        kept.scatter_(1, best_of_group.topk(moe.best_groups).indices, True)
        chosen = choice.masked_fill(~kept[..., None], -math.inf).flatten(1).topk(moe.per_token).indices  # [M, k]
        weights = scores.gather(1, chosen)
        if moe.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * moe.scale


class SharedAndRouted(Experts):
    def __init__(self, hidden: int, moe: Moe) -> None:
        super().__init__(MLP(hidden, moe.intermediate_size) for _ in range(moe.experts))
        self.gate = SigmoidRouter(hidden, moe)
        self.shared_experts = MLP(hidden, moe.intermediate_size * moe.shared) if moe.shared else None

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        chosen, weights = self.gate(rows)
        return chosen, weights

    def forward(self, x: Tensor) -> Tensor:
        routed = self.routed(x)
        return routed if self.shared_experts is None else routed + self.shared_experts(x)


class DeepseekV3Layer(nn.Module):
    def __init__(self, target: Target, index: int) -> None:
        super().__init__()
        hidden, eps = target.hidden_size, target.rms_norm_eps
        assert target.mla is not None
        assert target.moe is not None
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = LatentAttention(hidden, hidden, target.heads, target.mla, eps, target.rope_scaling)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        dense = index in target.moe.dense_layers
        self.mlp = MLP(hidden, target.intermediate_size) if dense else SharedAndRouted(hidden, target.moe)

    def forward(self, layer: int, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(layer, self.input_layernorm(x), rotary, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class DeepseekV3(Llama):
    @staticmethod
    def decoder_layer(target: Target, index: int) -> nn.Module:
        return DeepseekV3Layer(target, index)

    @staticmethod
    def rotary(target: Target) -> Rope:
        assert target.mla is not None
        return Rope(target.rope_theta, target.mla.rope_head, target.rope_scaling)
