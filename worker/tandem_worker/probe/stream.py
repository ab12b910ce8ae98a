"""The target's forward over calibration tokens with one decoder layer in memory at a time.

A trillion-parameter target is probed in the memory of one of its layers: layer i's weights are read, applied to all
tokens, and dropped, while threads already read the next ones (`models.reader`). Of a mixture of experts only those that
some token visits are read, one at a time. So a pass costs the time of reading the weights once, on a CPU or on one GPU.

Memory: on the device one layer (of experts: one expert and the rest of the layer) in the dtype of the arithmetic, and
its activations; in host memory at most one layer as it is stored, read ahead. The embedding is looked at through the
page cache; the head is read in blocks of rows.

Shapes: T tokens of all rows, H hidden size, V vocabulary, n decoder layers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from tandem_worker.checkpoint import Checkpoint, CheckpointError, Target, open_checkpoint, read_target
from tandem_worker.checkpoint.errors import error
from tandem_worker.checkpoint.source import EMBEDDING, NORM, Source, Stored
from tandem_worker.finding import Verdict
from tandem_worker.models.families import FAMILIES
from tandem_worker.models.layers import CausalAttention
from tandem_worker.models.moe import Experts
from tandem_worker.models.quantised import weight_of
from tandem_worker.models.reader import Reader
from tandem_worker.probe.stream_state import StreamState, identity_of
from tandem_worker.probe.streamed import Streamed, check_finite, mapped

log = logging.getLogger(__name__)

WINDOW_BYTES = 2 * 2**30
"""At most so much is read ahead, or one layer if that is less."""


@dataclass(frozen=True)
class Progress:
    """After each layer."""

    layer: int  # layers that are done
    layers: int
    bytes_done: int  # of all layers' weights, experts that were passed over included
    bytes_total: int
    bytes_per_second: float  # of this run
    seconds_left: float


def stream(
    folder: Path,
    rows: Sequence[Tensor],
    wanted: Collection[int],
    device: torch.device | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    resume: Path | None = None,
) -> Streamed:
    """Runs the target of `folder` over `rows`, 1-D tensors of token ids of any lengths, each from position 0.

    `wanted` are capture indexes 0..n: i is the stream that enters layer i, 0 the embedding, n the stream behind the
    last layer, before the final norm. Only these are kept. Arithmetic is float32 on a CPU, in the target's dtype on a
    GPU. With a folder `resume` each layer's result is kept there until the next one's is; the same call then goes on
    where it was killed, and returns at once when it had ended. Removing the folder is the caller's.

        streamed = stream(folder, [torch.tensor(text) for text in texts], {2, 4, 5})
        features = streamed.rows(streamed.states[4])[0]      # [tokens of the first row, H]
        choices = streamed.logits(streamed.final).argmax(-1)  # [T], what the target would say after each token

    Raises CheckpointError: CouldNotCheck for a target whose family, settings or files can not be run, DoesNotFit with
    TDM-NAN-LOGITS for weights that are not finite numbers, naming the tensor.
    """
    device = device or torch.device("cpu")
    checkpoint = open_checkpoint(folder)
    target = read_target(checkpoint)
    dtype = torch.float32 if device.type == "cpu" else arithmetic(target, checkpoint)
    lengths = [len(row) for row in rows]
    starts = tuple(sum(lengths[:i]) for i in range(len(lengths) + 1))
    tokens = torch.cat([row.cpu() for row in rows])
    state = None
    if resume is not None:
        state = StreamState(resume, identity_of(checkpoint, tokens, lengths, wanted, dtype), wanted)
    run = _Run(checkpoint, target, dtype, device, lengths, on_progress)
    states, final = run(tokens, wanted, state)
    return Streamed(checkpoint, target, tokens, starts, states, final, dtype, device)


def arithmetic(target: Target, checkpoint: Checkpoint) -> torch.dtype:
    """Of a GPU. Raises CheckpointError for a dtype that no model computes in."""
    kinds = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float32}
    if target.dtype not in kinds:
        message = f"The target's dtype is {target.dtype}; a GPU computes in one of {', '.join(kinds)}."
        action = "Correct torch_dtype in the target's config.json."
        file = checkpoint.config.file
        raise CheckpointError(error("TDM-DTYPE-UNKNOWN", message, file=file, where="torch_dtype", action=action))
    return kinds[target.dtype]


class SequencesAttention(CausalAttention):
    """Causal attention within each of several sequences that lie behind each other in one block."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, sinks: Tensor | None = None
    ) -> Tensor:
        """q [1, T, Hq, D], k [1, T, Hk, D], v [1, T, Hk, Dv] -> [1, T, Hq, Dv]."""
        sequences = zip(*(x.split(self.lengths, 1) for x in (q, k, v)), strict=True)
        attend = super().__call__
        return torch.cat([attend(layer, *sequence, window=window, sinks=sinks) for sequence in sequences], 1)


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
        self.target, self.dtype, self.device, self.on_progress = target, dtype, device, on_progress
        self.source, self.family = Source(checkpoint), FAMILIES[target.family]
        self.attend = SequencesAttention(lengths)
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]  # [1, T]
        self.rotary = self.family.rotary(target)(positions, dtype)
        self.modules: dict[tuple[bool, bool], nn.Module] = {}  # one for all layers of a kind, without weights
        self.layers = [self._stored(i) for i in range(target.layers)]
        self.layer_bytes = [sum(stored.size_bytes for stored in layer.values()) for layer in self.layers]
        hidden, vocabulary = target.hidden_size, target.vocab_size
        self.embedding, self.norm = self.source.stored([(EMBEDDING, (vocabulary, hidden)), (NORM, (hidden,))])

    @torch.inference_mode()
    def __call__(
        self, tokens: Tensor, wanted: Collection[int], state: StreamState | None
    ) -> tuple[dict[int, Tensor], Tensor]:
        states = state.load() if state else {}
        kept = max(states, default=-1)  # the newest stream that an earlier run has left
        first = max(kept, 0)
        if state and states:
            log.info("The target's pass goes on behind layer %d of %d, from %s", first, len(self.layers), state.folder)
        x = states[kept].to(self.device) if states else self._embedded(tokens)  # [T, H]
        states = {i: stream for i, stream in states.items() if i in wanted}
        began = time.monotonic()
        with Reader(min(WINDOW_BYTES, max(self.layer_bytes)), self.device.type == "cuda") as reader:
            for layer in self.layers[first:]:
                reader.expect(part for name, one in layer.items() if not _of_expert(name) for part in one.parts)
            for i in range(first, self.target.layers + 1):
                if i in wanted and i not in states:
                    states[i] = x.cpu()
                if state and i > kept:
                    state.save(i, x.cpu())
                if i < self.target.layers:
                    x = self._layer(i, x[None], reader)[0]
                    self._report(first, i + 1, time.monotonic() - began)
            weight = self.take(self.norm, reader)
        final = F.rms_norm(x, weight.shape, weight, self.target.rms_norm_eps)
        check_finite(final, self.target.layers, {self.norm: weight}, self.source.checkpoint)
        return states, final.cpu()

    def _embedded(self, tokens: Tensor) -> Tensor:
        largest = int(tokens.max())
        if largest >= self.target.vocab_size or int(tokens.min()) < 0:
            raise _no_such_token(largest, self.target, self.source.checkpoint)
        x = F.embedding(tokens, mapped(self.embedding.parts[0])).to(self.device, self.dtype)
        check_finite(x, 0, {self.embedding: x}, self.source.checkpoint)
        return x

    def _layer(self, index: int, x: Tensor, reader: Reader) -> Tensor:
        module, stored = self._module(index), self.layers[index]
        weights = {name: self.take(one, reader) for name, one in stored.items() if not _of_expert(name)}
        experts = getattr(module, "mlp", None)
        if isinstance(experts, Experts):
            experts.opener = _ExpertsOnDisk(self, index, experts.experts[0], weights, reader)
        y: Tensor = functional_call(module, weights, (0, x, self.rotary, self.attend))
        self.check(y, index, weights)
        if isinstance(experts, Experts):
            experts.opener = None  # it holds the layer's weights
        return y

    def _module(self, index: int) -> nn.Module:
        moe, gpt_oss = self.target.moe, self.target.gpt_oss
        kind = (moe is not None and index in moe.dense_layers, gpt_oss is not None and index in gpt_oss.windowed_layers)
        if kind not in self.modules:
            with torch.device("meta"):
                self.modules[kind] = self.family.decoder_layer(self.target, index).requires_grad_(False).eval()
        return self.modules[kind]

    def _stored(self, index: int) -> dict[str, Stored]:
        shapes = [(name, tuple(weight.shape)) for name, weight in self._module(index).named_parameters()]
        stored = self.source.stored((f"model.layers.{index}.{name}", shape) for name, shape in shapes)
        return {name: one for (name, _), one in zip(shapes, stored, strict=True)}

    def take(self, stored: Stored, reader: Reader) -> Tensor:
        return weight_of(stored, [reader.take(part).to(self.device) for part in stored.parts], self.dtype)

    def check(self, x: Tensor, index: int, weights: dict[str, Tensor]) -> None:
        named = {self.layers[index][name]: weight for name, weight in weights.items()}
        check_finite(x, index, named, self.source.checkpoint)

    def _report(self, first: int, done: int, seconds: float) -> None:
        before, bytes_done = sum(self.layer_bytes[:first]), sum(self.layer_bytes[:done])
        total = sum(self.layer_bytes)
        rate = (bytes_done - before) / max(seconds, 1e-9)
        left = (total - bytes_done) / max(rate, 1e-9)
        self.on_progress(Progress(done, self.target.layers, bytes_done, total, rate, left))


