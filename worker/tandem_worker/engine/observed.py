"""What really went into `fc` in a forward, beside everything that could have."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Observed:
    """The target's streams by index, [..., H] each, and the input of `fc`, [..., slots * H]. Rows correspond."""

    streams: dict[int, Tensor] = field(default_factory=dict)
    fc_input: Tensor | None = None
