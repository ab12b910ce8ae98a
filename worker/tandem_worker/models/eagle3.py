"""The EAGLE-3 drafter (arXiv 2503.01840) with one Llama-style decoder layer.

Row t of the drafter joins what the target knew at position t with the token that came next:

    step 0      feature = fc(concatenated streams of position t), embedding of token t + 1  ->  proposal for token t + 2
    step j > 0  feature = the drafter's own hidden state of step j - 1, embedding of the token proposed last;
                its row counts as position t + j

The layer's attention reads [norm(embedding), norm(feature)], 2H wide; its residual stream is the feature, not the
embedding. The head has Vd rows, one per draft id; `target_ids` are the target's ids of them. Shapes as in `layers`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem_worker.checkpoint.description import Drafter
from tandem_worker.models.layers import MLP, Attend, Attention, Linear, RMSNorm, Rope


class MidLayer(nn.Module):
    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        hidden = drafter.hidden_size
        self.input_layernorm = RMSNorm(hidden, drafter.rms_norm_eps)  # of the embedding
        self.hidden_norm = RMSNorm(hidden, drafter.rms_norm_eps)  # of the feature
        self.self_attn = Attention(2 * hidden, hidden, drafter.heads, drafter.kv_heads, drafter.head_dim)
        self.post_attention_layernorm = RMSNorm(hidden, drafter.rms_norm_eps)
        self.mlp = MLP(hidden, drafter.intermediate_size)


class Eagle3(nn.Module):
    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter
        self.norm_before_residual = drafter.norm_before_residual
        self.embed_tokens = nn.Embedding(drafter.vocab_size, drafter.hidden_size)
        self.fc = Linear(len(drafter.capture_indexes) * drafter.target_hidden_size, drafter.hidden_size)
        self.midlayer = MidLayer(drafter)
        self.norm = RMSNorm(drafter.hidden_size, drafter.rms_norm_eps)
        self.lm_head = Linear(drafter.hidden_size, drafter.draft_vocab_size)
        self.rope = Rope(drafter.rope_theta, drafter.head_dim)
        self.d2t: Tensor  # [Vd] offsets: target id = draft id + d2t[draft id]
        self.register_buffer("d2t", torch.zeros(drafter.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(drafter.vocab_size, dtype=torch.bool))  # [V] which ids can be drafted

    @property
    def target_ids(self) -> Tensor:
        """[Vd]"""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def fuse(self, streams: list[Tensor]) -> Tensor:
        """Captured streams, in the order of the capture indexes, [N, R, H of the target] each -> feature [N, R, H]."""
        feature: Tensor = self.fc(torch.cat(streams, -1))
        return feature

    def step(self, embedding: Tensor, feature: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """embedding, feature [N, R, H], positions [N, R] -> hidden [N, R, H], which is the next step's feature."""
        layer = self.midlayer
        normed = layer.hidden_norm(feature)
        both = torch.cat([layer.input_layernorm(embedding), normed], -1)  # [N, R, 2H]
        x = normed if self.norm_before_residual else feature
        x = x + layer.self_attn(0, both, self.rope(positions, x.dtype), attend)
        hidden: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [N, R, H] -> logits over draft ids [N, R, Vd]."""
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits
