"""What every static check looks at: a pair, described and resolved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tandem_worker.checkpoint import Checkpoint, Drafter, Target, TensorInfo
from tandem_worker.checkpoint.tensors import INTEGERS, Array, read_tensor
from tandem_worker.checks.resolution import drafter_parameters, resolve
from tandem_worker.contract import Finding, Resolution

T2D_DTYPES = INTEGERS | {"BOOL": "?"}


@dataclass(frozen=True)
class Pair:
    """H hidden size of the drafter, V target vocabulary, Vd draft vocabulary."""

    target: Target
    drafter: Drafter
    target_checkpoint: Checkpoint
    drafter_checkpoint: Checkpoint
    trained_on: tuple[int, ...] | None = None

    @cached_property
    def resolution(self) -> Resolution:
        return resolve(self.target, self.drafter, self.target_checkpoint, self.drafter_checkpoint)

    @cached_property
    def parameters(self) -> Mapping[str, TensorInfo]:
        """Drafter parameter -> the tensor of the drafter's files that fills it."""
        return drafter_parameters(self.drafter_checkpoint)

    @property
    def reduced_vocabulary(self) -> bool:
        return self.drafter.draft_vocab_size != self.drafter.vocab_size

    @cached_property
    def d2t(self) -> Array | None:
        """Offsets [Vd] as integers, when they are there in a form that can be read."""
        return self._small_vector("d2t", INTEGERS)

    @cached_property
    def t2d(self) -> Array | None:
        """Which target ids can be drafted, as booleans [V]."""
        values = self._small_vector("t2d", T2D_DTYPES)
        return None if values is None else values.astype(bool)

    def _small_vector(self, name: str, dtypes: Mapping[str, str]) -> Array | None:
        tensor = self.parameters.get(name)
        if tensor is None or len(tensor.shape) != 1 or tensor.dtype not in dtypes:
            return None
        return read_tensor(tensor)


Check = Callable[[Pair], Iterable[Finding]]
