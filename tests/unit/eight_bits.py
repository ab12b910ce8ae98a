"""Models in memory whose layers' matrices are rounded to 8 bits, and the models of floats that they stand for."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from tandem_worker.models.layers import Linear
from tandem_worker.models.llama import Llama
from tandem_worker.models.quantised import Kept


def rounded(weight: Tensor, columns: int | None = None, dtype: torch.dtype = torch.float8_e4m3fn) -> Kept:
    """Scales by output, and by block of so many columns."""
    blocks = weight.float().unflatten(1, (-1, columns or weight.shape[1]))
    largest = 127 if dtype is torch.int8 else 448
    scale = blocks.abs().amax(-1) / largest
    values = (blocks / scale[..., None]).flatten(1).clamp(-largest, largest)
    return Kept((values.round() if dtype is torch.int8 else values).to(dtype), scale.T.contiguous())


def round_layers(llama: Llama, columns: int | None = None) -> None:
    for module in llama.model.layers.modules():
        if isinstance(module, Linear):
            module.keep(rounded(module.weight, columns))


def twin(llama: Llama) -> Llama:
    """In the dtype of its norms."""
    copy = deepcopy(llama)
    for module in copy.modules():
        if isinstance(module, Linear):
            weight = module.plain(llama.model.norm.weight.dtype)
            module.weight, module.scale = nn.Parameter(weight, requires_grad=False), None
    return copy
