"""Draft rounds, replayed on text that the target has written.

Speculation is lossless, so every wiring yields the target's own greedy text and differs only in how much of it was
drafted. The text is therefore written once, its residual streams are computed once, and each wiring is replayed on it.

Shapes: B texts, T positions, K draft length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.teacher_forced import draft_everywhere
from tandem_worker.probe.generate import pad
from tandem_worker.probe.wirings import Wiring


@dataclass(frozen=True)
class Tally:
    """Counts of a wiring over all rounds."""

    drafts: int
    accepted: tuple[int, ...]  # per position

    @property
    def accept_length(self) -> float:
        return 1 + sum(self.accepted) / max(self.drafts, 1)

    @property
    def position0(self) -> float:
        return self.accepted[0] / max(self.drafts, 1)


@dataclass(frozen=True)
class Calibration:
    """Texts of which the first `starts[b]` tokens are prompt, and the target's states over them."""

    texts: list[list[int]]
    starts: list[int]
    tokens: Tensor  # [B, T + 1], padded on the right
    streams: list[Tensor]  # n + 1 of [B, T, H]
    finite: bool  # whether the target's logits are


def calibrate(llama: Llama, texts: list[list[int]], starts: list[int]) -> Calibration:
    tokens = pad(texts, llama.model.embed_tokens.weight.device)
    logits, streams = llama.whole(tokens[:, :-1])
    return Calibration(texts, starts, tokens, streams, bool(torch.isfinite(logits).all()))


def replay(calibration: Calibration, drafter: Eagle3, wiring: Wiring, length: int) -> Tally:
    proposals = draft_everywhere(
        drafter,
        calibration.tokens,
        [calibration.streams[i] for i in wiring.capture],
        length,
        fused=wiring.fused,
        target_ids=wiring.target_ids,
        norm_before_residual=wiring.norm_before_residual,
    )
    drafts, accepted = 0, [0] * length
    for row, (text, start) in enumerate(zip(calibration.texts, calibration.starts, strict=True)):
        drafts += count_rounds(text, start + 1, proposals[:, row].T.tolist(), accepted)
    return Tally(drafts, tuple(accepted))


def count_rounds(text: list[int], known: int, proposals: list[list[int]], accepted: list[int]) -> int:
    """Rounds over `text`, of which `known` tokens are there at first. Adds to `accepted`; returns the number of drafts.

    proposals [T][K]: entry t is what is drafted when t + 2 tokens are known. Rounds that the text does not hold in full
    are left out, else its end would count as refusals.
    """
    drafts, length = 0, len(accepted)
    while known + length < len(text):
        hits = 0
        for k, token in enumerate(proposals[known - 2]):
            if token != text[known + k]:
                break
            accepted[k] += 1
            hits += 1
        drafts += 1
        known += hits + 1
    return drafts
