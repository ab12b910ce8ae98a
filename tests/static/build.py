"""Checkpoints of real sizes on a few kilobytes of disk: a safetensors header is written, and the file is given the size
that the header declares. Only the small maps of the draft vocabulary hold real bytes.

Nothing here knows the code under test: the format and the shapes are written down a second time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
Change = Callable[["Model", "Model"], None]  # of target and drafter


@dataclass
class Model:
    """config.json and the tensors of one checkpoint, to be changed before they are written."""

    config: dict[str, Any]
    tensors: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)

    def set(self, **fields: Any) -> None:
        self.config |= fields

    def drop(self, *names: str) -> None:
        """Fields of the config or tensors."""
        for name in names:
            self.config.pop(name, None)
            self.tensors.pop(name, None)
            self.data.pop(name, None)

    def put(self, name: str, shape: list[int], dtype: str = "BF16", data: bytes | None = None) -> None:
        self.tensors[name] = (dtype, shape)
        self.data.pop(name, None)
        if data is not None:
            self.data[name] = data

    def rename(self, old: str, new: str) -> None:
        self.tensors = {name.replace(old, new): value for name, value in self.tensors.items()}
        self.data = {name.replace(old, new): value for name, value in self.data.items()}

    def write(self, folder: Path, shards: int = 1) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        names = list(self.tensors)
        if shards == 1:
            write_shard(folder / "model.safetensors", self.tensors, self.data)
            return folder
        weight_map: dict[str, str] = {}
        for i in range(shards):
            part = {name: self.tensors[name] for name in names[i::shards]}
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            write_shard(folder / file, part, self.data)
            weight_map |= dict.fromkeys(part, file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder


def write_shard(file: Path, tensors: Mapping[str, tuple[str, list[int]]], data: Mapping[str, bytes]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    reached = 0
    for name, (dtype, shape) in tensors.items():
        size = ITEM_BYTES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [reached, reached + size]}
        reached += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + reached)
        for name in tensors:
            if name in data:
                stream.seek(8 + len(text) + header[name]["data_offsets"][0])
                stream.write(data[name])


def offsets(ids: list[int]) -> bytes:
    """d2t: target id minus draft id, as I64."""
    return struct.pack(f"<{len(ids)}q", *(target - draft for draft, target in enumerate(ids)))


def marks(ids: list[int], vocabulary: int) -> bytes:
    """t2d: which target ids can be drafted, as BOOL."""
    marked = bytearray(vocabulary)
    for i in ids:
        marked[i] = 1
    return bytes(marked)


def spread(draft: int, vocabulary: int) -> list[int]:
    """A draft vocabulary as training code writes it: rising, and the same as the target's at the beginning."""
    same = draft // 4
    rest = draft - same
    return [*range(same), *(same + i * (vocabulary - same - 1) // max(rest - 1, 1) for i in range(rest))]


def map_vocabulary(drafter: Model, draft: int, vocabulary: int, ids: list[int] | None = None) -> None:
    ids = spread(draft, vocabulary) if ids is None else ids
    drafter.put("d2t", [draft], "I64", offsets(ids))
    drafter.put("t2d", [vocabulary], "BOOL", marks(ids, vocabulary))


def target(**config: Any) -> Model:
    """A target whose files hold its embedding, its head and its final norm, and one layer's norms: headers of the rest
    change nothing for engines that are not the builtin one.
    """
    text = config.get("text_config", config)
    hidden, vocabulary = text["hidden_size"], text.get("vocab_size", 262208)
    prefix = "language_model." if "text_config" in config else ""
    model = Model(config)
    model.put(f"{prefix}model.embed_tokens.weight", [vocabulary, hidden])
    model.put(f"{prefix}model.norm.weight", [hidden])
    model.put(f"{prefix}lm_head.weight", [vocabulary, hidden])
    return model


def drafter(name: str = "midlayer.", maps: bool = True, **config: Any) -> Model:
    """A Llama-style EAGLE-3 drafter by the fields of its config (those of a nested layer config count)."""
    inner = config.get("transformer_layer_config", config)
    hidden, wide = inner["hidden_size"], inner["intermediate_size"]
    head_dim = inner.get("head_dim") or hidden // inner["num_attention_heads"]
    queries, keys = inner["num_attention_heads"] * head_dim, inner["num_key_value_heads"] * head_dim
    vocabulary = inner["vocab_size"]
    draft = config.get("draft_vocab_size") or vocabulary
    dtype = {"float16": "F16", "float32": "F32"}.get(config.get("dtype") or config.get("torch_dtype") or "", "BF16")
    model = Model(config)

    def put(tensor: str, *shape: int) -> None:
        model.put(f"{tensor}.weight", list(shape), dtype)

    put("fc", hidden, 3 * (config.get("target_hidden_size") or hidden))
    for i in range(inner.get("num_hidden_layers", 1)):
        layer, inputs = (name, 2 * hidden) if i == 0 else (f"layers.{i}.", hidden)
        put(f"{layer}self_attn.q_proj", queries, inputs)
        put(f"{layer}self_attn.k_proj", keys, inputs)
        put(f"{layer}self_attn.v_proj", keys, inputs)
        put(f"{layer}self_attn.o_proj", hidden, queries)
        put(f"{layer}mlp.gate_proj", wide, hidden)
        put(f"{layer}mlp.up_proj", wide, hidden)
        put(f"{layer}mlp.down_proj", hidden, wide)
        for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            put(f"{layer}{norm}", hidden)
    put("norm", hidden)
    put("lm_head", draft, hidden)
    if maps and draft != vocabulary:
        map_vocabulary(model, draft, vocabulary)
    return model


# --- the baseline pair: Llama-3.1-8B-Instruct and yuhuili/EAGLE3-LLaMA3.1-Instruct-8B -------------------------------

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama_8b() -> Model:
    return target(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        rope_theta=500000.0,
        rope_scaling=LLAMA3_ROPE,
        max_position_embeddings=131072,
        torch_dtype="bfloat16",
        tie_word_embeddings=False,
    )


def eagle3_8b(**fields: Any) -> Model:
    """The published drafter; with `architectures` a re-export for another engine."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
        "max_position_embeddings": 2048,
        "torch_dtype": "float16",
        "tie_word_embeddings": False,
    }
    return drafter(**(config | fields))
