"""A pair that the builtin engine runs, as the probe sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tandem_worker.checkpoint import Checkpoint, Drafter, Target
from tandem_worker.checks.resolution import resolve

if TYPE_CHECKING:
    from tandem_worker.contract import Resolution


@dataclass(frozen=True)
class Pair:
    target: Target
    drafter: Drafter
    target_checkpoint: Checkpoint
    drafter_checkpoint: Checkpoint
    trained_on: tuple[int, ...] | None = None

    @cached_property
    def resolution(self) -> Resolution:
        return resolve(self.target, self.drafter, self.target_checkpoint, self.drafter_checkpoint)
