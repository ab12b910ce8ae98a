"""Checkpoints of any size with random weights on disk: what is slow, large or out of memory with them is so for real.

They take the tiny pair's tokenizer and the rest of its config; their text means nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tandem_worker.checkpoint import Drafter, Target, open_checkpoint, read_drafter, read_target
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama

TINY_PAIR = Path(__file__).resolve().parents[1] / "examples" / "tiny-pair"
SHARD_BYTES = 4 << 30
SCALE = 0.02

WIDE = {"hidden_size": 2048, "intermediate_size": 8192, "layers": 24, "heads": 16, "kv_heads": 4, "head_dim": 128}
"""3 GB in bf16."""

Fill = Callable[[str, nn.Parameter], Tensor]
"""The value of a parameter, by name and shape."""

_CONFIG_NAMES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}


def write_target(folder: Path, shape: Mapping[str, int], device: str = "cpu", fill: Fill | None = None) -> Target:
    """`shape`: fields of Target that differ from the tiny pair's. Without `fill` weights are random."""
    like = read_target(open_checkpoint(TINY_PAIR / "target"))
    target = replace(like, **shape)  # type: ignore[arg-type]
    with torch.device("meta"):
        module = Llama(target)
    _write(folder, TINY_PAIR / "target", shape, module, fill or partial(random_weight, device=device))
    return target


def write_drafter(
    folder: Path, target: Target, shape: Mapping[str, int], device: str = "cpu", fill: Fill | None = None
) -> Drafter:
    """`shape`: fields of Drafter that differ from the tiny pair's; its ids are the target's first ones."""
    like = read_drafter(open_checkpoint(TINY_PAIR / "drafter"), read_target(open_checkpoint(TINY_PAIR / "target")))
    drafter = replace(like, **shape, target_hidden_size=target.hidden_size)  # type: ignore[arg-type]
    with torch.device("meta"):
        module = Eagle3(drafter)
    del module.embed_tokens  # the target's serves
    known = torch.arange(drafter.vocab_size) < drafter.draft_vocab_size
    maps = {"d2t": torch.zeros(drafter.draft_vocab_size, dtype=torch.int64), "t2d": known}
    sizes = {**shape, "target_hidden_size": target.hidden_size}
    _write(folder, TINY_PAIR / "drafter", sizes, module, fill or partial(random_weight, device=device), maps)
    return drafter


def _write(
    folder: Path,
    like: Path,
    shape: Mapping[str, int],
    module: nn.Module,
    fill: Fill,
    more: Mapping[str, Tensor] | None = None,
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(like, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    config = json.loads((folder / "config.json").read_text())
    config |= {_CONFIG_NAMES.get(name, name): value for name, value in shape.items()}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    shards: list[list[tuple[str, nn.Parameter]]] = [[]]
    size_bytes = 0
    for name, parameter in module.named_parameters():
        size_bytes += 2 * parameter.numel()
        if size_bytes > SHARD_BYTES:
            shards.append([])
            size_bytes = 2 * parameter.numel()
        shards[-1].append((name, parameter))
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    places: dict[str, str] = {}
    for file, shard in zip(files, shards, strict=True):
        tensors = {name: fill(name, parameter) for name, parameter in shard} | dict(more or {})
        save_file(tensors, folder / file)
        places |= dict.fromkeys(tensors, file)
    if len(files) == 1:
        (folder / files[0]).rename(folder / "model.safetensors")
    else:
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def random_weight(name: str, parameter: nn.Parameter, device: str) -> Tensor:
    value = torch.empty(parameter.shape, dtype=torch.bfloat16, device=device)
    if "norm" in name:
        return value.fill_(1).cpu()
    return value.uniform_(-SCALE, SCALE).cpu()
