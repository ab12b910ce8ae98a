"""The target's forward over calibration tokens with one decoder layer in memory at a time.

A trillion-parameter target is probed in the memory of one of its layers: layer i's weights are read, applied to all
tokens, and dropped, while threads already read the next ones (`models.reader`). So a pass costs the time of reading
the weights once, on a CPU or on one GPU.

Memory: one layer in the dtype of the arithmetic on the device, its activations, and in host memory at most one layer
as it is stored, read ahead. The embedding is looked at through the page cache; the head is read in blocks of rows.

Shapes: T tokens of all rows, H hidden size, V vocabulary, n decoder layers.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tandem_worker.checkpoint import Checkpoint, CheckpointError, Target, TensorInfo, open_checkpoint, read_target
from tandem_worker.checkpoint.errors import error
from tandem_worker.finding import Verdict
from tandem_worker.models.families import FAMILIES
from tandem_worker.models.layers import CausalAttention, RMSNorm
from tandem_worker.models.reader import Reader, rows_of, torch_dtype
from tandem_worker.models.source import EMBEDDING, HEAD, NORM, Source, Stored

HEAD_BLOCK_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Progress:
    """After each layer."""

    layer: int  # layers that are done
    layers: int
    bytes_done: int  # of all layers' weights
    bytes_total: int
    bytes_per_second: float  # of this run
    seconds_left: float


@dataclass(frozen=True)
class Streamed:
    """What the pass has left. Tensors are in host memory and in `dtype`; `device` is where logits are computed.

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

    def rows(self, states: Tensor) -> list[Tensor]:
        """[T, ...] -> one tensor for each row of tokens."""
        return list(states.split([end - start for start, end in zip(self.starts, self.starts[1:], strict=False)]))

    @cached_property
    def embedding(self) -> Tensor:
        """[V, H] as stored, on the CPU; not in memory until its rows are looked at."""
        (stored,) = Source(self.checkpoint).stored([EMBEDDING])
        return mapped(stored.parts[0])

    @cached_property
    def head(self) -> Tensor:
        """[V, H] as stored, on the CPU; not in memory until its rows are looked at."""
        return mapped(self._head().parts[0])

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids of any shape -> [..., H] on `device`."""
        return F.embedding(tokens.cpu(), self.embedding).to(self.device, self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, H], normed like `final` -> [M, V] float32 on `device`. Mind the size: 4 M V bytes."""
        return torch.cat([block for _, block in self.logit_blocks(hidden)], -1)

    def logit_blocks(self, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The same in blocks of columns, (first token id, [M, columns] float32): the head is read once for all of M,
        and never in memory as a whole.
        """
        info = self._head().parts[0]
        columns = max(1, HEAD_BLOCK_BYTES // (self.target.hidden_size * self.dtype.itemsize))
        firsts = range(0, self.target.vocab_size, columns)
        blocks = [rows_of(info, first, min(first + columns, self.target.vocab_size)) for first in firsts]
        hidden = hidden.to(self.device, self.dtype)
        with Reader(2 * HEAD_BLOCK_BYTES, self.device.type == "cuda") as reader:
            reader.expect(blocks)
            for first, block in zip(firsts, blocks, strict=True):
                weight = reader.take(block).to(self.device).to(self.dtype)
                logits = (hidden @ weight.T).float()
                if not torch.isfinite(logits).all():
                    raise _not_finite(self.target.layers, {info: weight}, self.checkpoint)
                yield first, logits

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """What a drafter may borrow (`models.load.load_drafter`)."""
        yield EMBEDDING, self.embedding
        if not self.target.tie_word_embeddings:
            yield HEAD, self.head

    def _head(self) -> Stored:
        (stored,) = Source(self.checkpoint).stored([EMBEDDING if self.target.tie_word_embeddings else HEAD])
        return stored


def stream(
    folder: Path,
    rows: Sequence[Tensor],
    wanted: Collection[int],
    device: torch.device | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Streamed:
    """Runs the target of `folder` over `rows`, 1-D tensors of token ids of any lengths, each from position 0.

    `wanted` are capture indexes 0..n: i is the stream that enters layer i, 0 the embedding, n the stream behind the
    last layer, before the final norm. Only these are kept. Arithmetic is float32 on a CPU, in the target's dtype on a
    GPU.

        streamed = stream(folder, [torch.tensor(text) for text in texts], {2, 4, 5})
        features = streamed.rows(streamed.states[4])[0]      # [tokens of the first row, H]
        choices = streamed.logits(streamed.final).argmax(-1)  # [T], what the target would say after each token

    Raises CheckpointError: CouldNotCheck for a target whose family, settings or files can not be run, DoesNotFit with
    TDM-NAN-LOGITS for weights that are not finite numbers, naming the tensor.
    """
    device = device or torch.device("cpu")
    checkpoint = open_checkpoint(folder)
    target = read_target(checkpoint)
    dtype = torch.float32 if device.type == "cpu" else getattr(torch, target.dtype)
    lengths = [len(row) for row in rows]
    starts = tuple(sum(lengths[:i]) for i in range(len(lengths) + 1))
    run = _Run(checkpoint, target, dtype, device, lengths, on_progress)
    tokens = torch.cat([row.cpu() for row in rows])
    states, final = run(tokens, wanted)
    return Streamed(checkpoint, target, tokens, starts, states, final, dtype, device)


class SequencesAttention(CausalAttention):
    """Causal attention within each of several sequences that lie behind each other in one block."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [1, T, Hq, D], k and v [1, T, Hk, D] -> [1, T, Hq, D]."""
        sequences = zip(*(x.split(self.lengths, 1) for x in (q, k, v)), strict=True)
        attend = super().__call__
        return torch.cat([attend(layer, *sequence) for sequence in sequences], 1)


class _Run:
    def __init__(
        self,
        checkpoint: Checkpoint,
        target: Target,
        dtype: torch.dtype,
        device: torch.device,
        lengths: Sequence[int],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.checkpoint, self.target, self.dtype, self.device = checkpoint, target, dtype, device
        self.source, self.family, self.on_progress = Source(checkpoint), FAMILIES[target.architecture], on_progress
        self.attend = SequencesAttention(lengths)
        self.positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]  # [1, T]
        self.layers = [self.source.stored(self._parameters(i)) for i in range(target.layers)]
        self.layer_bytes = [sum(stored.size_bytes for stored in layer) for layer in self.layers]

    @torch.inference_mode()
    def __call__(self, tokens: Tensor, wanted: Collection[int]) -> tuple[dict[int, Tensor], Tensor]:
        (embedding,) = self.source.stored([EMBEDDING])
        x = F.embedding(tokens, mapped(embedding.parts[0])).to(self.device, self.dtype)[None]  # [1, T, H]
        self._check(x, 0, {embedding.parts[0]: x})
        rotary = self.family.rotary(self.target)(self.positions, self.dtype)
        states: dict[int, Tensor] = {}
        began = time.monotonic()
        with Reader(max(self.layer_bytes), self.device.type == "cuda") as reader:
            for stored in self.layers:
                reader.expect(part for one in stored for part in one.parts)
            for i in range(self.target.layers):
                if i in wanted:
                    states[i] = x[0].cpu()
                layer = self._layer(i)
                weights = self._fill(layer, i, reader)
                x = layer(0, x, rotary, self.attend)
                self._check(x, i, weights)
                del layer, weights
                self._report(i + 1, time.monotonic() - began)
            if self.target.layers in wanted:
                states[self.target.layers] = x[0].cpu()
            return states, self._norm(x, reader)[0].cpu()

    def _parameters(self, index: int) -> list[str]:
        return [f"model.layers.{index}.{name}" for name, _ in self._layer(index).named_parameters()]

    def _layer(self, index: int) -> nn.Module:
        with torch.device("meta"):
            return self.family.decoder_layer(self.target, index).requires_grad_(False).eval()

    def _fill(self, layer: nn.Module, index: int, reader: Reader) -> dict[TensorInfo, Tensor]:
        """Gives the layer its weights. Returns them by the tensor they come from."""
        prefix, shapes = f"model.layers.{index}.", dict(layer.named_parameters())
        weights: dict[str, Tensor] = {}
        seen: dict[TensorInfo, Tensor] = {}
        for stored in self.layers[index]:
            name = stored.parameter.removeprefix(prefix)
            weight = stored.weight([reader.take(part).to(self.device) for part in stored.parts], self.dtype)
            if weight.shape != shapes[name].shape:
                raise _shape_differs(stored.parts[0], shapes[name])
            weights[name] = seen[stored.parts[0]] = weight
        layer.load_state_dict(weights, assign=True)
        return seen

    def _norm(self, x: Tensor, reader: Reader) -> Tensor:
        (stored,) = self.source.stored([NORM])
        weight = reader.take(stored.parts[0]).to(self.device, self.dtype)
        norm = RMSNorm(self.target.hidden_size, self.target.rms_norm_eps)
        norm.weight = nn.Parameter(weight, requires_grad=False)
        normed: Tensor = norm(x)
        self._check(normed, self.target.layers, {stored.parts[0]: weight})
        return normed

    def _check(self, x: Tensor, layer: int, weights: dict[TensorInfo, Tensor]) -> None:
        if not torch.isfinite(x).all():
            raise _not_finite(layer, weights, self.checkpoint)

    def _report(self, done: int, seconds: float) -> None:
        bytes_done, bytes_total = sum(self.layer_bytes[:done]), sum(self.layer_bytes)
        rate = bytes_done / max(seconds, 1e-9)
        left = (bytes_total - bytes_done) / max(rate, 1e-9)
        self.on_progress(Progress(done, self.target.layers, bytes_done, bytes_total, rate, left))


def mapped(info: TensorInfo) -> Tensor:
    """A tensor of a file as memory that the kernel fills on access and may drop again."""
    with info.file.open("rb") as stream:
        pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants it writable; nobody writes
    dtype = torch_dtype(info)
    count = (info.end - info.start) // dtype.itemsize
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=info.start).view(info.shape)


