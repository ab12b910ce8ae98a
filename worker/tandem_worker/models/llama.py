"""The Llama family as a target: Llama, Mistral, SmolLM.

The *residual streams* are what a drafter is fed: stream i enters decoder layer i, 0 is the embedding, n leaves the last
layer and has not passed the final norm. Shapes as in `layers`; V vocabulary, n decoder layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tandem_worker.checkpoint.description import Target
from tandem_worker.models.layers import MLP, Attend, Attention, CausalAttention, Embedding, Heads, Linear, RMSNorm, Rope


def heads_of(target: Target, norm_eps: float | None = None) -> Heads:
    return Heads(target.heads, target.kv_heads, target.head_dim, target.qkv_bias, target.out_bias, norm_eps)


class DecoderLayer(nn.Module):
    def __init__(self, target: Target) -> None:
        super().__init__()
        hidden = target.hidden_size
        self.input_layernorm = RMSNorm(hidden, target.rms_norm_eps)
        self.self_attn = Attention(hidden, hidden, heads_of(target))
        self.post_attention_layernorm = RMSNorm(hidden, target.rms_norm_eps)
        self.mlp: nn.Module = MLP(hidden, target.intermediate_size)

    def forward(self, layer: int, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(layer, self.input_layernorm(x), rotary, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, target: Target, decoder_layer: Callable[[Target, int], nn.Module]) -> None:
        super().__init__()
        self.embed_tokens = Embedding(target.vocab_size, target.hidden_size)
        self.layers = nn.ModuleList(decoder_layer(target, i) for i in range(target.layers))
        self.norm = RMSNorm(target.hidden_size, target.rms_norm_eps)


class Llama(nn.Module):
    """Embedding, decoder layers, final norm, head. Other families put their own layers and rotary embedding in."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.model = Body(target, self.decoder_layer)
        self.lm_head = Linear(target.hidden_size, target.vocab_size)
        if target.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.rope = self.rotary(target)

    @staticmethod
    def decoder_layer(target: Target, index: int) -> nn.Module:
        return DecoderLayer(target)

    @staticmethod
    def rotary(target: Target) -> Rope:
        return Rope(target.rope_theta, target.head_dim, target.rope_scaling)

    def forward(
        self, tokens: Tensor, positions: Tensor, attend: Attend, capture: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """tokens and positions [N, R] -> last stream and the streams that `capture` names, [N, R, H] each.

        The head is a call of its own, because most rows of a prompt need none.
        """
        x = F.embedding(tokens, self.model.embed_tokens.weight)
        rotary = self.rope(positions, x.dtype)
        streams = {}
        for i, layer in enumerate(self.model.layers):
            if i in capture:
                streams[i] = x
            x = layer(i, x, rotary, attend)
        if self.target.layers in capture:
            streams[self.target.layers] = x
        return x, streams

    def head(self, x: Tensor) -> Tensor:
        """Last stream [N, R, H] -> logits [N, R, V]."""
        logits: Tensor = self.lm_head(self.model.norm(x))
        return logits

    def whole(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Without a cache: tokens [B, T] from position 0 -> logits [B, T, V] and all n + 1 streams, [B, T, H] each."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        indexes = range(self.target.layers + 1)
        x, streams = self(tokens, positions, CausalAttention(), indexes)
        return self.head(x), [streams[i] for i in indexes]
