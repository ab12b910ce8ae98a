"""Stored integers and 8-bit floats into weights. Activations stay as they are: a scale of theirs is not applied.

    compressed-tensors, pack-quantized   weight_packed [O, I / 8] int32, 8 values of 4 bits in each, lowest bits first,
                                         stored with 8 added; weight_scale [O, I / group]; weight_shape
    FP8 of DeepSeek-V3                   weight [O, I] float8, weight_scale_inv [O / 128, I / 128] (it multiplies)
    FP8 and INT8 of compressed-tensors   weight [O, I], weight_scale [O, 1], or one for all
    MXFP4 of gpt-oss                     blocks [O, I / 32, 16] uint8, two values of 4 bits in each, lowest bits first;
                                         scales [O, I / 32] uint8, exponents of 2 with 127 added

O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem_worker.checkpoint.source import Stored


def weight_of(stored: Stored, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """From the parts as they are stored, on any device, to the weight in `dtype`."""
    values, *scale = tensors
    if not scale:
        return values.view(stored.shape).to(dtype)
    if values.dtype == torch.uint8:
        return mxfp4(values[0], scale[0][0]).T.to(dtype)  # stored outputs first, used inputs first
    if values.dtype == torch.int32:
        return unpacked(values, scale[0], stored.shape).to(dtype)
    return scaled(values, scale[0], stored.block).to(dtype)


class Kept(NamedTuple):
    """A weight that stays in 8 bits, as a GPU's kernels multiply by it."""

    values: Tensor  # [O, I] float8 or int8
    scale: Tensor  # [blocks, O] float32: of every output, for each block of I / blocks inputs

    def restored(self, dtype: torch.dtype) -> Tensor:
        """[O, I]: the products in float32, rounded once, as `kernels.gemm` makes them."""
        blocks = self.values.float().unflatten(1, (len(self.scale), -1))  # [O, blocks, I / blocks]
        return (blocks * self.scale.T[..., None]).flatten(1).to(dtype)


KEPT_COLUMNS = 128
"""Blocks of inputs with scales of their own are multiples of this, so that no tile of a kernel lies in two."""


def kept(stored: Stored, tensors: Sequence[Tensor]) -> Kept | None:
    """None for what kernels do not multiply by: it is to be restored when it is loaded."""
    values, *scales = tensors
    if not scales or values.dtype.itemsize > 1 or values.dtype == torch.uint8 or values.shape[1] % 16:
        return None  # the copy engine wants rows that begin at multiples of 16 bytes
    (outputs, inputs), (rows, columns) = values.shape, stored.block
    grid = scales[0].float()
    grid = grid.view(-1, 1) if grid.ndim < 2 else grid  # [1 or O or blocks of O, blocks]
    if grid.shape[1] > 1 and (columns % KEPT_COLUMNS or grid.shape[1] * columns != inputs):
        return None
    if grid.shape[0] == 1:
        grid = grid.expand(outputs, -1)
    elif grid.shape[0] != outputs:
        grid = grid.repeat_interleave(rows, 0)[:outputs]  # the last block may be cut off
    return Kept(values, grid.T.contiguous())


def unpacked(packed: Tensor, scale: Tensor, shape: Sequence[int]) -> Tensor:
    """Packed integers of 4 or 8 bits -> [O, I] in the scale's dtype, rounded in it as compressed-tensors rounds."""
    outputs, inputs = shape
    octets = packed.contiguous().view(torch.uint8)  # [O, 4 words]; least significant first on every machine that counts
    if packed.shape[1] * 4 >= inputs:  # 8 bits
        values = octets[:, :inputs].to(torch.int16) - 128
    else:
        values = torch.stack([octets & 15, octets >> 4], -1).flatten(1)[:, :inputs].to(torch.int8) - 8
    groups = scale.view(outputs, -1, 1)  # [O, groups, 1]
    return (values.to(scale.dtype).view(outputs, groups.shape[1], -1) * groups).view(outputs, inputs)


def scaled(weight: Tensor, scale: Tensor, block: Sequence[int]) -> Tensor:
    """8-bit values times the scale of their block, channel or tensor -> [O, I], in the scale's dtype (float32 for a
    scale of 8 bits), as compressed-tensors and transformers compute it.
    """
    grid = scale if scale.dtype.itemsize > 1 else scale.float()
    if grid.ndim == 1 and grid.numel() == len(weight):
        grid = grid[:, None]
    if grid.numel() > 1:
        for dim, (size, step) in enumerate(zip(weight.shape, block, strict=True)):
            if grid.shape[dim] not in (1, size):
                grid = grid.repeat_interleave(step, dim).narrow(dim, 0, size)  # the last block may be cut off
    return weight.to(grid.dtype) * grid


FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)  # by their bits, e2m1


def mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """-> [O, I] float32, exactly."""
    table = torch.tensor(FP4, device=blocks.device)
    values = table[torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()]  # [O, I / 32, 32]
    return torch.ldexp(values, scales.to(torch.int32)[..., None] - 127).flatten(-2)
