"""Where the parameters of a target lie in its files, and how stored values become weights.

A model names its parameters as Llama's files do: `model.embed_tokens.weight`, `model.layers.3...`, `lm_head.weight`.
Multimodal checkpoints put the language model behind a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from tandem_worker.checkpoint import Checkpoint, CheckpointError, TensorInfo
from tandem_worker.checkpoint.errors import error, listed

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYOUTS = (  # what stands in the files for `model.`, and what for `lm_head.`
    ("model.", "lm_head."),
    ("language_model.model.", "language_model.lm_head."),
    ("model.language_model.", "lm_head."),
)


class Stored(NamedTuple):
    """A parameter and the tensors of the files that it is made of."""

    parameter: str
    parts: tuple[TensorInfo, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.end - part.start for part in self.parts)

    def weight(self, tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
        """From the parts as they are stored, on any device, to the weight in `dtype`."""
        (tensor,) = tensors
        return tensor.to(dtype)


class Source:
    """The parameters of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        found = [layout for layout in LAYOUTS if f"{layout[0]}embed_tokens.weight" in checkpoint.tensors]
        self._body, self._head = found[0] if found else LAYOUTS[0]

    def stored(self, parameters: Iterable[str]) -> list[Stored]:
        """Raises CheckpointError (CouldNotCheck) that names what the files lack."""
        names = list(parameters)
        missing = [name for name in names if self.key(name) not in self.checkpoint.tensors]
        if missing:
            message = f"The target {self.checkpoint.path} lacks {listed(map(self.key, missing))}."
            action = "Restore the checkpoint, or correct num_hidden_layers or tie_word_embeddings in its config."
            where = self.key(missing[0])
            raise CheckpointError(
                error("TDM-PARAMETER-MISSING", message, file=self.checkpoint.path, where=where, action=action)
            )
        return [Stored(name, (self.checkpoint.tensors[self.key(name)],)) for name in names]

    def key(self, parameter: str) -> str:
        """The parameter's name in the files."""
        if parameter.startswith("model."):
            return self._body + parameter.removeprefix("model.")
        return self._head + parameter.removeprefix("lm_head.")
