"""The EAGLE-3 drafter (arXiv 2503.01840), with what EAGLE-3.1 added: norms around `fc` and of what is fed back.

Row t of the drafter joins what the target knew at position t with the token that came next:

    step 0      feature = fc(concatenated streams of position t), embedding of token t + 1  ->  proposal for token t + 2
    step j > 0  feature = the drafter's own hidden state of step j - 1, embedding of the token proposed last;
                its row counts as position t + j

The first layer's attention reads [norm(embedding), norm(feature)], 2H wide; its residual stream is the feature, not the
embedding. Further layers, where there are any, are plain decoder layers. The head has Vd rows, one per draft id;
`target_ids` are the target's ids of them. Shapes as in `layers`; A captured streams, each Ht wide.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tandem_worker.checkpoint.description import Drafter
from tandem_worker.models.layers import MLP, Attend, Attention, Embedding, Heads, Linear, RMSNorm, Rope
from tandem_worker.models.mla import LatentAttention


def _attention(drafter: Drafter, inputs: int) -> Attention | LatentAttention:
    hidden, eps = drafter.hidden_size, drafter.rms_norm_eps
    if drafter.mla:
        return LatentAttention(inputs, hidden, drafter.heads, drafter.mla, eps, drafter.rope_scaling)
    sizes = Heads(drafter.heads, drafter.kv_heads, drafter.head_dim, drafter.qkv_bias, drafter.out_bias)
    return Attention(inputs, hidden, sizes._replace(norm_eps=eps if drafter.qk_norm else None))


class MidLayer(nn.Module):
    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        hidden = drafter.hidden_size
        self.input_layernorm = RMSNorm(hidden, drafter.rms_norm_eps)  # of the embedding
        self.hidden_norm = RMSNorm(hidden, drafter.rms_norm_eps)  # of the feature
        self.self_attn = _attention(drafter, 2 * hidden)
        self.post_attention_layernorm = RMSNorm(hidden, drafter.rms_norm_eps)
        self.mlp = MLP(hidden, drafter.intermediate_size)


class FurtherLayer(nn.Module):
    """Of a drafter of several layers. As in vLLM its input passes `input_layernorm`; SGLang takes `hidden_norm`, which
    files may or may not hold, and `normed_by` may be set to try that reading.
    """

    normed_by = "input_layernorm"

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        hidden = drafter.hidden_size
        self.input_layernorm = RMSNorm(hidden, drafter.rms_norm_eps)
        self.hidden_norm = RMSNorm(hidden, drafter.rms_norm_eps)
        self.self_attn = _attention(drafter, hidden)
        self.post_attention_layernorm = RMSNorm(hidden, drafter.rms_norm_eps)
        self.mlp = MLP(hidden, drafter.intermediate_size)

    def forward(
        self, layer: int, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        said = self.self_attn(layer, getattr(self, self.normed_by)(x), rotary, attend, rows)
        x = (x if rows is None else x[:, rows]) + said
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(nn.Module):
    """The flags `norm_before_residual`, `norm_before_fc`, `norm_output` may be set on a loaded drafter, to try the
    other reading; a norm that is switched on without weights has weights of one.
    """

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter
        self.norm_before_residual = drafter.norm_before_residual
        self.norm_before_fc = drafter.norm_before_fc
        self.norm_output = drafter.norm_output
        hidden, eps, streams = drafter.hidden_size, drafter.rms_norm_eps, len(drafter.capture_indexes)
        width = streams * drafter.target_hidden_size
        self.embed_tokens = Embedding(drafter.vocab_size, hidden)
        self.input_norm = RMSNorm(width, eps) if drafter.norm_before_fc else None
        self.fc_norm = None
        if drafter.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(drafter.target_hidden_size, eps) for _ in range(streams))
        self.fc = Linear(width, hidden, drafter.fc_bias)
        self.midlayer = MidLayer(drafter)
        self.layers = nn.ModuleDict({str(i): FurtherLayer(drafter) for i in range(1, drafter.layers)})
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = Linear(hidden, drafter.draft_vocab_size)
        rotated = drafter.mla.rope_head if drafter.mla else drafter.head_dim
        self.rope = Rope(drafter.rope_theta, rotated, drafter.rope_scaling)
        self.d2t: Tensor  # [Vd] offsets: target id = draft id + d2t[draft id]
        self.register_buffer("d2t", torch.zeros(drafter.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(drafter.vocab_size, dtype=torch.bool))  # [V] which ids can be drafted

    @property
    def target_ids(self) -> Tensor:
        """[Vd]"""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def fuse(self, streams: list[Tensor]) -> Tensor:
        """Captured streams, in the order of the capture indexes, [N, R, Ht] each -> feature [N, R, H]."""
        if self.fc_norm is not None:
            streams = [norm(stream) for norm, stream in zip(self.fc_norm, streams, strict=True)]
        joined = torch.cat(streams, -1)  # [N, R, A Ht]
        if self.norm_before_fc:
            gain = self.input_norm.weight if self.input_norm is not None else None
            joined = F.rms_norm(joined, joined.shape[-1:], gain, self.drafter.rms_norm_eps)
        feature: Tensor = self.fc(joined)
        return feature

    def step(
        self, embedding: Tensor, feature: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """embedding, feature [N, R, H], positions [N, R] -> hidden [N, R, H], which is the next step's feature.

        With `rows` [M] only these are computed to the end, [N, M, H]: of the others the last layer takes no more than
        keys and values.
        """
        layer, rotary = self.midlayer, self.rope(positions, feature.dtype)
        normed = layer.hidden_norm(feature)
        both = torch.cat([layer.input_layernorm(embedding), normed], -1)  # [N, R, 2H]
        x = normed if self.norm_before_residual else feature
        last, asked = self.drafter.layers - 1, rows if self.drafter.layers == 1 else None
        x = (x if asked is None else x[:, asked]) + layer.self_attn(0, both, rotary, attend, asked)
        hidden: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        for i, further in self.layers.items():
            hidden = further(int(i), hidden, rotary, attend, rows if int(i) == last else None)
        return self.norm(hidden) if self.norm_output else hidden

    def head(self, hidden: Tensor) -> Tensor:
        """What `step` gives, [N, R, H] -> logits over draft ids [N, R, Vd]."""
        logits: Tensor = self.lm_head(hidden if self.norm_output else self.norm(hidden))
        return logits
