"""A wiring made real: the drafter's module and tables with every part as the wiring says.

Tensors are read once and shared by all modules; what a wiring changes is a flag of the description, or another tensor
in the place of one. Shapes: V target vocabulary, Vd draft vocabulary, H hidden size, D head size.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tandem_worker.checkpoint import Drafter, TensorInfo
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.load import EMBEDDING, padded
from tandem_worker.models.reader import read
from tandem_worker.probe.streamed import Streamed, mapped
from tandem_worker.probe.wiring import DraftIds, Pairs, Source, Wiring

FRESH_DEVIATION = 0.02  # of the weights of a fresh model, as transformers initialises them
HEAD = "lm_head.weight"
ROTATED = re.compile(r"self_attn\.[qk]_(proj\.(weight|bias)|norm\.weight)$")


@dataclass(frozen=True)
class Parts:
    """What wirings choose from. Embeddings stay as they lie in the files, on the host: rows are looked up."""

    drafter: Drafter
    tensors: Mapping[str, Tensor]  # parameter -> values, of the drafter's files; the embedding on the host, too
    embedding: Tensor  # [V, H] of the target
    head_rows: Callable[[Tensor], Tensor]  # target ids [M] -> rows of the target's head [M, H], on the device
    device: torch.device
    dtype: torch.dtype
    heads: dict[DraftIds, Tensor] = field(default_factory=dict, repr=False)  # the target's rows that were asked for

    def head_of(self, ids: Tensor, reading: DraftIds) -> Tensor:
        """The target's rows of draft ids [Vd] -> [Vd, H]."""
        if reading not in self.heads:
            self.heads[reading] = self.head_rows(ids.clamp(0, len(self.embedding) - 1))
        return self.heads[reading]


@dataclass(frozen=True)
class Built:
    wiring: Wiring
    module: Eagle3
    table: Tensor  # [V, H], on the host
    ids: Tensor  # [Vd] target id of each draft id; out of the vocabulary where d2t is read in a wrong sense

    def embed(self, tokens: Tensor) -> Tensor:
        """Target ids [B, T] -> [B, T, H]."""
        inside = tokens.clamp(0, len(self.table) - 1)
        like = self.module.norm.weight
        return F.embedding(inside.to(self.table.device), self.table).to(like)


def load_parts(drafter: Drafter, tensors: Mapping[str, TensorInfo], streamed: Streamed) -> Parts:
    """The drafter in the arithmetic of the target's pass."""
    values = {}
    for name, info in tensors.items():
        if name == EMBEDDING:
            values[name] = mapped(info)
        else:
            value = padded(name, read(info), (drafter.vocab_size,))
            values[name] = value.to(streamed.device, streamed.dtype if value.is_floating_point() else None)
    return Parts(drafter, values, streamed.embedding, streamed.head_rows, streamed.device, streamed.dtype)


def build(parts: Parts, wiring: Wiring) -> Built:
    """Raises nothing for a wiring that `resolved.choices_of` offers: every tensor that it names is there."""
    described = replace(
        parts.drafter,
        norm_before_residual=wiring.norm_before_residual,
        norm_before_fc=wiring.norm_before_fc,
        fc_norm=wiring.fc_norm,
        norm_output=wiring.norm_output,
        rope_theta=wiring.rope_theta,
    )
    with torch.device("meta"):
        module = Eagle3(described)
    wanted, ids = module.state_dict(), target_ids(parts, wiring)
    values = {name: tensor for name, tensor in parts.tensors.items() if name in wanted and name != EMBEDDING}
    if wiring.head is Source.TARGET:
        values[HEAD] = parts.head_of(ids, wiring.ids)
    lost = wiring.random | ({HEAD} if wiring.head is Source.RANDOM else frozenset())
    lost |= wanted.keys() - values.keys() - {EMBEDDING}
    values |= {name: fresh(name, wanted[name], parts) for name in sorted(lost) if name in wanted}
    if wiring.rope_pairs is Pairs.INTERLEAVED:
        values |= {key: as_halves(value, described.head_dim) for key, value in values.items() if ROTATED.search(key)}
    module.load_state_dict(values, strict=False, assign=True)
    return Built(wiring, module.requires_grad_(False).eval(), _table(parts, wiring, wanted[EMBEDDING]), ids)


def target_ids(parts: Parts, wiring: Wiring) -> Tensor:
    """[Vd]"""
    places = torch.arange(parts.drafter.draft_vocab_size, device=parts.device)
    if wiring.ids is DraftIds.MARKED:
        return parts.tensors["t2d"].nonzero().flatten()
    if wiring.ids is DraftIds.IGNORED:
        return places
    d2t = parts.tensors["d2t"].to(torch.int64)
    return d2t if wiring.ids is DraftIds.IDS else places + d2t


def fresh(name: str, like: Tensor, parts: Parts) -> Tensor:
    """The values that a parameter has when nothing was loaded into it: norms of one, else small noise. Repeatable."""
    if len(like.shape) == 1:
        return torch.ones(like.shape, device=parts.device, dtype=parts.dtype)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return (FRESH_DEVIATION * torch.randn(like.shape, generator=generator)).to(parts.device, parts.dtype)


def as_halves(weight: Tensor, head_dim: int) -> Tensor:
    """weight [heads * D, inputs], or a bias or a gain [heads * D] or [D] -> the same rows, each head's neighbours put
    into its two halves.

    Scores of attention do not change when queries and keys are permuted alike, so turning neighbours is turning halves
    of rows that were permuted.
    """
    pairs = weight.view(-1, head_dim // 2, 2, *weight.shape[1:])  # [heads, D/2, 2, inputs]
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def _table(parts: Parts, wiring: Wiring, like: Tensor) -> Tensor:
    if wiring.embedding is Source.TARGET:
        return parts.embedding
    return fresh(EMBEDDING, like, parts).cpu() if wiring.embedding is Source.RANDOM else parts.tensors[EMBEDDING]
