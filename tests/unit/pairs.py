"""Checkpoints for tests: a healthy pair of a few kilobytes that each test damages in one place."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tandem_worker.checkpoint import open_checkpoint, read_drafter, read_target
from tandem_worker.checks import Pair

TINY_PAIR = Path(__file__).parents[2] / "examples" / "tiny-pair"
NUMPY = {"BOOL": "?", "I32": "<i4", "I64": "<i8", "U8": "u1", "F16": "<f2", "F32": "<f4"}

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, WIDE, VOCAB, DRAFT_VOCAB = 16, 8, 4, 2, 6, 24, 64, 12
DRAFTED = np.array([0, 1, 2, 3, 9, 11, 20, 21, 40, 41, 50, 63])  # begins with a run of zero offsets, which is healthy


@dataclass
class Files:
    """config and tensors of a checkpoint, as they will be written."""

    config: dict[str, Any]
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)  # of tensors that are not stored as F32

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        write_shard(folder / "model.safetensors", self.tensors, self.dtypes)
        return folder

    def rename(self, old: str, new: str) -> None:
        self.tensors = {name.replace(old, new): values for name, values in self.tensors.items()}

    def prefix(self, text: str) -> None:
        self.tensors = {text + name: values for name, values in self.tensors.items()}


def write_shard(file: Path, tensors: dict[str, np.ndarray], dtypes: dict[str, str] | None = None) -> None:
    entries, data = {}, b""
    for name, values in tensors.items():
        dtype = (dtypes or {}).get(name) or {"b": "BOOL", "i": "I64"}.get(values.dtype.kind, "F32")
        part = values.astype(NUMPY[dtype]).tobytes()
        entries[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(part)],
        }
        data += part
    file.write_bytes(with_header(json.dumps(entries).encode(), data))


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def target_files() -> Files:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": WIDE,
        "vocab_size": VOCAB,
        **_common(),
    }
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    for i in range(LAYERS):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in _layer(HIDDEN).items()}
    return Files(config, _random(shapes, seed=0))


def drafter_files() -> Files:
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "intermediate_size": WIDE,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        **_common(),
    }
    shapes = {f"midlayer.{name}": shape for name, shape in _layer(2 * HIDDEN).items()}
    shapes |= {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
    }
    tensors = _random(shapes, seed=1)
    tensors["d2t"] = DRAFTED - np.arange(DRAFT_VOCAB)
    tensors["t2d"] = np.isin(np.arange(VOCAB), DRAFTED)
    return Files(config, tensors)


def described(folder: Path, target: Files, drafter: Files, trained_on: tuple[int, ...] | None = None) -> Pair:
    target_checkpoint = open_checkpoint(target.write(folder / "target"))
    drafter_checkpoint = open_checkpoint(drafter.write(folder / "drafter"))
    described_target = read_target(target_checkpoint)
    described_drafter = read_drafter(drafter_checkpoint, described_target)
    return Pair(described_target, described_drafter, target_checkpoint, drafter_checkpoint, trained_on)


def copy_of(name: str, folder: Path, **config: Any) -> Path:
    """A copy of a checkpoint of the tiny pair, its config changed; a value of None removes the field."""
    copy = folder / name
    shutil.copytree(TINY_PAIR / name, copy)
    values = json.loads((copy / "config.json").read_text()) | config
    (copy / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return copy


def overwrite(folder: Path, tensor: str, data: bytes, start: int = 0) -> None:
    """Writes bytes into a tensor of a checkpoint on disk."""
    info = open_checkpoint(folder).tensors[tensor]
    with info.file.open("r+b") as stream:
        stream.seek(info.start + start)
        stream.write(data)


def _common() -> dict[str, Any]:
    return {
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }


def _layer(inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        "self_attn.q_proj.weight": (HEADS * HEAD_DIM, inputs),
        "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, inputs),
        "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, inputs),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj.weight": (WIDE, HIDDEN),
        "mlp.up_proj.weight": (WIDE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, WIDE),
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }


def _random(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
