"""The parts that target and drafter share. Parameter names are the checkpoints' tensor names.

Everything works on blocks of rows: x [N, R, H] is N blocks of R rows each. For a whole-sequence forward a block is a
sequence; for the engine it is a *tile*, a fixed number of neighbouring positions of one request. Matrix products run
block by block (`Linear`), so the bits of a row depend on its place in its block and on nothing else in the batch.

Shapes: N blocks, R rows, H hidden size, D head size, Hq query heads, Hk key and value heads.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attend(Protocol):
    """Causal attention over what the caller keeps of earlier rows.

    layer counts from 0; q [N, R, Hq, D], k and v [N, R, Hk, D], rotated; returns [N, R, Hq, D].
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class CausalAttention:
    """Attention within each block, without a cache: a block is a whole sequence that starts at position 0."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


class Linear(nn.Linear):
    """y = x W^T, one product of R rows per block.

    BLAS picks another kernel, and so another order of summation, for another number of rows; one product over all N * R
    rows would make a row's bits depend on how many requests happen to run.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, self.weight.t().expand(len(x), -1, -1))


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rope(nn.Module):
    """Rotary embedding with split halves, as in Llama."""

    def __init__(self, theta: float, head_dim: int) -> None:
        super().__init__()
        self.theta, self.head_dim = theta, head_dim

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions [N, R] -> cosines and sines [N, R, 1, D], made once per forward. Angles are float32 always."""
        angles = positions[..., None, None] * _frequencies(self.theta, self.head_dim, positions.device)
        angles = torch.cat([angles, angles], -1)  # [N, R, 1, D]
        return angles.cos().to(dtype), angles.sin().to(dtype)


@cache
def _frequencies(theta: float, head_dim: int, device: torch.device) -> Tensor:
    """[D / 2]"""
    half = head_dim // 2
    with torch.inference_mode(False):  # kept for whatever mode asks next
        return theta ** (-torch.arange(half, dtype=torch.float32, device=device) / half)


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """x [N, R, heads, D]"""
    cosines, sines = rotary
    a, b = x.chunk(2, -1)
    return x * cosines + torch.cat([-b, a], -1) * sines


class Attention(nn.Module):
    def __init__(self, inputs: int, hidden: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = Linear(inputs, heads * head_dim)
        self.k_proj = Linear(inputs, kv_heads * head_dim)
        self.v_proj = Linear(inputs, kv_heads * head_dim)
        self.o_proj = Linear(heads * head_dim, hidden)

    def forward(self, layer: int, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        split = (-1, self.head_dim)
        q = rotate(self.q_proj(x).unflatten(-1, split), rotary)
        k = rotate(self.k_proj(x).unflatten(-1, split), rotary)
        v = self.v_proj(x).unflatten(-1, split)
        return self.o_proj(attend(layer, q, k, v).flatten(2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, intermediate)
        self.up_proj = Linear(hidden, intermediate)
        self.down_proj = Linear(intermediate, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
