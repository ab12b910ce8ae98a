"""What a streamed forward has left, with the target's embedding and head, which are read as far as they are asked for.

Shapes as in `stream`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from tandem_worker.checkpoint import Checkpoint, CheckpointError, Target, TensorInfo
from tandem_worker.checkpoint.errors import error
from tandem_worker.checkpoint.files import readable
from tandem_worker.checkpoint.header import rows_of
from tandem_worker.checkpoint.source import EMBEDDING, HEAD, Source, Stored
from tandem_worker.finding import Verdict
from tandem_worker.models.reader import Reader, torch_dtype

HEAD_BLOCK_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Streamed:
    """Tensors are in host memory and in `dtype`; `device` is where logits are computed.

    Tokens of all rows lie behind each other: row r is `states[i][starts[r] : starts[r + 1]]`.
    """

    checkpoint: Checkpoint
    target: Target
    tokens: Tensor  # [T]
    starts: tuple[int, ...]  # one more than rows: the last is T
    states: dict[int, Tensor]  # capture index -> [T, H], those that were wanted
    final: Tensor  # [T, H], after the final norm: what the head reads
    dtype: torch.dtype
    device: torch.device
    _kept: dict[int, Tensor] = field(default_factory=dict, repr=False)  # the head's blocks on a GPU with room for them

    def rows(self, states: Tensor) -> list[Tensor]:
        """[T, ...] -> one tensor for each row of tokens."""
        return list(states.split([end - start for start, end in pairwise(self.starts)]))

    @cached_property
    def embedding(self) -> Tensor:
        """[V, H] as stored, on the CPU; not in memory until its rows are looked at."""
        return mapped(self._stored(EMBEDDING).parts[0])

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, H], normed like `final` -> [M, V] float32 on `device`. Mind the size: 4 M V bytes."""
        return torch.cat([block for _, block in self.logit_blocks(hidden)], -1)

    @torch.inference_mode()
    def logit_blocks(self, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The same in blocks of columns, (first token id, [M, columns] float32): the head is read once for all of M."""
        hidden = hidden.to(self.device, self.dtype)
        for first, weight in self._head_blocks():
            logits = (hidden @ weight.T).float()
            check_finite(logits, self.target.layers, {self._head: weight}, self.checkpoint)
            yield first, logits

    @torch.inference_mode()
    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows [len(ids), H] of the head, on `device`. It is read from end to end: rows that lie apart would cost a
        cold disk one access each.
        """
        ids = ids.to(self.device)
        rows = torch.empty(len(ids), self.target.hidden_size, device=self.device, dtype=self.dtype)
        for first, weight in self._head_blocks():
            inside = (ids >= first) & (ids < first + len(weight))
            rows[inside] = weight[ids[inside] - first]
        return rows

    def _head_blocks(self) -> Iterator[tuple[int, Tensor]]:
        """(first token id, rows [block, H]). Now that the layers are gone, a GPU keeps them where they take at most a
        quarter of what is free.
        """
        info = self._head.parts[0]
        columns = max(1, HEAD_BLOCK_BYTES // (self.target.hidden_size * self.dtype.itemsize))
        firsts = range(0, self.target.vocab_size, columns)
        blocks = {first: rows_of(info, first, min(first + columns, self.target.vocab_size)) for first in firsts}
        keep = self.device.type == "cuda" and 4 * (info.end - info.start) < torch.cuda.mem_get_info(self.device)[0]
        with Reader(2 * HEAD_BLOCK_BYTES, self.device.type == "cuda") as reader:
            reader.expect(block for first, block in blocks.items() if first not in self._kept)
            for first, block in blocks.items():
                weight = self._kept.get(first)
                if weight is None:
                    weight = reader.take(block).to(self.device).to(self.dtype)
                    if keep:
                        self._kept[first] = weight
                yield first, weight

    @cached_property
    def _head(self) -> Stored:
        return self._stored(EMBEDDING if self.target.tie_word_embeddings else HEAD)

    def _stored(self, name: str) -> Stored:
        shape = self.target.vocab_size, self.target.hidden_size
        (stored,) = Source(self.checkpoint).stored([(name, shape)])
        return stored


def mapped(info: TensorInfo) -> Tensor:
    """A tensor of a file as memory that the kernel fills on access and may drop again. Raises CheckpointError."""
    first = info.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with readable(info.file), info.file.open("rb") as stream:
        # Torch wants memory that may be written to. Only this much of it, since the kernel has to vouch for that.
        pages = mmap.mmap(stream.fileno(), info.end - first, access=mmap.ACCESS_COPY, offset=first)
    dtype = torch_dtype(info)
    count = (info.end - info.start) // dtype.itemsize
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=info.start - first).view(info.shape)


def check_finite(x: Tensor, layer: int, weights: Mapping[Stored, Tensor], checkpoint: Checkpoint) -> None:
    """Raises CheckpointError (DoesNotFit) when x is not finite, naming the one of `weights` that is to blame."""
    if torch.isfinite(x).all():
        return
    for stored, weight in weights.items():
        bad = int((~torch.isfinite(weight)).sum())
        if bad:
            info = stored.parts[-1]  # of a quantised weight the scale: its values are integers, or 8-bit floats
            finding = error(
                "TDM-NAN-LOGITS",
                f"The target's states are not finite: {info.name} holds {bad} values that are NaN or infinite.",
                file=info.file,
                where=info.name,
                found=f"{bad} of {weight.numel()} values",
                action="Restore the file, or use an earlier checkpoint.",
            )
            raise CheckpointError(finding, verdict=Verdict.DOES_NOT_FIT)
    finding = error(
        "TDM-NAN-LOGITS",
        f"The target's states are not finite behind layer {layer} although its weights are: it overflows.",
        file=checkpoint.path,
        where=f"model.layers.{layer}",
        action="Check the scale of the weights and the dtype they were trained in.",
    )
    raise CheckpointError(finding, verdict=Verdict.DOES_NOT_FIT)
