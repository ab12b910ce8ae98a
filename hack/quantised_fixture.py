"""Writes tests/unit/data/compressed_tensors.safetensors: matrices that compressed-tensors quantised, packed and read
back, as the values that Tandem's reading must equal. Needs `pip install compressed-tensors`, which is why the file is
kept.

    python hack/quantised_fixture.py tests/unit/data/compressed_tensors.safetensors
"""

from __future__ import annotations

import sys

import torch
from compressed_tensors import __version__  # type: ignore[import-not-found]
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32  # type: ignore[import-not-found]
from compressed_tensors.quantization import QuantizationArgs  # type: ignore[import-not-found]
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize  # type: ignore[import-not-found]
from safetensors.torch import save_file
from torch import Tensor

ROWS, COLUMNS = 6, 64


def packed(bits: int, group: int | None, dtype: torch.dtype) -> dict[str, Tensor]:
    weight = torch.randn(ROWS, COLUMNS).to(dtype)
    strategy = "group" if group else "channel"
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy=strategy, group_size=group)
    largest = weight.view(ROWS, -1, group or COLUMNS).abs().amax(-1)
    scale = (largest / (2 ** (bits - 1) - 1)).to(dtype)
    values = quantize(weight, scale, None, args, dtype=torch.int8)
    read_back = dequantize(values, scale, None, args)
    return {"weight_packed": pack_to_int32(values, bits), "weight_scale": scale, "weight": read_back}


def float8(strategy: str) -> dict[str, Tensor]:
    weight = torch.randn(ROWS, COLUMNS).bfloat16()
    args = QuantizationArgs(num_bits=8, type="float", symmetric=True, strategy=strategy)
    largest = weight.abs().amax(-1, keepdim=True) if strategy == "channel" else weight.abs().amax().view(1)
    scale = (largest / torch.finfo(torch.float8_e4m3fn).max).bfloat16()
    values = quantize(weight, scale, None, args, dtype=torch.float8_e4m3fn)
    return {"values": values, "weight_scale": scale, "weight": dequantize(values, scale, None, args)}


if __name__ == "__main__":
    torch.manual_seed(0)
    cases = {
        "int4": packed(4, 32, torch.bfloat16),
        "int8": packed(8, 32, torch.bfloat16),
        "int4_channel": packed(4, None, torch.float16),
        "fp8_channel": float8("channel"),
        "fp8_tensor": float8("tensor"),
    }
    tensors = {f"{name}.{part}": tensor for name, parts in cases.items() for part, tensor in parts.items()}
    save_file(tensors, sys.argv[1], {"made_by": f"compressed-tensors {__version__}"})
