"""Whole drafts: K tokens proposed one after the other, as an engine does, from every judged position at once.

A token at position k counts only where the ones before it were accepted, and where the text goes on with them: further
the target's opinion is not known without another pass of the target. In the target's own greedy text that is every
accepted draft; in other text it is a part of them, so what is measured is acceptance at k *given* acceptance before it,
a_k, and the accept length is 1 + a_0 + a_0 a_1 + ... (tokens per forward of the target, bonus token included).

Shapes: B texts, T positions, K draft length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from tandem_worker.models.teacher_forced import UnrolledAttention
from tandem_worker.probe.build import Parts, build
from tandem_worker.probe.captured import Batch, Captured
from tandem_worker.probe.score import drafted, feature, step
from tandem_worker.probe.wiring import Wiring


@dataclass(frozen=True)
class Chain:
    """Per draft position and text: accepted tokens, and drafts that got so far on text that goes on with them."""

    accepted: tuple[tuple[int, ...], ...]  # [K][B]
    tried: tuple[tuple[int, ...], ...]  # [K][B]

    @property
    def given(self) -> tuple[float, ...]:
        """a_k; 0 where no draft got so far."""
        pairs = zip(self.accepted, self.tried, strict=True)
        return tuple(sum(accepted) / max(sum(tried), 1) for accepted, tried in pairs)

    @property
    def shares(self) -> tuple[float, ...]:
        """Accepted at position k, as shares of all drafts."""
        return tuple(accumulate(self.given, mul))

    @property
    def accept_length(self) -> float:
        return 1 + sum(self.shares)


@torch.inference_mode()
def chains(captured: Captured, parts: Parts, wirings: Sequence[Wiring], length: int) -> dict[Wiring, Chain]:
    counts: dict[Wiring, list[Tensor]] = {wiring: [] for wiring in wirings}  # of several alike, one
    for batch in captured.batches():
        choice = batch.logits().argmax(-1)  # [B, T]: of token t + 2
        for wiring in counts:
            counts[wiring].append(_counted(batch, choice, *_drafts(batch, parts, wiring, length)))
    found = {wiring: torch.cat(parts_of, 2).tolist() for wiring, parts_of in counts.items()}
    return {wiring: Chain(_tuples(accepted), _tuples(tried)) for wiring, (accepted, tried) in found.items()}


def _drafts(batch: Batch, parts: Parts, wiring: Wiring, length: int) -> tuple[Tensor, ...]:
    """[B, T] per draft position: the target id that is proposed for token t + 2 + k."""
    built, attend = build(parts, wiring), UnrolledAttention()
    hidden, newest, proposals = feature(batch, built.module, wiring), batch.newest, []
    for k in range(length):
        hidden = step(built.module, built.embed(newest), hidden, k, attend)
        newest = built.ids[drafted(built.module, hidden).argmax(-1)]
        proposals.append(newest)
    return tuple(proposals)


def _counted(batch: Batch, choice: Tensor, *proposals: Tensor) -> Tensor:
    """[2, K, B]: accepted and tried."""
    alive, told = batch.judged, []  # [B, T]
    known = batch.judged.shape[1]
    for k, proposal in enumerate(proposals):
        at = torch.arange(known, device=choice.device) + k  # position whose choice is the answer, token t + 2 + k
        wanted = choice.roll(-k, 1)
        tried = alive & (at < known) & batch.judged.roll(-k, 1)
        accepted = tried & (proposal == wanted)
        told.append((accepted.sum(-1), tried.sum(-1)))
        alive = accepted & (batch.newest.roll(-k - 1, 1) == proposal) & (at + 1 < known)
    return torch.stack([torch.stack(column) for column in zip(*told, strict=True)]).cpu()


def _tuples(rows: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, rows))
