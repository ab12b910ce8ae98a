"""What one pass of the target over the calibration texts has left, and its texts put side by side for the drafter.

Shapes: B texts of one batch, T positions (one less than the longest text has tokens), J of them judged in each text,
H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tandem_worker.checkpoint import Checkpoint
from tandem_worker.checkpoint.source import Source
from tandem_worker.probe.streamed import Streamed, mapped
from tandem_worker.probe.wiring import View

MOST_LOGITS = 1 << 27  # elements of a batch's logits, 512 MiB of float32
MOST_JUDGED = 2048
"""Positions, of all texts together. More of the same texts tell little, since the tokens of one text are alike."""
CONTEXT = 16  # positions before the judged ones of a part that a drafter may look back to


@dataclass(frozen=True)
class Captured:
    """Host tensors but for the logits; texts lie behind each other in the states, judged positions in the logits."""

    texts: tuple[tuple[int, ...], ...]
    judged: tuple[range, ...]  # of each text the positions t whose draft for token t + 2 is judged
    states: Mapping[int, Tensor]  # capture index 0..n -> [all tokens, H]
    norms: Mapping[int, Tensor]  # i -> [H]: weight of the norm that stream i passes next; n is the final norm
    eps: float
    logits: Tensor  # [all judged positions, V] of token t + 2, on the device, of float16 where that is a GPU
    choices: Tensor  # [all tokens] what the target says behind each token
    device: torch.device
    dtype: torch.dtype

    @property
    def layers(self) -> int:
        return max(self.norms)

    @property
    def positions(self) -> int:
        """How many are judged."""
        return sum(map(len, self.judged))

    def batches(self) -> Iterator[Batch]:
        """Neighbouring texts together, as many as the memory for their logits allows."""
        first, most = 0, max(1, MOST_LOGITS // self.logits.shape[-1])
        while first < len(self.texts):
            end = first + 1
            while end < len(self.texts) and (end + 1 - first) * max(map(len, self.judged[first : end + 1])) <= most:
                end += 1
            yield Batch(self, first, end)
            first = end

    def shortened(self, positions: int) -> Captured:
        """A window of every text, in which about so many positions are judged in all: for a look at many wirings.

        It lies in the middle: the first tokens are often the same in all texts, put there by a chat template. The
        target has read all that is before it, the drafter only `CONTEXT` positions of that.
        """
        each = max(1, positions // max(len(self.texts), 1))
        judged = [middle(run, each) for run in self.judged]
        cuts = [slice(max(0, run.start - CONTEXT), run.stop + 1) for run in judged]  # token t + 1 is read, too
        sizes, runs = [len(text) for text in self.texts], [len(run) for run in self.judged]
        inner = [
            slice(run.start - whole.start, run.stop - whole.start)
            for run, whole in zip(judged, self.judged, strict=True)
        ]

        def cut(rows: Tensor, lengths: list[int], kept: list[slice]) -> Tensor:
            return torch.cat([part[piece] for part, piece in zip(rows.split(lengths), kept, strict=True)])

        return Captured(
            texts=tuple(text[piece] for text, piece in zip(self.texts, cuts, strict=True)),
            judged=tuple(range(r.start - c.start, r.stop - c.start) for r, c in zip(judged, cuts, strict=True)),
            states={index: cut(states, sizes, cuts) for index, states in self.states.items()},
            norms=self.norms,
            eps=self.eps,
            logits=cut(self.logits, runs, inner),
            choices=cut(self.choices, sizes, cuts),
            device=self.device,
            dtype=self.dtype,
        )


def middle(run: range, most: int) -> range:
    """Of `run` at most so many, in its middle."""
    first = run.start + max(0, len(run) - most) // 2
    return range(first, min(run.stop, first + most))


@dataclass
class Batch:
    """Texts `first` to `end`, padded on the right, which causal attention does not see."""

    captured: Captured
    first: int
    end: int
    partial: dict[object, Tensor] = field(default_factory=dict)  # shares of features, and what is looked up of tables
    _padded: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole, device = self.captured, self.captured.device
        self._sizes = [len(text) for text in whole.texts[self.first : self.end]]
        self._span = _span([len(text) for text in whole.texts], self.first, self.end)
        runs = whole.judged[self.first : self.end]
        self._counts = [len(run) for run in runs]
        self._judged_span = _span([len(run) for run in whole.judged], self.first, self.end)
        texts = [torch.tensor(text) for text in whole.texts[self.first : self.end]]
        self.newest = pad_sequence(texts, batch_first=True).to(device)[:, 1:]  # [B, T], token t + 1 of position t
        self.known = torch.tensor(self._sizes, device=device)[:, None] - 1  # [B, 1] positions of each text
        places = [torch.arange(run.start, run.stop) for run in runs]
        self.places = pad_sequence(places, batch_first=True).to(device)  # [B, J] the judged ones; padded with zeros
        counts = torch.tensor(self._counts, device=device)[:, None]
        self.judged = torch.arange(self.places.shape[1], device=device) < counts  # [B, J]: not padding

    def stream(self, index: int, view: View) -> Tensor:
        """[B, T, H]: what position t captures at this index."""
        if index not in self._padded:
            rows = self.captured.states[index][self._span].to(self.captured.device)
            self._padded[index] = pad_sequence(list(rows.split(self._sizes)), batch_first=True)[:, :-1]
        stream = self._padded[index]
        if view is View.STREAM:
            return stream
        layers = self.captured.layers
        weight = self.captured.norms[layers if view is View.FINAL_NORM else index].to(stream)
        return F.rms_norm(stream, weight.shape, weight, self.captured.eps)

    def logits(self) -> Tensor:
        """[B, J, V]: what the target says to come at t + 2, after it has read token t + 1."""
        rows = self.captured.logits[self._judged_span]
        return pad_sequence(list(rows.split(self._counts)), batch_first=True)

    def choices(self) -> Tensor:
        """[B, T]: the token that it names for t + 2."""
        rows = self.captured.choices[self._span].to(self.captured.device)
        return pad_sequence(list(rows.split(self._sizes)), batch_first=True)[:, 1:]


def _span(sizes: Sequence[int], first: int, end: int) -> slice:
    offset = sum(sizes[:first])
    return slice(offset, offset + sum(sizes[first:end]))


def captured(streamed: Streamed, starts: Sequence[int], most: int = MOST_JUDGED) -> Captured:
    """`starts`: of each text the first position that may be judged; `most` are, in the middle of each text."""
    texts = tuple(tuple(row.tolist()) for row in streamed.rows(streamed.tokens))
    layers, each = streamed.target.layers, max(1, most // max(len(texts), 1))
    judged = [middle(range(start, max(start, len(text) - 1)), each) for text, start in zip(texts, starts, strict=True)]
    logits, choices = _said(streamed, judged)
    return Captured(
        texts=texts,
        judged=tuple(judged),
        states=streamed.states,
        norms=norm_weights(streamed.checkpoint, layers, streamed.target.hidden_size),
        eps=streamed.target.rms_norm_eps,
        logits=logits,
        choices=choices,
        device=streamed.device,
        dtype=streamed.dtype,
    )


def _said(streamed: Streamed, judged: Sequence[range]) -> tuple[Tensor, Tensor]:
    """Logits [all judged, V] and choices [all tokens]. Once for all: the head of a large target takes longer to read
    than a drafter to run; and by blocks of the vocabulary, since all logits of all tokens are more than the states.
    Those of the judged positions, half a GB, stay on the device: every look at wirings needs them.
    """
    device = streamed.device
    places = zip(judged, streamed.starts[:-1], strict=True)
    wanted = torch.cat([torch.arange(run.start, run.stop) + start + 1 for run, start in places]).to(device)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    logits = torch.empty(len(wanted), streamed.target.vocab_size, dtype=dtype, device=device)
    largest, choices = None, None
    for first, block in streamed.logit_blocks(streamed.final):
        values, ids = block.max(-1)
        if largest is None or choices is None:
            largest, choices = values, ids + first
        else:
            choices = torch.where(values > largest, ids + first, choices)
            largest = torch.maximum(values, largest)
        logits[:, first : first + block.shape[-1]] = block[wanted]
    assert choices is not None, "a vocabulary has tokens"
    return logits, choices.cpu()


def norm_weights(target: Checkpoint, layers: int, hidden: int) -> dict[int, Tensor]:
    names = [f"model.layers.{i}.input_layernorm.weight" for i in range(layers)] + ["model.norm.weight"]
    stored = Source(target).stored([(name, (hidden,)) for name in names])
    return {i: mapped(one.parts[0]) for i, one in enumerate(stored)}
