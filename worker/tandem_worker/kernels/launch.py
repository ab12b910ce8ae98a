"""How kernels are started.

On Hopper, a kernel is launched while the one before it still runs (*programmatic dependent launch*): it says at once
that its own follower may come (`gdc_launch_dependents`) and waits (`gdc_wait`) before it touches anything that a kernel
wrote. Before the wait only true constants may be read: weights, gains, rotary tables, and what the host copied before
the launch of the graph. Every kernel has to wait, or the chain of waits breaks for those behind it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


@cache
def is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int, **constants: Any) -> None:
    dependent = is_hopper()
    options = {"launch_pdl": True} if dependent else {}
    kernel[grid](*arguments, PDL=dependent, num_warps=warps, **constants, **options)


def descriptor(tensor: Tensor, block: list[int], gluon: bool) -> Any:
    """What the copy engine needs to know of a tensor to fetch blocks of it."""
    if not gluon:
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor.from_tensor(tensor, block)
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    assert tensor.dtype is torch.bfloat16
    return GluonDescriptor.from_tensor(tensor, block, layout)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The smallest one that is not below n."""
    return 1 << (n - 1).bit_length()
