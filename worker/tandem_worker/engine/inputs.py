"""The small integers that the host lays out for kernels. Where they stand on the device never changes, since graphs
read them there; all of them take one copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Inputs:
    def __init__(self, sizes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        """Arrays by name. Of the last one, which may be large, `send` can leave out rows at the end."""
        counts = [prod(size) for size in sizes.values()]
        self._host = np.zeros(sum(counts), dtype=np.int32)
        self._there = torch.zeros(sum(counts), dtype=torch.int32, device=device)
        self._last = sum(counts[:-1])
        places = [slice(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True)]
        self.host: dict[str, NDArray[np.int32]] = {
            name: self._host[place].reshape(size) for (name, size), place in zip(sizes.items(), places, strict=True)
        }
        self.device: dict[str, Tensor] = {
            name: self._there[place].view(size) for (name, size), place in zip(sizes.items(), places, strict=True)
        }

    def clear(self) -> None:
        self._host[:] = 0

    def send(self, rows: int) -> None:
        """With so many rows of the last array. The host's arrays are free again afterwards."""
        *_, last = self.host.values()
        end = self._last + prod(last[:rows].shape)
        self._there[:end].copy_(torch.from_numpy(self._host[:end]))
