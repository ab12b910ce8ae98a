"""What one pass of the target over the calibration texts has left, and its texts put side by side for the drafter.

Shapes: B texts of one batch, T positions (one less than the longest text has tokens), H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tandem_worker.checkpoint import Checkpoint
from tandem_worker.models.source import Source
from tandem_worker.probe.streamed import Streamed, mapped
from tandem_worker.probe.wiring import View

MOST_LOGITS = 1 << 26  # elements of a batch's logits, 256 MiB of float32


@dataclass(frozen=True)
class Captured:
    """Host tensors; texts lie behind each other in the states."""

    texts: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]  # of each text the first position t that is judged
    states: Mapping[int, Tensor]  # capture index 0..n -> [all tokens, H]
    norms: Mapping[int, Tensor]  # i -> [H]: weight of the norm that stream i passes next; n is the final norm
    eps: float
    logits: Tensor  # [all tokens, V], of float16 where the arithmetic is a GPU's
    vocabulary: int
    device: torch.device
    dtype: torch.dtype

    @property
    def layers(self) -> int:
        return max(self.norms)

    @property
    def positions(self) -> int:
        """How many are judged."""
        return sum(len(text) - 1 - start for text, start in zip(self.texts, self.starts, strict=True))

    def batches(self) -> Iterator[Batch]:
        """Neighbouring texts together, as many as the memory for their logits allows."""
        first, most = 0, max(1, MOST_LOGITS // self.vocabulary)
        while first < len(self.texts):
            end = first + 1
            while end < len(self.texts) and (end + 1 - first) * max(map(len, self.texts[first : end + 1])) <= most:
                end += 1
            yield Batch(self, first, end)
            first = end

    def shortened(self, positions: int) -> Captured:
        """Every text, cut so that about so many positions are judged in all: for a first look at many wirings."""
        each = max(1, positions // max(len(self.texts), 1))
        lengths = [min(len(text), start + 1 + each) for text, start in zip(self.texts, self.starts, strict=True)]
        sizes = [len(text) for text in self.texts]

        def cut(states: Tensor) -> Tensor:
            return torch.cat([rows[:length] for rows, length in zip(states.split(sizes), lengths, strict=True)])

        return Captured(
            tuple(text[:length] for text, length in zip(self.texts, lengths, strict=True)),
            self.starts,
            {index: cut(states) for index, states in self.states.items()},
            self.norms,
            self.eps,
            cut(self.logits),
            self.vocabulary,
            self.device,
            self.dtype,
        )


@dataclass
class Batch:
    """Texts `first` to `end`, padded on the right, which causal attention does not see."""

    captured: Captured
    first: int
    end: int
    _padded: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = self.captured
        texts, offset = whole.texts[self.first : self.end], sum(map(len, whole.texts[: self.first]))
        self._sizes = [len(text) for text in texts]
        self._span = slice(offset, offset + sum(self._sizes))
        tokens = pad_sequence([torch.tensor(text) for text in texts], batch_first=True).to(whole.device)
        self.newest = tokens[:, 1:]  # [B, T], token t + 1 of position t
        places = torch.arange(self.newest.shape[1], device=whole.device)
        starts = torch.tensor(whole.starts[self.first : self.end], device=whole.device)[:, None]
        self.judged = (places >= starts) & (places < torch.tensor(self._sizes, device=whole.device)[:, None] - 1)

    def stream(self, index: int, view: View) -> Tensor:
        """[B, T, H]: what position t captures at this index."""
        if index not in self._padded:
            self._padded[index] = self._rows(self.captured.states[index][self._span])[:, :-1]
        stream = self._padded[index]
        if view is View.STREAM:
            return stream
        layers = self.captured.layers
        weight = self.captured.norms[layers if view is View.FINAL_NORM else index].to(stream)
        return F.rms_norm(stream, weight.shape, weight, self.captured.eps)

    def logits(self) -> Tensor:
        """[B, T, V] float32: what the target says to come at t + 2, after it has read token t + 1."""
        return self._rows(self.captured.logits[self._span])[:, 1:].float()

    def _rows(self, states: Tensor) -> Tensor:
        """[tokens of the batch, ...] -> [B, T + 1, ...]"""
        return pad_sequence(list(states.to(self.captured.device).split(self._sizes)), batch_first=True)


def captured(streamed: Streamed, starts: Sequence[int]) -> Captured:
    """`starts`: of each text the first position that is judged."""
    texts = tuple(tuple(row.tolist()) for row in streamed.rows(streamed.tokens))
    layers = streamed.target.layers
    return Captured(
        texts=texts,
        starts=tuple(starts),
        states=streamed.states,
        norms=norm_weights(streamed.checkpoint, layers, streamed.target.hidden_size),
        eps=streamed.target.rms_norm_eps,
        logits=_logits(streamed),
        vocabulary=streamed.target.vocab_size,
        device=streamed.device,
        dtype=streamed.dtype,
    )


def _logits(streamed: Streamed) -> Tensor:
    """Once for all: the head of a large target takes longer to read than a drafter to run."""
    dtype = torch.float16 if streamed.device.type == "cuda" else torch.float32
    return torch.cat([block.to("cpu", dtype) for _, block in streamed.logit_blocks(streamed.final)], -1)


def norm_weights(target: Checkpoint, layers: int, hidden: int) -> dict[int, Tensor]:
    names = [f"model.layers.{i}.input_layernorm.weight" for i in range(layers)] + ["model.norm.weight"]
    stored = Source(target).stored([(name, (hidden,)) for name in names])
    return {i: mapped(one.parts[0]) for i, one in enumerate(stored)}