class _ExpertsOnDisk:
    """Of one layer. An expert's weights are there for as long as the function that uses them."""

    def __init__(self, run: _Run, index: int, module: nn.Module, around: dict[str, Tensor], reader: Reader) -> None:
        self.run, self.index, self.module, self.around, self.reader = run, index, module, around, reader

    def announce(self, experts: Collection[int]) -> None:
        stored = [one for expert in experts for one in self._stored(expert).values()]
        self.reader.expect([part for one in stored for part in one.parts], next=True)

    def open(self, expert: int) -> Callable[[Tensor], Tensor]:
        weights = {name: self.run.take(one, self.reader) for name, one in self._stored(expert).items()}

        def run(rows: Tensor) -> Tensor:
            said: Tensor = functional_call(self.module, weights, (rows,))
            named = {f"mlp.experts.{expert}.{name}": weight for name, weight in weights.items()}
            self.run.check(said, self.index, {**self.around, **named})
            return said

        return run

    def _stored(self, expert: int) -> dict[str, Stored]:
        names = [name for name, _ in self.module.named_parameters()]
        return {name: self.run.layers[self.index][f"mlp.experts.{expert}.{name}"] for name in names}


def _of_expert(name: str) -> bool:
    return name.startswith("mlp.experts.")


def _no_such_token(token: int, target: Target, checkpoint: Checkpoint) -> CheckpointError:
    return CheckpointError(
        error(
            "TDM-TOKENIZER-VOCABULARY",
            f"The rows hold token id {token}; the target's vocabulary has {target.vocab_size}.",
            file=checkpoint.path,
            found=token,
            action="Use the tokenizer that belongs to this target.",
        ),
        verdict=Verdict.COULD_NOT_CHECK,
    )
