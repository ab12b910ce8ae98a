"""Pairs of real size for the static benchmark: real shapes, names and configs, next to no bytes on disk.

A safetensors file is a header and then data; the data of these files is a hole. Only what the static checks look at is
written: norms, the two small vocabulary tensors, and the first rows of what is large. Nothing of the code under
measurement is used here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "BOOL": 1}
WRITTEN_BYTES = 64 * 1024  # of each float tensor; norms are smaller than this


class Spec(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None  # None: ones at the beginning, then a hole


def write_checkpoint(folder: Path, config: dict[str, Any], shards: list[list[Spec]]) -> int:
    """Writes config.json, the shards and, for more than one, the index. Returns how many tensors there are."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    weight_map: dict[str, str] = {}
    for number, specs in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):06}.safetensors" if len(shards) > 1 else "model.safetensors"
        _write_shard(folder / name, specs)
        weight_map |= {spec.name: name for spec in specs}
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(_size(spec) for specs in shards for spec in specs)}}
        index["weight_map"] = weight_map  # type: ignore[assignment]
        # As transformers writes it.
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return len(weight_map)


def _write_shard(file: Path, specs: Iterable[Spec]) -> None:
    """Header in the form and order of the safetensors library: wide dtypes first, then by name."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    written: list[tuple[int, bytes]] = []
    end = 0
    for spec in sorted(specs, key=lambda spec: (-ITEM_BYTES[spec.dtype], spec.name)):
        start, end = end, end + _size(spec)
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, end]}
        data = spec.data
        if data is None and spec.dtype in ("BF16", "F16"):
            one = b"\x80\x3f" if spec.dtype == "BF16" else b"\x00\x3c"
            data = one * (min(end - start, WRITTEN_BYTES) // 2)
        if data is not None:
            written.append((start, data))
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        for start, data in written:
            stream.seek(8 + len(header) + start)
            stream.write(data)
        stream.truncate(8 + len(header) + end)


def _size(spec: Spec) -> int:
    return prod(spec.shape) * ITEM_BYTES[spec.dtype]


# --- Llama-3.1-8B and its public EAGLE-3 drafter ----------------------------------------------------------------------

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def write_llama_8b(folder: Path) -> int:
    layers = [
        [
            *(Spec(f"model.layers.{i}.{name}.weight", "BF16", shape) for name, shape in _llama_layer(4096).items()),
        ]
        for i in range(32)
    ]
    ends = [
        Spec("model.embed_tokens.weight", "BF16", (128256, 4096)),
        Spec("model.norm.weight", "BF16", (4096,)),
        Spec("lm_head.weight", "BF16", (128256, 4096)),
    ]
    shards = [[spec for layer in layers[i : i + 8] for spec in layer] for i in range(0, 32, 8)]
    shards[0].append(ends[0])
    shards[-1].extend(ends[1:])
    return write_checkpoint(folder, LLAMA_8B, shards)


def write_llama_8b_drafter(folder: Path) -> int:
    """The shapes of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, under the architecture name that engines ask for."""
    config = LLAMA_8B | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    config |= {"draft_vocab_size": 32000}
    drafted = np.sort(np.random.default_rng(0).choice(128256, 32000, replace=False))
    d2t = (drafted - np.arange(32000)).astype("<i8").tobytes()
    t2d = np.isin(np.arange(128256), drafted).tobytes()
    specs = [
        *(Spec(f"midlayer.{name}.weight", "F16", shape) for name, shape in _llama_layer(8192).items()),
        Spec("fc.weight", "F16", (4096, 3 * 4096)),
        Spec("midlayer.hidden_norm.weight", "F16", (4096,)),
        Spec("norm.weight", "F16", (4096,)),
        Spec("lm_head.weight", "F16", (32000, 4096)),
        Spec("d2t", "I64", (32000,), d2t),
        Spec("t2d", "BOOL", (128256,), t2d),
    ]
    return write_checkpoint(folder, config | {"torch_dtype": "float16"}, [specs])


def _llama_layer(inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        "self_attn.q_proj": (4096, inputs),
        "self_attn.k_proj": (1024, inputs),
        "self_attn.v_proj": (1024, inputs),
        "self_attn.o_proj": (4096, 4096),
        "mlp.gate_proj": (14336, 4096),
        "mlp.up_proj": (14336, 4096),
        "mlp.down_proj": (4096, 14336),
        "input_layernorm": (4096,),
        "post_attention_layernorm": (4096,),
    }


# --- Kimi-K2.5 and an MLA drafter -------------------------------------------------------------------------------------

HIDDEN, EXPERTS, MOE_WIDE, LAYERS, VOCAB = 7168, 384, 2048, 61, 163840

KIMI_TEXT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "attention_bias": False,
    "bos_token_id": 163584,
    "eos_token_id": 163586,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": MOE_WIDE,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 64.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": VOCAB,
}
INT4: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
        }
    },
}
KIMI: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "media_placeholder_token_id": 163605,
    "text_config": KIMI_TEXT | {"quantization_config": INT4, "dtype": "bfloat16"},
    "vision_config": {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "text_hidden_size": HIDDEN},
}


def write_kimi(folder: Path) -> int:
    """64 shards: one per decoder layer, one with embedding, one with norm and head, one with the vision tower."""
    prefix = "language_model.model"
    shards = [list(_kimi_layer(f"{prefix}.layers.{i}", dense=i == 0)) for i in range(LAYERS)]
    shards.append([Spec(f"{prefix}.embed_tokens.weight", "BF16", (VOCAB, HIDDEN))])
    norm = Spec(f"{prefix}.norm.weight", "BF16", (HIDDEN,))
    shards.append([norm, Spec("language_model.lm_head.weight", "BF16", (VOCAB, HIDDEN))])
    shards.append(list(_vision_tower()))
    return write_checkpoint(folder, KIMI, shards)


def _kimi_layer(prefix: str, dense: bool) -> Iterator[Spec]:
    for name, shape in _mla(inputs=HIDDEN).items():
        yield Spec(f"{prefix}.{name}.weight", "BF16", shape)
    if dense:
        yield from _mlp(f"{prefix}.mlp", 18432)
        return
    yield Spec(f"{prefix}.mlp.gate.weight", "BF16", (EXPERTS, HIDDEN))
    yield Spec(f"{prefix}.mlp.gate.e_score_correction_bias", "F32", (EXPERTS,))
    yield from _mlp(f"{prefix}.mlp.shared_experts", MOE_WIDE)
    for expert in range(EXPERTS):
        for name in ("gate", "up", "down"):
            rows, columns = (HIDDEN, MOE_WIDE) if name == "down" else (MOE_WIDE, HIDDEN)
            matrix = f"{prefix}.mlp.experts.{expert}.{name}_proj"
            yield Spec(f"{matrix}.weight_packed", "I32", (rows, columns // 8))
            yield Spec(f"{matrix}.weight_scale", "BF16", (rows, columns // 32), b"")
            yield Spec(f"{matrix}.weight_shape", "I32", (2,))


def _mla(inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        "self_attn.q_a_proj": (1536, inputs),
        "self_attn.q_a_layernorm": (1536,),
        "self_attn.q_b_proj": (64 * 192, 1536),
        "self_attn.kv_a_proj_with_mqa": (576, inputs),
        "self_attn.kv_a_layernorm": (512,),
        "self_attn.kv_b_proj": (64 * 256, 512),
        "self_attn.o_proj": (HIDDEN, 64 * 128),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }


def _mlp(prefix: str, wide: int) -> Iterator[Spec]:
    for name in ("gate", "up", "down"):
        shape = (HIDDEN, wide) if name == "down" else (wide, HIDDEN)
        yield Spec(f"{prefix}.{name}_proj.weight", "BF16", shape)


def _vision_tower() -> Iterator[Spec]:
    for i in range(27):
        block = f"vision_tower.encoder.blocks.{i}"
        for name, shape in {"wqkv": (3456, 1152), "wo": (1152, 1152)}.items():
            yield Spec(f"{block}.{name}.weight", "BF16", shape)
            yield Spec(f"{block}.{name}.bias", "BF16", shape[:1])
        for name, shape in {"mlp.fc0": (4304, 1152), "mlp.fc1": (1152, 4304)}.items():
            yield Spec(f"{block}.{name}.weight", "BF16", shape)
            yield Spec(f"{block}.{name}.bias", "BF16", shape[:1])
        for name in ("norm0", "norm1"):
            yield Spec(f"{block}.{name}.weight", "BF16", (1152,))
            yield Spec(f"{block}.{name}.bias", "BF16", (1152,))
    yield Spec("mm_projector.proj.0.weight", "BF16", (4608, 4608))
    yield Spec("mm_projector.proj.2.weight", "BF16", (HIDDEN, 4608))


def write_kimi_drafter(folder: Path) -> int:
    """An MLA drafter over the whole vocabulary, as TorchSpec's kimi_k25_eagle3_mla.json describes it."""
    text = {name: value for name, value in KIMI_TEXT.items() if "expert" not in name}
    config = text | {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCAB,
        "dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57], "use_aux_hidden_state": True},
    }
    specs = [
        *(Spec(f"midlayer.{name}.weight", "BF16", shape) for name, shape in _mla(inputs=2 * HIDDEN).items()),
        *_mlp("midlayer.mlp", 18432),
        Spec("midlayer.hidden_norm.weight", "BF16", (HIDDEN,)),
        Spec("fc.weight", "BF16", (HIDDEN, 3 * HIDDEN)),
        Spec("norm.weight", "BF16", (HIDDEN,)),
        Spec("lm_head.weight", "BF16", (VOCAB, HIDDEN)),
        Spec("embed_tokens.weight", "BF16", (VOCAB, HIDDEN)),
    ]
    return write_checkpoint(folder, config, [specs])
