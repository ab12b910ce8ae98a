"""The parts that target and drafter share. Parameter names are the checkpoints' tensor names.

Everything works on blocks of rows: x [N, R, H] is N blocks of R rows each. For a whole-sequence forward a block is a
sequence; for the engine it is a *tile*, a fixed number of neighbouring positions of one request. Matrix products run
block by block (`Linear`), so the bits of a row depend on its place in its block and on nothing else in the batch.

Shapes: N blocks, R rows, H hidden size, D head size, Hq query heads, Hk key and value heads.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tandem_worker.checkpoint.description import RopeScaling
from tandem_worker.models.quantised import Kept
from tandem_worker.models.rope import attention_factor, frequencies


class Attend(Protocol):
    """Causal attention over what the caller keeps of earlier rows.

    layer counts from 0; q [N, R, Hq, D], k and v [N, R, Hk, D], rotated; returns [N, R, Hq, D]. Where only some rows
    are asked for (the probe), q and what is returned have fewer rows than k and v.
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class CausalAttention:
    """Attention within each block, without a cache: a block is a whole sequence that starts at position 0.

    `window`: how many positions back a row sees, itself included. `sinks` [Hq]: a logit beside those of each head's
    keys, without a value.
    """

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, sinks: Tensor | None = None
    ) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if window is None and sinks is None:
            return fused_attention(q, k, v, None).transpose(1, 2)
        places = torch.arange(q.shape[2], device=q.device)
        back = places[:, None] - places  # [R, R]
        seen = (back >= 0) & (back < (window or len(places)))
        return attend_with_sinks(q, k, v, seen[None, None], sinks).transpose(1, 2)


def attend_with_sinks(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sinks: Tensor | None) -> Tensor:
    """q [N, Hq, R, D], k and v [N, Hk, S, D], seen [N or 1, 1, R, S] -> [N, Hq, R, D].

    A sink is one more key, of zeros, whose logit comes with the mask.
    """
    if sinks is None:
        return fused_attention(q, k, v, seen)
    k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    bias = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill(~seen, -math.inf)
    bias = bias.expand(-1, len(sinks), -1, -1)
    sink = sinks.to(q.dtype)[None, :, None, None].expand(len(bias), -1, bias.shape[2], 1)
    return fused_attention(q, k, v, torch.cat([bias, sink], -1))


NOT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """torch's own, causal without a mask.

    On Hopper it would be cuDNN's, which takes seconds to load from a disk and 10 ms to plan each new shape, of which a
    probe has many: all wirings of an 8B pair took 5.4 s with it, 1.7 without (H200).
    """
    with sdpa_kernel(NOT_CUDNN):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)


class Linear(nn.Linear):
    """y = x W^T + b, one product of R rows per block.

    BLAS picks another kernel, and so another order of summation, for another number of rows; one product over all N * R
    rows would make a row's bits depend on how many requests happen to run.

    A weight may be kept in 8 bits, with a scale: a GPU's kernels multiply by it, here it is restored each time.
    """

    scale: Tensor | None  # [blocks, outputs] float32, see `quantised.Kept`

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.register_buffer("scale", None, persistent=False)

    def keep(self, kept: Kept) -> None:
        self.weight, self.scale = nn.Parameter(kept.values, requires_grad=False), kept.scale

    def plain(self, dtype: torch.dtype) -> Tensor:
        return self.weight if self.scale is None else Kept(self.weight, self.scale).restored(dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.bmm(x, self.plain(x.dtype).t().expand(len(x), -1, -1))
        return y if self.bias is None else y + self.bias


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """On the meta device there is nothing to do, and torch would import its compiler to do it: more than a second
        of every start.
        """
        if not self.weight.is_meta:
            super().reset_parameters()


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rope(nn.Module):
    """Rotary embedding with split halves, as in Llama."""

    def __init__(self, theta: float, head_dim: int, scaling: RopeScaling | None = None) -> None:
        super().__init__()
        self.theta, self.head_dim, self.scaling = theta, head_dim, scaling
        self.factor = attention_factor(scaling)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions [N, R] -> cosines and sines [N, R, 1, D], made once per forward. Angles are float32 always."""
        angles = positions[..., None, None] * frequencies(self.theta, self.head_dim, self.scaling, positions.device)
        angles = torch.cat([angles, angles], -1)  # [N, R, 1, D]
        cosines, sines = angles.cos(), angles.sin()
        if self.factor != 1:
            cosines, sines = cosines * self.factor, sines * self.factor
        return cosines.to(dtype), sines.to(dtype)


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """x [N, R, heads, D]"""
    cosines, sines = rotary
    a, b = x.chunk(2, -1)
    return x * cosines + torch.cat([-b, a], -1) * sines


class Heads(NamedTuple):
    """What tells one family's attention from another's."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    norm_eps: float | None = None  # queries and keys are normed, head by head, before they are rotated (Qwen3)


class Attention(nn.Module):
    def __init__(self, inputs: int, hidden: int, sizes: Heads) -> None:
        super().__init__()
        heads, kv_heads, head_dim, bias, out_bias, norm_eps = sizes
        self.head_dim = head_dim
        self.q_proj = Linear(inputs, heads * head_dim, bias)
        self.k_proj = Linear(inputs, kv_heads * head_dim, bias)
        self.v_proj = Linear(inputs, kv_heads * head_dim, bias)
        self.o_proj = Linear(heads * head_dim, hidden, out_bias)
        self.q_norm = self.k_norm = None
        if norm_eps is not None:
            self.q_norm, self.k_norm = RMSNorm(head_dim, norm_eps), RMSNorm(head_dim, norm_eps)

    def forward(
        self, layer: int, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """`rows` [M]: all R rows are seen, these alone ask and are answered: [N, M, H]."""
        split, asking, turned = (-1, self.head_dim), x, rotary
        if rows is not None:
            asking, turned = x[:, rows], (rotary[0][:, rows], rotary[1][:, rows])
        q, k, v = (y.unflatten(-1, split) for y in (self.q_proj(asking), self.k_proj(x), self.v_proj(x)))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return self.o_proj(self.attended(attend, layer, rotate(q, turned), rotate(k, rotary), v).flatten(2))

    def attended(self, attend: Attend, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(layer, q, k, v)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, intermediate)
        self.up_proj = Linear(hidden, intermediate)
        self.down_proj = Linear(intermediate, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
