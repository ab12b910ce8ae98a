"""Whole drafts: K tokens proposed one after the other, as an engine does, from every judged position at once.

A token at position k counts only where the ones before it were accepted, and where the text goes on with them: further
the target's opinion is not known without another pass of the target. In the target's own greedy text that is every
accepted draft; in other text it is a part of them, so what is measured is acceptance at k *given* acceptance before it,
a_k, and the accept length is 1 + a_0 + a_0 a_1 + ... (tokens per forward of the target, bonus token included).

Shapes: B texts, T positions, J of them judged, K draft length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from tandem_worker.models.teacher_forced import UnrolledAttention
from tandem_worker.probe.build import Built, Parts, build
from tandem_worker.probe.captured import Batch, Captured
from tandem_worker.probe.drafting import FirstStep, FirstSteps, drafted, embedded, feature, first_step, step
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
def chains(
    captured: Captured, parts: Parts, wirings: Sequence[Wiring], length: int, begun: FirstSteps | None = None
) -> dict[Wiring, Chain]:
    """Wirings that differ in what is fed back only, `norm_output`, have their first step in common. Where it is `begun`
    already, on the same texts, no more than keys and values are computed of it.
    """
    begun = {} if begun is None else begun
    counts: dict[Wiring, list[Tensor]] = {wiring: [] for wiring in wirings}  # of several alike, one
    for batch in captured.batches():
        for start in dict.fromkeys(replace(wiring, norm_output=False) for wiring in wirings):
            built = build(parts, start)
            first, attend = _begun(batch, built, begun.get((start, batch.first)))
            for wiring in counts:
                if replace(wiring, norm_output=False) == start:
                    went_on = _counted(batch, build(parts, wiring), attend.copy(), first, length)
                    counts[wiring].append(went_on)
    found = {wiring: torch.cat(parts_of, 2).tolist() for wiring, parts_of in counts.items()}
    return {wiring: Chain(_tuples(accepted), _tuples(tried)) for wiring, (accepted, tried) in found.items()}


def _begun(batch: Batch, built: Built, first: FirstStep | None) -> tuple[FirstStep, UnrolledAttention]:
    module, places = built.module, batch.places
    attend = UnrolledAttention(places if first is None else places[:, :0], module.drafter.layers - 1)
    hidden = first_step(module, embedded(batch, built), feature(batch, module, built.wiring), attend)
    attend.places = places
    return first or FirstStep(hidden, drafted(module, hidden).argmax(-1)), attend


def _counted(batch: Batch, built: Built, attend: UnrolledAttention, first: FirstStep, length: int) -> Tensor:
    """[2, K, B]: accepted and tried. Drafts end where they are refused: only the others are computed further."""
    module, choices, told = built.module, batch.choices(), []
    hidden, said = first.hidden, first.said
    hidden = module.norm(hidden) if module.norm_output else hidden
    places, alive = batch.places, batch.judged  # [B, J]
    for k in range(length):
        proposal = built.ids[said]  # [B, J] for token t + 2 + k
        at = places + k  # the position whose choice is the answer
        tried = alive & (at < batch.known)
        accepted = tried & (proposal == _at(choices, at))
        told.append(torch.stack([accepted.sum(-1), tried.sum(-1)]))
        alive = accepted & (_at(batch.newest, at + 1) == proposal) & (at + 1 < batch.known)
        if k + 1 == length or not alive.any():
            break
        chosen, alive = _first(alive)
        places, proposal, hidden = places.gather(1, chosen), proposal.gather(1, chosen), _rows(hidden, chosen)
        attend.keep(chosen)
        hidden = step(module, built.embed(proposal), hidden, places + k + 1, attend)
        said = drafted(module, hidden).argmax(-1)
    told += [torch.zeros_like(told[0])] * (length - len(told))
    return torch.stack(told, 1).cpu()


def _first(alive: Tensor) -> tuple[Tensor, Tensor]:
    """alive [B, J] -> indexes [B, J'] of those alive in each text, as many as the text with most has, and which of them
    are alive and not there to fill up.
    """
    most = int(alive.sum(-1).max())
    order = alive.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :most]
    return order, alive.gather(1, order)


def _at(values: Tensor, places: Tensor) -> Tensor:
    """values [B, T], places [B, J] -> [B, J]; of places behind the end the last value, which nobody looks at."""
    return values.gather(1, places.clamp(max=values.shape[1] - 1))


def _rows(x: Tensor, chosen: Tensor) -> Tensor:
    """x [B, J, H], chosen [B, J'] -> [B, J', H]"""
    return x.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))


def _tuples(rows: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, rows))
