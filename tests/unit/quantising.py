"""Weights as other libraries quantise them, with the floats that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tandem_worker.models.layers import Linear
from tandem_worker.models.llama import Llama
from unit.pairs import copy_of

BLOCK = [64, 48]  # of the tiny pair's widths 96 and 144: the last ones are cut off

Tensors = dict[str, Tensor]
Quantise = Callable[[Tensor], tuple[Tensors, Tensor]]
"""Of a matrix: the parts that are stored, and what they stand for."""


def int4(weight: Tensor, group: int = 32) -> tuple[Tensors, Tensor]:
    """Symmetric, packed; and what it stands for."""
    groups = weight.unflatten(-1, (-1, group))
    scale = (groups.abs().amax(-1) / 7).bfloat16()
    values = (groups / scale[..., None]).round().clamp(-8, 7).to(torch.int32)
    nibbles = (values.flatten(1) + 8).unflatten(-1, (-1, 8))
    packed = sum(nibbles[..., i].long() << 4 * i for i in range(8))
    assert isinstance(packed, Tensor)
    parts = {"weight_packed": packed.to(torch.uint32).view(torch.int32), "weight_scale": scale}
    return parts, (values.bfloat16() * scale[..., None]).flatten(1)


def scaled_by(spread: Tensor, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """8-bit values, and the floats that they stand for with their scales `spread` over the matrix."""
    limit = 127 if dtype is torch.int8 else 448
    values = (weight.float() / spread).clamp(-limit, limit)
    stored = (values.round() if dtype is torch.int8 else values).to(dtype)
    return stored, stored.float() * spread


def by_channel(weight: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensors, Tensor]:
    """compressed-tensors: a scale for each output, in bfloat16, as the products are."""
    scale = (weight.float().abs().amax(1, keepdim=True) / (127 if dtype is torch.int8 else 448)).bfloat16()
    values, meant = scaled_by(scale.float(), weight, dtype)
    return {"weight": values, "weight_scale": scale}, meant.bfloat16()


def by_channel_in_integers(weight: Tensor) -> tuple[Tensors, Tensor]:
    return by_channel(weight, torch.int8)


def by_tensor(weight: Tensor) -> tuple[Tensors, Tensor]:
    """Static: with a scale of the activations, which is not applied."""
    scale = weight.float().abs().max() / 448
    values, meant = scaled_by(scale, weight, torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scale, "input_scale": torch.tensor(0.37)}, meant


def by_block(weight: Tensor) -> tuple[Tensors, Tensor]:
    """DeepSeek's."""
    rows, columns = (-(-size // step) for size, step in zip(weight.shape, BLOCK, strict=True))
    scale = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows)) / 200 + 0.001
    spread = scale.repeat_interleave(BLOCK[0], 0)[: len(weight)].repeat_interleave(BLOCK[1], 1)[:, : weight.shape[1]]
    values, meant = scaled_by(spread, weight, torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": scale}, meant


def written(folder: Path, quantise: Quantise) -> tuple[Path, Path]:
    """The tiny pair's target with the matrices of its layers quantised, and the floats that these stand for."""
    config = {"quantization_config": {"quant_method": "any", "weight_block_size": BLOCK}}
    stored, meant = copy_of("target", folder / "stored", **config), copy_of("target", folder / "meant")
    tensors = load_file(stored / "model.safetensors")
    floats = dict(tensors)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        parts, floats[name] = quantise(tensors.pop(name))
        tensors |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
    save_file(tensors, stored / "model.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in floats.items()}, meant / "model.safetensors")
    return stored, meant


def twin(llama: Llama) -> Llama:
    """In the dtype of its norms."""
    copy = deepcopy(llama)
    for module in copy.modules():
        if isinstance(module, Linear):
            weight = module.plain(llama.model.norm.weight.dtype)
            module.weight, module.scale = nn.Parameter(weight, requires_grad=False), None
    return copy
