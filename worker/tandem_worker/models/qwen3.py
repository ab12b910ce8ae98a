"""Qwen3: Llama whose queries and keys are normed, head by head, before they are rotated."""

from __future__ import annotations

from torch import nn

from tandem_worker.checkpoint.description import Target
from tandem_worker.models.layers import Attention
from tandem_worker.models.llama import DecoderLayer, Llama, heads_of


class Qwen3Layer(DecoderLayer):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        heads = heads_of(target, norm_eps=target.rms_norm_eps)
        self.self_attn = Attention(target.hidden_size, target.hidden_size, heads)


class Qwen3(Llama):
    @staticmethod
    def decoder_layer(target: Target, index: int) -> nn.Module:
        return Qwen3Layer(target)
