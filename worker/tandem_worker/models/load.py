"""Checkpoints into modules: every parameter is read, shared or named as missing; nothing is left to chance.

Modules are made on the meta device, so a parameter that nothing filled can not be mistaken for a random one: using it
fails.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

from tandem_worker.checkpoint import Checkpoint, Drafter, Target, TensorInfo
from tandem_worker.checkpoint.source import Source, shape_differs
from tandem_worker.checks import drafter_parameters, dropped_tensors, optional_parameters, shared_parameters
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.families import FAMILIES
from tandem_worker.models.llama import Llama
from tandem_worker.models.quantised import kept, weight_of
from tandem_worker.models.reader import read
from tandem_worker.models.share import WHOLE, Share

log = logging.getLogger(__name__)

GIB = 1 << 30
EMBEDDING = "embed_tokens.weight"


class LoadedDrafter(NamedTuple):
    """The drafter and what was really done. Names of parameters, but `dropped` are names of tensors; all sorted."""

    drafter: Eagle3
    loaded: tuple[str, ...]
    shared: tuple[str, ...]
    missing: tuple[str, ...]
    dropped: tuple[str, ...]


def load_target(
    checkpoint: Checkpoint,
    target: Target,
    dtype: torch.dtype,
    device: torch.device,
    keep_8_bits: bool = False,
    share: Share = WHOLE,
) -> Llama:
    """The target in memory, of any family, or a rank's share of it. Quantised weights become `dtype`; with
    `keep_8_bits` those of 8 bits stay so where the kernels can multiply by them.

    Raises CheckpointError when a parameter is missing or has another shape than the config says.
    """
    with torch.device("meta"):
        whole = FAMILIES[target.family](target)
        model = FAMILIES[target.family](share.of(target)).requires_grad_(False).eval()
    wanted = [(name, tuple(weight.shape)) for name, weight in whole.named_parameters()]  # a tied head counts once
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    stored = Source(checkpoint).stored(wanted)
    tensors = {}
    for one in stored:
        parts = [read(part).to(device) for part in one.parts]
        stays = kept(one, parts) if keep_8_bits else None
        if stays is not None:
            stays = share.cut_kept(stays, shapes[one.parameter])
        if stays is None:
            tensors[one.parameter] = share.cut(weight_of(one, parts, dtype), shapes[one.parameter])
        else:
            model.get_submodule(one.parameter.removesuffix(".weight")).keep(stays)  # type: ignore[operator]
    model.load_state_dict(tensors, strict=False, assign=True)
    if target.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight  # assigning has parted them
    sizes = {weight.data_ptr(): weight.nbytes for weight in model.parameters()}
    small = sum(weight.nbytes for weight in model.parameters() if weight.itemsize == 1)
    log.info("The target's weights take %.2f GiB, %.2f GiB of it in 8 bits", sum(sizes.values()) / GIB, small / GIB)
    return model


def load_drafter(
    checkpoint: Checkpoint, drafter: Drafter, llama: Llama, dtype: torch.dtype, device: torch.device
) -> LoadedDrafter:
    """Parameters that only the target has are shared with it, not copied. Missing ones stay on the meta device.

    Raises CheckpointError when a tensor has another shape than the config says.
    """
    with torch.device("meta"):
        eagle3 = Eagle3(drafter)
    wanted = eagle3.state_dict()
    own = _read(drafter_parameters(checkpoint, drafter), wanted, dtype, device)
    lendable = dict(llama.named_parameters())
    shareable = shared_parameters(llama.target, drafter, lendable)
    shared = {name: lendable[key] for name, key in shareable.items() if name in wanted and name not in own}
    lent = shared.pop(EMBEDDING, None)  # whole: a target padded beyond the drafter's vocab_size has more rows than that
    same = _same_vocabulary(drafter, device) if drafter.draft_vocab_size == drafter.vocab_size else {}
    eagle3.load_state_dict({**same, **shared, **own}, strict=False, assign=True)
    if lent is not None:
        eagle3.embed_tokens.weight = lent
        shared[EMBEDDING] = lent
    return LoadedDrafter(
        eagle3.requires_grad_(False).eval(),
        loaded=tuple(sorted(own)),
        shared=tuple(sorted(shared)),
        missing=tuple(sorted(wanted.keys() - own.keys() - shared.keys() - optional_parameters(drafter))),
        dropped=dropped_tensors(checkpoint, drafter),
    )


def _same_vocabulary(drafter: Drafter, device: torch.device) -> dict[str, Tensor]:
    """Draft ids that are target ids need no map in the files."""
    size = drafter.draft_vocab_size
    return {
        "d2t": torch.zeros(size, dtype=torch.int64, device=device),
        "t2d": torch.ones(size, dtype=torch.bool, device=device),
    }


def _read(
    infos: Mapping[str, TensorInfo], wanted: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """Parameter name -> its tensor, floating point as `dtype`, the rest as the module has it."""
    by_file = defaultdict(list)
    for name, info in infos.items():
        if tuple(wanted[name].shape) != info.shape and not may_be_padded(info, wanted[name].shape):
            raise shape_differs(info, tuple(wanted[name].shape))
        by_file[info.file].append(name)
    tensors = {}
    for file, names in by_file.items():
        with safe_open(file, framework="pt", device=str(device)) as shard:
            for name in names:
                kind = dtype if wanted[name].is_floating_point() else wanted[name].dtype
                tensors[name] = padded(name, shard.get_tensor(infos[name].name).to(kind), wanted[name].shape)
    return tensors


def may_be_padded(info: TensorInfo, shape: Sequence[int]) -> bool:
    """A t2d that ends where the tokenizer does, before the rows that pad the vocabulary."""
    return info.name.endswith("t2d") and len(info.shape) == 1 and info.shape[0] < shape[0]


def padded(name: str, value: Tensor, shape: Sequence[int]) -> Tensor:
    """t2d with the entries that it lacks: ids that are never drafted. One that is too long stays so, and is refused."""
    return F.pad(value, (0, max(0, shape[0] - len(value)))) if name == "t2d" else value