def _not_finite(layer: int, weights: dict[TensorInfo, Tensor], checkpoint: Checkpoint) -> CheckpointError:
    for info, weight in weights.items():
        bad = int((~torch.isfinite(weight)).sum())
        if bad:
            finding = error(
                "TDM-NAN-LOGITS",
                f"The target's states are not finite: {info.name} holds {bad} values that are NaN or infinite.",
                file=info.file,
                where=info.name,
                found=f"{bad} of {weight.numel()} values",
                action="Restore the file, or use an earlier checkpoint.",
            )
            return CheckpointError(finding, verdict=Verdict.DOES_NOT_FIT)
    finding = error(
        "TDM-NAN-LOGITS",
        f"The target's states are not finite behind layer {layer} although its weights are: it overflows.",
        file=checkpoint.path,
        where=f"model.layers.{layer}",
        action="Check the scale of the weights and the dtype they were trained in.",
    )
    return CheckpointError(finding, verdict=Verdict.DOES_NOT_FIT)


def _shape_differs(info: TensorInfo, expected: Tensor) -> CheckpointError:
    finding = error(
        "TDM-SHAPE-DIFFERS",
        f"{info.name} in {info.file.name} is {list(info.shape)}; by the config it must be {list(expected.shape)}.",
        file=info.file,
        where=info.name,
        found=list(info.shape),
        expected=list(expected.shape),
        action="Use the config.json that was published with these weights.",
    )
    return CheckpointError(finding)
