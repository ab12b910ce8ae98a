"""How well each wiring predicts the target at position 0, for all wirings on one set of captured streams.

The target has read the texts. At position t of a text its streams of token t and the token t + 1 go into the drafter,
which says q, its distribution over draft ids for token t + 2; the target's own is p, after it has read token t + 1.
Two figures come from each position: whether both name the same token (what greedy decoding would accept), and
sum(min(p, q)) over the vocabulary, the chance that sampling accepts (arXiv 2211.17192, 3.2), which is far less noisy.

Wirings that share a module differ only in what enters it, and run side by side as rows of one batch.
Shapes: m wirings, B texts, T positions, H hidden size, V target vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.layers import Attend, CausalAttention
from tandem_worker.probe.build import Built, Parts, build
from tandem_worker.probe.captured import Batch, Captured
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
def score(captured: Captured, parts: Parts, wirings: Sequence[Wiring]) -> dict[Wiring, Score]:
    groups: dict[Wiring, list[Wiring]] = defaultdict(list)
    for wiring in wirings:
        groups[replace(wiring, capture=(), view=View.STREAM, fused=True)].append(wiring)
    built = {key: build(parts, members[0]) for key, members in groups.items()}
    sums: dict[Wiring, list[Tensor]] = defaultdict(list)
    for batch in captured.batches():
        logits = batch.logits()
        target = _Target(logits.softmax(-1), logits.argmax(-1), {})
        del logits
        for key, members in groups.items():
            each = batch.newest.numel() * parts.drafter.draft_vocab_size
            size = max(1, MOST_DRAFTED // each)
            for i in range(0, len(members), size):
                part = members[i : i + size]
                for wiring, found in zip(part, _side_by_side(batch, built[key], part, target), strict=True):
                    sums[wiring].append(found)
    return {wiring: _summed(torch.cat(found, 1)) for wiring, found in sums.items()}


@torch.inference_mode()
def knowing_nothing(captured: Captured) -> float:
    """The overlap of a drafter that says the same everywhere: how often the target has each token in mind."""
    total, count = None, 0
    for batch in captured.batches():
        said = batch.logits().softmax(-1)[batch.judged]  # [judged, V]
        total = said.sum(0) if total is None else total + said.sum(0)
        count += len(said)
    if total is None or not count:
        return 0.0
    frequent = total / count
    overlaps = [
        torch.minimum(batch.logits().softmax(-1)[batch.judged], frequent).sum().item() for batch in captured.batches()
    ]
    return sum(overlaps) / count


@dataclass(frozen=True)
class _Target:
    probabilities: Tensor  # [B, T, V], of token t + 2
    choice: Tensor  # [B, T]
    of_drafts: dict[DraftIds, Tensor]

    def of(self, built: Built) -> Tensor:
        """[B, T, Vd]: of each draft id; none where it leads out of the vocabulary."""
        reading = built.wiring.ids
        if reading not in self.of_drafts:
            inside = (built.ids >= 0) & (built.ids < self.probabilities.shape[-1])
            self.of_drafts[reading] = self.probabilities[..., built.ids.where(inside, 0)] * inside
        return self.of_drafts[reading]


def feature(batch: Batch, module: Eagle3, wiring: Wiring) -> Tensor:
    """[B, T, H]: what enters the drafter's layer at step 0."""
    seen = [batch.stream(index, wiring.view) for index in wiring.capture]
    if not wiring.fused:
        return seen[0]
    return module.fuse([stream.flatten(0, 1)[None] for stream in seen])[0].view(*seen[0].shape[:2], -1)


def step(module: Eagle3, embedding: Tensor, features: Tensor, first: int, attend: Attend) -> Tensor:
    """One draft step of whole texts, [B, T, H] each, whose positions count from `first`; returns [B, T, H].

    The models multiply block by block; here all texts are one block for everything but attention.
    """
    texts, length = features.shape[:2]

    def by_text(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, width = q.shape[2], v.shape[-1]
        q, k, v = (x.view(texts, length, *x.shape[2:]) for x in (q, k, v))
        return attend(layer, q, k, v).reshape(1, texts * length, heads, width)

    positions = torch.arange(first, first + length, device=features.device).repeat(texts)[None]
    hidden = module.step(embedding.flatten(0, 1)[None], features.flatten(0, 1)[None], positions, by_text)
    return hidden.view(texts, length, -1)


def drafted(module: Eagle3, hidden: Tensor) -> Tensor:
    """hidden [B, T, H] -> logits over draft ids [B, T, Vd], float32."""
    return module.head(hidden.flatten(0, 1)[None])[0].float().view(*hidden.shape[:2], -1)


def _side_by_side(batch: Batch, built: Built, wirings: Sequence[Wiring], target: _Target) -> list[Tensor]:
    """Of each wiring [4, B]: sums of overlap and of matches, positions judged, and those that are not finite."""
    features = torch.cat([feature(batch, built.module, wiring) for wiring in wirings])  # [m * B, T, H]
    embedding = built.embed(batch.newest).repeat(len(wirings), 1, 1)
    hidden = step(built.module, embedding, features, 0, CausalAttention())
    q = drafted(built.module, hidden).softmax(-1).unflatten(0, (len(wirings), -1))  # [m, B, T, Vd]
    found = []
    for each in q:
        overlap = torch.minimum(target.of(built), each).sum(-1).where(batch.judged, 0)
        match = (built.ids[each.argmax(-1)] == target.choice) & batch.judged
        broken = ~torch.isfinite(overlap)
        found.append(torch.stack([overlap.sum(-1), match.sum(-1), batch.judged.sum(-1), broken.sum(-1)]).cpu())
    return found


def _summed(found: Tensor) -> Score:
    """found [4, B]"""
    overlap, matches, counts, broken = found.tolist()
    return Score(tuple(overlap), tuple(matches), tuple(map(int, counts)), not any(broken))
