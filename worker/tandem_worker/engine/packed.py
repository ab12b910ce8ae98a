"""Weights as the kernels want them: products that share an input are one matrix.

Packing happens once and keeps one copy: the modules' parameters become views of the packed matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tandem_worker.kernels.linear import Linear, Role
from tandem_worker.models import layers as models
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.layers import MLP, Attention, Rope
from tandem_worker.models.llama import Llama
from tandem_worker.models.share import WHOLE, Share


@dataclass(frozen=True)
class Layer:
    qkv: Linear  # [(Hq + 2 Hk) D, inputs]
    out: Linear  # [H, Hq D]
    gate_up: Linear  # [2 I, H]
    down: Linear  # [H, I]
    input_gain: Tensor  # [H]
    mlp_gain: Tensor  # [H]
    bias: Tensor | None  # [(Hq + 2 Hk) D] of q, k and v
    head_gains: tuple[Tensor, Tensor] | None  # [D] each, of q's and k's heads


@dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: Rope


@dataclass(frozen=True)
class PackedTarget:
    shape: Shape
    embedding: Tensor  # [V, H]
    layers: tuple[Layer, ...]
    gain: Tensor  # [H] of the final norm
    head: Linear  # [V, H], or a rank's rows of it


@dataclass(frozen=True)
class PackedDrafter:
    shape: Shape
    embedding: Tensor  # [V, H]
    fc: Linear  # [H, streams * H of the target]
    layer: Layer
    gains: tuple[Tensor, Tensor]  # of embedding and feature
    gain: Tensor  # [H] of the final norm
    head: Linear  # [Vd, H]
    ids: Tensor  # [Vd] int32, the target's
    norm_first: bool
    stream_gains: tuple[Tensor, ...]  # [slots, W] each: norms of the streams before fc, one after the other
    norm_output: bool


def pack_target(llama: Llama, share: Share = WHOLE) -> PackedTarget:
    """`llama` is the share already, but for its head, of which rows are taken here."""
    target, body = llama.target, llama.model
    shape = Shape(
        target.hidden_size,
        target.intermediate_size,
        target.heads,
        target.kv_heads,
        target.head_dim,
        target.rms_norm_eps,
        llama.rope,
    )
    decoder_layers: Any = body.layers
    splits = 1 if share.size > 1 else 0  # the ranks are splits of out and down themselves
    layers = tuple(
        _layer(layer.self_attn, layer.mlp, layer.input_layernorm.weight, layer.post_attention_layernorm.weight, splits)
        for layer in decoder_layers
    )
    rows = llama.lm_head.weight.chunk(share.size)[share.rank]
    return PackedTarget(shape, body.embed_tokens.weight, layers, body.norm.weight, Linear(rows, Role.HEAD))


def pack_drafter(eagle3: Eagle3) -> PackedDrafter:
    drafter, middle = eagle3.drafter, eagle3.midlayer
    shape = Shape(
        drafter.hidden_size,
        drafter.intermediate_size,
        drafter.heads,
        drafter.kv_heads,
        drafter.head_dim,
        drafter.rms_norm_eps,
        eagle3.rope,
    )
    assert isinstance(middle.self_attn, Attention)  # nothing else is served (`checks.builtin.unserved`)
    gains = middle.input_layernorm.weight, middle.hidden_norm.weight
    return PackedDrafter(
        shape,
        eagle3.embed_tokens.weight,
        Linear(eagle3.fc.weight, Role.OUT),
        _layer(middle.self_attn, middle.mlp, gains[0], middle.post_attention_layernorm.weight),
        gains,
        eagle3.norm.weight,
        Linear(eagle3.lm_head.weight, Role.HEAD),
        eagle3.target_ids.to(torch.int32),
        eagle3.norm_before_residual,
        _stream_gains(eagle3),
        eagle3.norm_output,
    )


def _stream_gains(eagle3: Eagle3) -> tuple[Tensor, ...]:
    gains = []
    if eagle3.fc_norm is not None:
        norms: Any = eagle3.fc_norm
        gains.append(torch.stack([norm.weight for norm in norms]))
    if eagle3.norm_before_fc:
        assert eagle3.input_norm is not None  # only a probe switches it on without weights
        gains.append(eagle3.input_norm.weight[None])
    return tuple(gains)


def _layer(attention: Attention, mlp: MLP, input_gain: Tensor, mlp_gain: Tensor, splits: int = 0) -> Layer:
    """splits: of out and down."""
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    biases: list[Tensor] = [projection.bias for projection in projections if projection.bias is not None]
    head_gains = None
    if attention.q_norm is not None and attention.k_norm is not None:
        head_gains = attention.q_norm.weight, attention.k_norm.weight
    return Layer(
        _pack(projections, Role.QKV, input_gain.dtype),
        _pack([attention.o_proj], Role.OUT, input_gain.dtype, splits),
        _pack([mlp.gate_proj, mlp.up_proj], Role.GATE_UP, input_gain.dtype),
        _pack([mlp.down_proj], Role.DOWN, input_gain.dtype, splits),
        input_gain,
        mlp_gain,
        torch.cat(biases) if biases else None,
        head_gains,
    )


def _pack(linears: Sequence[models.Linear], role: Role, dtype: torch.dtype, splits: int = 0) -> Linear:
    """One matrix, in 8 bits where all are so in the same way; else in `dtype`."""
    if len({(linear.weight.dtype, len(linear.scale) if linear.scale is not None else 0) for linear in linears}) > 1:
        for linear in linears:
            linear.weight, linear.scale = nn.Parameter(linear.plain(dtype), requires_grad=False), None
    scales = [linear.scale for linear in linears if linear.scale is not None]
    scale = torch.cat(scales, 1) if scales else None  # [blocks, all outputs]
    if len(linears) == 1:
        return Linear(linears[0].weight, role, scale, splits)
    packed = torch.cat([linear.weight.view(torch.uint8) for linear in linears]).view(linears[0].weight.dtype)
    first = 0
    for linear in linears:
        rows = slice(first, first + linear.out_features)
        linear.weight = nn.Parameter(packed[rows], requires_grad=False)
        linear.scale = scale[:, rows] if scale is not None else None
        first = rows.stop
    return Linear(packed, role, scale, splits)
