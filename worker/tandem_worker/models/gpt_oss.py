"""gpt-oss: attention with sinks, in every other layer over a window; experts with biases and a clamped SwiGLU.

A *sink* is a learned logit for each head that takes its share of every softmax and has no value: a head may look at
nothing. Experts are stored stacked, in MXFP4 (`quantised`), inputs first, gate and up interleaved.

Shapes as in `layers` and `moe`; I width of an expert.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tandem_worker.checkpoint.description import GptOss, Target
from tandem_worker.models.layers import Attend, Attention, RMSNorm
from tandem_worker.models.llama import Llama, heads_of
from tandem_worker.models.moe import Experts


class SinkAttention(Attention):
    def __init__(self, target: Target, window: int | None) -> None:
        super().__init__(target.hidden_size, target.hidden_size, heads_of(target))
        self.sinks = nn.Parameter(torch.empty(target.heads))  # [Hq]
        self.window = window

    def attended(self, attend: Attend, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sinking: Any = attend  # whose `window` and `sinks` the engine's attention lacks: it does not serve gpt-oss
        y: Tensor = sinking(layer, q, k, v, window=self.window, sinks=self.sinks)
        return y


class Expert(nn.Module):
    def __init__(self, hidden: int, intermediate: int, extra: GptOss) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(hidden, 2 * intermediate))
        self.gate_up_proj_bias = nn.Parameter(torch.empty(2 * intermediate))
        self.down_proj = nn.Parameter(torch.empty(intermediate, hidden))
        self.down_proj_bias = nn.Parameter(torch.empty(hidden))
        self.alpha, self.limit = extra.swiglu_alpha, extra.swiglu_limit

    def forward(self, x: Tensor) -> Tensor:
        both = x @ self.gate_up_proj + self.gate_up_proj_bias  # [.., 2I]
        gate, up = both[..., 0::2].clamp(max=self.limit), both[..., 1::2].clamp(-self.limit, self.limit)
        active = gate * torch.sigmoid(gate * self.alpha) * (up + 1)
        return active @ self.down_proj + self.down_proj_bias


class TopRouter(nn.Module):
    """The softmax is over the chosen experts alone."""

    def __init__(self, hidden: int, experts: int, per_token: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.bias = nn.Parameter(torch.empty(experts))
        self.per_token = per_token

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        best = F.linear(rows, self.weight, self.bias).topk(self.per_token)
        return best.indices, best.values.softmax(-1)


class GptOssBlock(Experts):
    def __init__(self, target: Target) -> None:
        moe, extra = target.moe, target.gpt_oss
        assert moe is not None
        assert extra is not None
        hidden, intermediate = target.hidden_size, moe.intermediate_size
        super().__init__(Expert(hidden, intermediate, extra) for _ in range(moe.experts))
        self.router = TopRouter(hidden, moe.experts, moe.per_token)

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        chosen, weights = self.router(rows)
        return chosen, weights

    def forward(self, x: Tensor) -> Tensor:
        return self.routed(x)


class GptOssLayer(nn.Module):
    def __init__(self, target: Target, index: int) -> None:
        super().__init__()
        hidden, eps = target.hidden_size, target.rms_norm_eps
        assert target.gpt_oss is not None
        window = target.gpt_oss.window if index in target.gpt_oss.windowed_layers else None
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = SinkAttention(target, window)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = GptOssBlock(target)

    def forward(self, layer: int, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(layer, self.input_layernorm(x), rotary, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class GptOssModel(Llama):
    @staticmethod
    def decoder_layer(target: Target, index: int) -> nn.Module:
        return GptOssLayer(target, index)
