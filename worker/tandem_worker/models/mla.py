"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), with keys and values expanded: what a forward over whole
texts needs. (A cache would keep the latent and the shared rotated key only.)

Shapes as in `layers`; D = nope + rope parts of a query or key head, Dv value head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem_worker.checkpoint.description import Mla, RopeScaling
from tandem_worker.models.layers import Attend, Linear, RMSNorm, rotate
from tandem_worker.models.rope import magnitude


class LatentAttention(nn.Module):
    def __init__(
        self, inputs: int, hidden: int, heads: int, sizes: Mla, eps: float, scaling: RopeScaling | None
    ) -> None:
        super().__init__()
        self.sizes, self.head_dim = sizes, sizes.nope_head + sizes.rope_head
        self.sharpening = 1.0
        if scaling is not None and scaling.mscale_all_dim:  # YaRN's temperature, for the unrotated part of scores too
            self.sharpening = magnitude(scaling.factor, scaling.mscale_all_dim) ** 2
        self.q_proj = self.q_a_proj = self.q_a_layernorm = self.q_b_proj = None
        if sizes.q_lora is None:
            self.q_proj = Linear(inputs, heads * self.head_dim)
        else:
            self.q_a_proj = Linear(inputs, sizes.q_lora)
            # transformers takes 1e-6 for the latents' norms whatever the config says; the engines take the config's.
            self.q_a_layernorm = RMSNorm(sizes.q_lora, eps)
            self.q_b_proj = Linear(sizes.q_lora, heads * self.head_dim)
        self.kv_a_proj_with_mqa = Linear(inputs, sizes.kv_lora + sizes.rope_head)
        self.kv_a_layernorm = RMSNorm(sizes.kv_lora, eps)
        self.kv_b_proj = Linear(sizes.kv_lora, heads * (sizes.nope_head + sizes.value_head))
        self.o_proj = Linear(heads * sizes.value_head, hidden)

    def forward(
        self, layer: int, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """`rows` as in `layers.Attention`."""
        sizes, asking, turned = self.sizes, x, rotary
        if rows is not None:
            asking, turned = x[:, rows], (rotary[0][:, rows], rotary[1][:, rows])
        q_nope, q_rope = (
            self._queries(asking).unflatten(-1, (-1, self.head_dim)).split([sizes.nope_head, sizes.rope_head], -1)
        )
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([sizes.kv_lora, sizes.rope_head], -1)
        expanded = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (-1, sizes.nope_head + sizes.value_head))
        k_nope, v = expanded.split([sizes.nope_head, sizes.value_head], -1)
        k_rope = self._rotate(k_rope[:, :, None], rotary).expand(-1, -1, k_nope.shape[2], -1)  # one for all heads
        q = torch.cat([q_nope, self._rotate(q_rope, turned)], -1) * self.sharpening
        return self.o_proj(attend(layer, q, torch.cat([k_nope, k_rope], -1), v).flatten(2))

    def _queries(self, x: Tensor) -> Tensor:
        if self.q_proj is not None:
            return self.q_proj(x)
        assert self.q_a_proj is not None
        assert self.q_a_layernorm is not None
        assert self.q_b_proj is not None
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))

    def _rotate(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Interleaved pairs are sorted into halves first: the same for queries and keys, so no score changes."""
        if self.sizes.interleaved:
            x = torch.cat([x[..., 0::2], x[..., 1::2]], -1)
        return rotate(x, rotary)
