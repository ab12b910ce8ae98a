"""Random numbers that depend on a request's seed and a token's position, and on nothing else.

Philox2x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): ten rounds of multiplication and
exclusive or turn a counter and a key into 64 random bits. The counter is the position and the seed's upper half, the
key its lower half. There is no state to keep, so a draw does not depend on what was drawn before, or beside it. Whole
numbers only, so every device gives the same bits. Here in plain torch; `draw` does the same for one row.
"""

from __future__ import annotations

import torch
from torch import Tensor

MULTIPLIER, WEYL, ROUNDS = 0xD256D193, 0x9E3779B9, 10
MASK = 0xFFFFFFFF
"""32-bit words are kept in int64: products of two wrap around, but their bits are those of an unsigned product."""

ONE = float(1 << 42)
"""The weight of a row's most probable token. 2**20 tokens of it still fit 64 bits; what is less probable than it by
2**42 is never drawn."""


def halves(seed: int) -> tuple[int, int]:
    """Lower and upper 32 bits of any whole number's last 64."""
    return seed & MASK, seed >> 32 & MASK


def philox(low: Tensor, high: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Counter and key as words in int64 -> two random words."""
    for i in range(ROUNDS):
        product = low * MULTIPLIER
        low, high = (product >> 32 & MASK) ^ (key + i * WEYL & MASK) ^ high, product & MASK
    return low, high


def uniform(seed_low: Tensor, seed_high: Tensor, position: Tensor) -> Tensor:
    """[M] each, int64 -> [M] in [0, 1), float64; 53 bits, so that it never rounds up to 1."""
    first, second = philox(position, seed_high, seed_low)
    return ((first << 21) | (second >> 11)).to(torch.float64) * 2.0**-53
