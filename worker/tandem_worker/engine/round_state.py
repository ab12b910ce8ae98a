"""What a round reads and moves on: the device's view of the requests that decode."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class State:
    """A round's state on the device, int32. Views for B requests with T rows each."""

    tokens: Tensor  # [B, T] newest and drafted
    lengths: Tensor  # [B] position of the newest
    chosen: Tensor  # [B, T] by the target
    last_rows: Tensor  # [B] last kept row
    result: Tensor  # [B, 2 T]
    turns: Tensor  # [B] rounds played, for forced acceptance
    forced: Tensor  # [FORCED]
    limit: int  # lengths stop there
