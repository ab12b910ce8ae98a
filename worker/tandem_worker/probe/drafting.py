"""What enters a drafter and what it says, for many texts side by side, and many wirings where they share a module.

fc is linear, so the feature of any wiring is a sum of shares, one of each slot: fc's block of columns for that slot,
applied to the stream that feeds it. A share is computed once for each slot and stream; after that another wiring of the
streams is an addition. The norms around fc keep it so: those of single streams come before, and that of all streams
side by side only divides the sum by a number, which is a sum over slots, too.

Of what the attention reads, [embedding, feature], wirings side by side have the first half in common, and its part of
queries, keys and values is computed once for all of them.

Shapes: B texts, T positions, J judged ones, H and Ht hidden sizes of drafter and target, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.layers import Linear
from tandem_worker.models.teacher_forced import UnrolledAttention
from tandem_worker.probe.build import Built
from tandem_worker.probe.captured import Batch
from tandem_worker.probe.wiring import Wiring


def feature(batch: Batch, module: Eagle3, wiring: Wiring) -> Tensor:
    """[B, T, H]: what enters the drafter's layer at step 0."""
    if not wiring.fused:
        return batch.stream(wiring.capture[0], wiring.view)
    fused = [_share(batch, module, wiring, slot, index) for slot, index in enumerate(wiring.capture)]
    total = fused[0].float()
    for share in fused[1:]:
        total = total + share
    if wiring.norm_before_fc:
        squares = [_squares(batch, module, wiring, slot, index) for slot, index in enumerate(wiring.capture)]
        width = len(squares) * module.drafter.target_hidden_size
        total = total * torch.rsqrt(torch.stack(squares).sum(0) / width + module.drafter.rms_norm_eps)
    if module.fc.bias is not None:
        total = total + module.fc.bias
    return total.to(fused[0].dtype)


def _share(batch: Batch, module: Eagle3, wiring: Wiring, slot: int, index: int) -> Tensor:
    """[B, T, H] of one slot."""

    def compute() -> Tensor:
        stream, width = _normed(batch, module, wiring, slot, index), module.drafter.target_hidden_size
        columns = slice(slot * width, (slot + 1) * width)
        if module.norm_before_fc and module.input_norm is not None:
            stream = stream * module.input_norm.weight[columns]
        return stream @ module.fc.weight[:, columns].T

    return _once(batch, ("share", _fusing(wiring), slot, index, wiring.view), compute)


def _squares(batch: Batch, module: Eagle3, wiring: Wiring, slot: int, index: int) -> Tensor:
    """[B, T, 1]: sum of the squares of what a slot is fed."""
    return _once(
        batch,
        ("squares", _fusing(wiring), slot, index, wiring.view),
        lambda: _normed(batch, module, wiring, slot, index).float().pow(2).sum(-1, keepdim=True),
    )


def _normed(batch: Batch, module: Eagle3, wiring: Wiring, slot: int, index: int) -> Tensor:
    stream = batch.stream(index, wiring.view)
    if module.fc_norm is None:
        return stream
    normed: Tensor = module.fc_norm[slot](stream)
    return normed


def _fusing(wiring: Wiring) -> object:
    """Of a wiring what its module's way to the feature depends on."""
    lost = frozenset(name for name in wiring.random if name.startswith(("fc.", "fc_norm.", "input_norm.")))
    return wiring.norm_before_fc, wiring.fc_norm, lost


def embedded(batch: Batch, built: Built) -> Tensor:
    """[B, T, H] of token t + 1. The table lies on the host, so each is looked up once."""
    return _once(batch, ("embedding", built.wiring.embedding), lambda: built.embed(batch.newest))


def _once(batch: Batch, key: object, compute: Callable[[], Tensor]) -> Tensor:
    if key not in batch.partial:
        batch.partial[key] = compute()
    return batch.partial[key]


def step(
    module: Eagle3,
    embedding: Tensor,
    features: Tensor,
    positions: Tensor,
    attend: UnrolledAttention,
    places: Tensor | None = None,
) -> Tensor:
    """One draft step, embedding and features [B, T, H], positions [B, T] -> [B, T, H]; with `places` [B, J] of these
    alone, [B, J, H].

    The models multiply block by block; here all texts are one block for everything but attention.
    """
    texts, length = features.shape[:2]

    def by_text(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.view(texts, -1, *x.shape[2:]) for x in (q, k, v))
        return attend(layer, q, k, v).flatten(0, 1)[None]

    rows = None
    if places is not None:
        rows = (places + length * torch.arange(texts, device=places.device)[:, None]).flatten()
    embedding, features, positions = (x.flatten(0, 1)[None] for x in (embedding, features, positions))
    hidden = module.step(embedding, features, positions, by_text, rows)
    return hidden.view(texts, -1, hidden.shape[-1])


@dataclass(frozen=True)
class FirstStep:
    """Of one wiring in one batch, for whole drafts to go on from."""

    hidden: Tensor  # [B, J, H], before the norm
    said: Tensor  # [B, J] draft ids


FirstSteps = dict[tuple[Wiring, int], FirstStep]
"""By wiring, with the state before the norm fed back, and first text of the batch."""


def first_step(module: Eagle3, embedding: Tensor, features: Tensor, attend: UnrolledAttention) -> Tensor:
    """[m B, J, H]: step 0 of m wirings at the judged positions; embedding [B, T, H], features [m B, T, H]."""
    many = len(features) // len(embedding)
    positions = torch.arange(features.shape[1], device=features.device).expand(features.shape[:2])
    with _side_by_side(module, many):
        return step(module, embedding.repeat(many, 1, 1), features, positions, attend, attend.places)


class _Halves(nn.Module):
    """A product with [embedding, feature] of many wirings whose embeddings are the same."""

    def __init__(self, whole: Linear, many: int) -> None:
        super().__init__()
        self.whole, self.many = whole, many

    def forward(self, x: Tensor) -> Tensor:
        """[1, many R, 2H] -> [1, many R, outputs]; rows of one wiring behind those of another"""
        width = x.shape[-1] // 2
        of_embedding = x[0, : x.shape[1] // self.many, :width] @ self.whole.weight[:, :width].T
        of_feature = x[0, :, width:] @ self.whole.weight[:, width:].T
        y = (of_feature.unflatten(0, (self.many, -1)) + of_embedding).flatten(0, 1)[None]
        return y if self.whole.bias is None else y + self.whole.bias


@contextmanager
def _side_by_side(module: Eagle3, many: int) -> Iterator[None]:
    attention = module.midlayer.self_attn
    names = ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")
    wholes = {name: whole for name in names if isinstance(whole := getattr(attention, name, None), Linear)}
    for name, whole in wholes.items():
        setattr(attention, name, _Halves(whole, many))
    try:
        yield
    finally:
        for name, whole in wholes.items():
            setattr(attention, name, whole)


def attention(batch: Batch, module: Eagle3, many: int = 1) -> UnrolledAttention:
    """For drafts of `many` wirings from the judged positions."""
    return UnrolledAttention(batch.places.repeat(many, 1), module.drafter.layers - 1)


def drafted(module: Eagle3, hidden: Tensor) -> Tensor:
    """hidden [B, J, H] -> logits over draft ids [B, J, Vd], float32."""
    return module.head(hidden.flatten(0, 1)[None])[0].float().view(*hidden.shape[:2], -1)
