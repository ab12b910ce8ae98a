"""Checkpoints for `probe.py`: random weights at the shapes of public models, on the disk that is to be measured."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tandem_worker.checkpoint import open_checkpoint, read_target
from tandem_worker.models.families import FAMILIES

SCALE = 0.02
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    config: dict[str, Any]
    packed: Callable[[str], bool] = lambda name: False  # which matrices are INT4 in groups of 32


LLAMA_8B = Shape(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }
)
LLAMA_1B = Shape(
    LLAMA_8B.config
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "rope_scaling": LLAMA_8B.config["rope_scaling"] | {"factor": 32.0},
    }
)
KIMI = Shape(
    {
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 4,
        "first_k_dense_replace": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.827,
        "vocab_size": 163840,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 64.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "max_position_embeddings": 262144,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    },
    lambda name: ".experts." in name,
)
KIMI_SMALL = Shape(
    KIMI.config
    | {
        "hidden_size": 3584,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "n_routed_experts": 96,
        "vocab_size": 20480,
    },
    KIMI.packed,
)
"""Half as wide, with a quarter of the experts: for a machine without 34 GB to spare."""
SHAPES = {"llama-8b": LLAMA_8B, "llama-1b": LLAMA_1B, "kimi": KIMI, "kimi-small": KIMI_SMALL}
TOY = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "vocab_size": 2048,
    "n_routed_experts": 16,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}


def write_drafter(shape: Shape, folder: Path) -> None:
    """Llama-style, one layer, heads of 128 in at most 8 groups, a quarter of the vocabulary or 32,000 ids."""
    wide, vocabulary = shape.config["hidden_size"], shape.config["vocab_size"]
    drafted, heads = min(32000, vocabulary // 4), wide // 128
    groups = min(8, heads)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": drafted,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": 128,
        "norm_before_residual": False,
    }
    config |= {name: shape.config[name] for name in ("hidden_size", "intermediate_size", "vocab_size", "torch_dtype")}
    (folder / "config.json").write_text(json.dumps(config))
    inner = shape.config["intermediate_size"]
    sizes = {"q": heads, "k": groups, "v": groups}
    attention = {f"self_attn.{name}_proj": (many * 128, 2 * wide) for name, many in sizes.items()}
    mlp = {"mlp.gate_proj": (inner, wide), "mlp.up_proj": (inner, wide), "mlp.down_proj": (wide, inner)}
    norms = dict.fromkeys(("hidden_norm", "input_layernorm", "post_attention_layernorm"), (wide,))
    layer = {**attention, "self_attn.o_proj": (wide, heads * 128), **mlp, **norms}
    shapes = {f"midlayer.{name}.weight": size for name, size in layer.items()}
    shapes |= {"fc.weight": (wide, 3 * wide), "norm.weight": (wide,), "lm_head.weight": (drafted, wide)}
    noise = Noise()
    tensors = {
        name: torch.ones(size, dtype=torch.bfloat16) if "norm" in name else noise.weights(size)
        for name, size in shapes.items()
    }
    ids = torch.arange(drafted) * (vocabulary // drafted)
    marks = torch.zeros(vocabulary, dtype=torch.bool)
    marks[ids] = True
    save_file({**tensors, "d2t": ids - torch.arange(drafted), "t2d": marks}, folder / "model.safetensors")


def write(shape: Shape, folder: Path) -> None:
    """A shard for each layer. Values repeat from layer to layer; their bytes lie on the disk once for each."""
    (folder / "config.json").write_text(json.dumps(shape.config))
    target, noise = read_target(open_checkpoint(folder, weights_expected=False)), Noise()
    table = (target.vocab_size, target.hidden_size)
    rest = {"model.embed_tokens.weight": table, "model.norm.weight": table[1:], "lm_head.weight": table}
    shard(shape, rest, noise, folder / "model-rest.safetensors")
    for i in range(target.layers):
        with torch.device("meta"):
            layer = FAMILIES[target.family].decoder_layer(target, i)
        sizes = {f"model.layers.{i}.{name}": tuple(weight.shape) for name, weight in layer.named_parameters()}
        shard(shape, sizes, noise, folder / f"model-{i:03d}.safetensors")


class Noise:
    """Drawn once and laid out again and again: to draw billions of values would take longer than to write them. Its
    length is prime, so that no two rows of a matrix are alike.
    """

    COUNT = 2**24 + 43

    def __init__(self) -> None:
        self.values = torch.randn(self.COUNT).mul_(SCALE).bfloat16()
        self.words = torch.randint(-(2**31), 2**31, (self.COUNT,), dtype=torch.int32)

    def weights(self, size: Sequence[int]) -> Tensor:
        return self._laid_out(self.values, size)

    def packed(self, size: Sequence[int]) -> Tensor:
        return self._laid_out(self.words, size)

    def _laid_out(self, block: Tensor, size: Sequence[int]) -> Tensor:
        whole = torch.empty(math.prod(size), dtype=block.dtype)
        for piece in whole.split(self.COUNT):
            piece.copy_(block[: len(piece)])
        return whole.view(*size)


def shard(shape: Shape, sizes: dict[str, tuple[int, ...]], noise: Noise, file: Path) -> None:
    tensors: Tensors = {}
    for name, size in sizes.items():
        if shape.packed(name):
            module, (rows, columns) = name.removesuffix("weight"), size
            scale = torch.full((rows, columns // 32), SCALE / 4, dtype=torch.bfloat16)
            tensors |= {module + "weight_packed": noise.packed((rows, columns // 8)), module + "weight_scale": scale}
            tensors[module + "weight_shape"] = torch.tensor([rows, columns])
        elif "norm" in name:
            tensors[name] = torch.ones(size, dtype=torch.bfloat16)
        else:
            tensors[name] = noise.weights(size)
    save_file(tensors, file)
    with file.open("rb") as stream_:
        os.fsync(stream_.fileno())
