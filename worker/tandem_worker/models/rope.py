"""Rotary frequencies, plain and stretched to longer texts.

Stretching slows the rotations down. Llama-3 slows those of long wavelengths by the whole factor, those of short ones
not at all, and blends in between (as `transformers` does for rope_type llama3). YaRN (arXiv 2309.00071) does so by the
number of turns that a dimension makes within the texts of pretraining, and sharpens attention by a factor.

D head size.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from tandem_worker.checkpoint.description import RopeScaling


@cache
def frequencies(theta: float, head_dim: int, scaling: RopeScaling | None, device: torch.device) -> Tensor:
    """[D / 2], float32: the angle by which each pair turns per position."""
    half = head_dim // 2
    with torch.inference_mode(False):  # kept for whatever mode asks next
        plain = theta ** (-torch.arange(half, dtype=torch.float32, device=device) / half)
        if scaling is None:
            return plain
        if scaling.kind == "linear":
            return plain / scaling.factor
        keep = _llama3(plain, scaling) if scaling.kind == "llama3" else _yarn(theta, head_dim, scaling).to(device)
        return plain * keep + plain / scaling.factor * (1 - keep)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """[D / 2]: how much of each frequency is kept, 1 for short wavelengths, 0 for long ones."""
    turns = scaling.original_positions * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((turns - low) / (high - low)).clamp(0, 1)


def _yarn(theta: float, head_dim: int, scaling: RopeScaling) -> Tensor:
    """The same for YaRN: a ramp over the dimensions, from `beta_fast` turns down to `beta_slow`."""

    def dimension(turns: float) -> float:
        return head_dim * math.log(scaling.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    return 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)


def attention_factor(scaling: RopeScaling | None) -> float:
    """YaRN's, of cosines and sines: attention grows with its square."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.factor, scaling.mscale) / magnitude(scaling.factor, scaling.mscale_all_dim)
    return magnitude(scaling.factor, 1.0)


def magnitude(factor: float, mscale: float) -> float:
    """YaRN's temperature for texts `factor` times as long."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0
