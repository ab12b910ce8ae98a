"""How well each wiring predicts the target at position 0, for all wirings on one set of captured streams.

The target has read the texts. At position t of a text its streams of token t and the token t + 1 go into the drafter,
which says q, its distribution over draft ids for token t + 2; the target's own is p, after it has read token t + 1.
Two figures come from each position: whether both name the same token (what greedy decoding would accept), and
sum(min(p, q)) over the vocabulary, the chance that sampling accepts (arXiv 2211.17192, 3.2), which is far less noisy.

Wirings that share a module differ only in what enters it, and run side by side as rows of one batch. Keys and values
are computed at all positions, everything else at the judged ones.
Shapes: m wirings, B texts, T positions, J judged ones, V target vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tandem_worker.probe.build import Built, Parts, build
from tandem_worker.probe.captured import Batch, Captured
from tandem_worker.probe.drafting import FirstStep, FirstSteps, attention, drafted, embedded, feature, first_step
from tandem_worker.probe.wiring import DraftIds, View, Wiring

MOST_DRAFTED = 1 << 25  # elements of one batch of drafts, 128 MiB of float32


@dataclass(frozen=True)
class Score:
    """Sums over the judged positions of each text."""

    overlap: tuple[float, ...]
    matches: tuple[float, ...]
    counts: tuple[int, ...]
    finite: bool = True


@torch.inference_mode()
def score(
    captured: Captured, parts: Parts, wirings: Sequence[Wiring], kept: FirstSteps | None = None
) -> dict[Wiring, Score]:
    """`kept` takes in the first steps, for whole drafts to go on from."""
    groups: dict[Wiring, list[Wiring]] = defaultdict(list)
    for wiring in wirings:
        groups[replace(wiring, capture=(), view=View.STREAM, fused=True, norm_output=False)].append(wiring)
    built = {key: build(parts, replace(members[0], norm_output=False)) for key, members in groups.items()}
    sums: dict[Wiring, list[Tensor]] = defaultdict(list)
    for batch in captured.batches():
        target = _Target.of_batch(batch)
        for key, members in groups.items():
            size = max(1, MOST_DRAFTED // _each(batch, built[key]))
            for i in range(0, len(members), size):
                part = members[i : i + size]
                found = _side_by_side(batch, built[key], part, target, kept)
                for wiring, one in zip(part, found.cpu(), strict=True):
                    sums[wiring].append(one)
    return {wiring: _summed(torch.cat(found, 1)) for wiring, found in sums.items()}


@torch.inference_mode()
def knowing_nothing(captured: Captured) -> float:
    """The overlap of a drafter that says the same everywhere: how often the target has each token in mind."""
    total, count = None, 0
    for batch in captured.batches():
        said = batch.logits()[batch.judged].float().softmax(-1)  # [judged, V]
        total = said.sum(0) if total is None else total + said.sum(0)
        count += len(said)
    if total is None or not count:
        return 0.0
    frequent = total / count
    overlaps = [
        torch.minimum(batch.logits()[batch.judged].float().softmax(-1), frequent).sum().item()
        for batch in captured.batches()
    ]
    return sum(overlaps) / count


@dataclass(frozen=True)
class _Target:
    logits: Tensor  # [B, J, V], of token t + 2
    scale: Tensor  # [B, J, 1] log of the sum of their exponentials
    choice: Tensor  # [B, J]
    of_drafts: dict[DraftIds, Tensor]

    @staticmethod
    def of_batch(batch: Batch) -> _Target:
        logits = batch.logits()
        choice = batch.choices().gather(1, batch.places)
        scale = torch.stack([text.float().logsumexp(-1, keepdim=True) for text in logits])
        return _Target(logits, scale, choice, {})

    def of(self, built: Built) -> Tensor:
        """[B, J, Vd]: probability of each draft id; none where it leads out of the vocabulary."""
        reading = built.wiring.ids
        if reading not in self.of_drafts:
            inside = (built.ids >= 0) & (built.ids < self.logits.shape[-1])
            asked = self.logits[..., built.ids.where(inside, 0)].float()
            self.of_drafts[reading] = asked.sub_(self.scale).exp_().mul_(inside)
        return self.of_drafts[reading]


def _each(batch: Batch, built: Built) -> int:
    """Elements that one wiring takes: its drafts, or what enters its layer."""
    drafter = built.module.drafter
    return max(batch.places.numel() * drafter.draft_vocab_size, 4 * batch.newest.numel() * drafter.hidden_size)


def _side_by_side(
    batch: Batch, built: Built, wirings: Sequence[Wiring], target: _Target, kept: FirstSteps | None
) -> Tensor:
    """Of each wiring [m, 4, B]: sums of overlap and of matches, positions judged, and those that are not finite."""
    features = torch.cat([feature(batch, built.module, wiring) for wiring in wirings])  # [m B, T, H]
    attend = attention(batch, built.module, len(wirings))
    hidden = first_step(built.module, embedded(batch, built), features, attend).unflatten(0, (len(wirings), -1))
    found = []
    logits_of_all = drafted(built.module, hidden.flatten(0, 1)).unflatten(0, (len(wirings), -1))
    for wiring, state, logits in zip(wirings, hidden, logits_of_all, strict=True):  # [B, J, H] and [B, J, Vd]
        said = logits.argmax(-1)
        if kept is not None:
            kept[replace(wiring, norm_output=False), batch.first] = FirstStep(state, said)
        match = (built.ids[said] == target.choice) & batch.judged
        q = logits.softmax(-1)
        overlap = torch.minimum(target.of(built), q, out=q).sum(-1).where(batch.judged, 0)
        broken = ~torch.isfinite(overlap)
        found.append(torch.stack([overlap.sum(-1), match.sum(-1), batch.judged.sum(-1), broken.sum(-1)]))
    return torch.stack(found)


def _summed(found: Tensor) -> Score:
    """found [4, B]"""
    overlap, matches, counts, broken = found.tolist()
    return Score(tuple(overlap), tuple(matches), tuple(map(int, counts)), not any(broken))
