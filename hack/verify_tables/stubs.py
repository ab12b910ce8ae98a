"""Stand-ins for what an engine's source imports, so that single modules of it run alone.

A module named in `real` is run from the engine's sources; every other module of the engine, and transformers, is empty
and yields a stand-in for whatever name is asked of it. Layers are stand-ins with parameters: they
live on torch's meta device and have a shape and no storage.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

UNSET = ("speculative_draft_window_size", "parallel_drafting")
"""Settings of the server that are off when nobody names them."""


class _StandInType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_stand_in" in cls.__dict__:
            if len(args) == 1 and not kwargs and (isinstance(args[0], type) or callable(args[0])):
                return args[0]  # it stood for a decorator
            return object.__new__(cls)  # type: ignore[arg-type]
        return super().__call__(*args, **kwargs)


def stand_in(name: str) -> Any:
    """A class that can be called, subclassed, asked for any attribute, and used as a decorator."""
    body = {
        "_stand_in": True,
        "__getattr__": _attribute,
        "__call__": lambda self, *args, **kwargs: args[0] if len(args) == 1 and callable(args[0]) else self,
        "__iter__": lambda self: iter(()),
        "__getitem__": lambda self, key: self,
        "__enter__": lambda self: self,
        "__exit__": lambda self, *_: None,
        "__class_getitem__": classmethod(lambda cls, key: cls),
        "__or__": lambda self, other: self,
    }
    return _StandInType(name, (), body)


def _attribute(self: Any, name: str) -> Any:
    if "_stand_in" in type(self).__dict__:
        return _member(name)
    return nn.Module.__getattr__(self, name)  # a class of the engine that has a stand-in among its bases


def _member(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return None if name in UNSET else stand_in(name)()


class _Layer(nn.Module):
    def matrix(self, rows: int, columns: int, bias: bool = False) -> None:
        self.weight = nn.Parameter(torch.empty(rows, columns, device="meta"))
        if bias:
            self.bias = nn.Parameter(torch.empty(rows, device="meta"))


class Linear(_Layer):
    def __init__(self, input_size: int, output_size: int, bias: bool = False, **_: Any) -> None:
        super().__init__()
        self.matrix(output_size, input_size, bias)


class MergedLinear(_Layer):
    def __init__(self, input_size: int, output_sizes: Sequence[int], bias: bool = False, **_: Any) -> None:
        super().__init__()
        self.matrix(sum(output_sizes), input_size, bias)


class QkvLinear(_Layer):
    def __init__(
        self, hidden_size: int, head_size: int, heads: int, kv_heads: int | None = None, bias: bool = False, **_: Any
    ) -> None:
        super().__init__()
        self.matrix((heads + 2 * (kv_heads or heads)) * head_size, hidden_size, bias)


class Norm(_Layer):
    def __init__(self, hidden_size: int, *_: Any, **__: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, device="meta"))


class Vocabulary(_Layer):
    def __init__(self, num_embeddings: int, embedding_dim: int, *_: Any, **__: Any) -> None:
        super().__init__()
        self.matrix(num_embeddings, embedding_dim)


class Mlp(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, *_: Any, **__: Any) -> None:
        super().__init__()
        self.gate_up_proj = MergedLinear(hidden_size, [intermediate_size] * 2)
        self.down_proj = Linear(intermediate_size, hidden_size)


class Attention(nn.Module):
    """Grouped-query attention before a drafter widens it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.total_num_heads, self.total_num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = QkvLinear(config.hidden_size, self.head_dim, self.total_num_heads, self.total_num_kv_heads)
        self.o_proj = Linear(self.total_num_heads * self.head_dim, config.hidden_size)


class MlaAttention(nn.Module):
    """Multi-head latent attention before a drafter widens its first projection."""

    def __init__(self, config: Any = None, **sizes: Any) -> None:
        super().__init__()
        self.q_lora_rank, self.kv_lora_rank = config.q_lora_rank, config.kv_lora_rank
        self.qk_rope_head_dim, self.qk_nope_head_dim = config.qk_rope_head_dim, config.qk_nope_head_dim
        self.v_head_dim = config.v_head_dim
        heads = config.num_attention_heads
        down = config.q_lora_rank + config.kv_lora_rank + config.qk_rope_head_dim
        width = sizes.get("input_size") or config.hidden_size
        # SGLang and vLLM name the fused projection differently.
        setattr(self, sizes.get("fused_name", "fused_qkv_a_proj_with_mqa"), Linear(width, down))
        self.q_a_layernorm, self.kv_a_layernorm = Norm(config.q_lora_rank), Norm(config.kv_lora_rank)
        self.q_b_proj = Linear(config.q_lora_rank, heads * (config.qk_nope_head_dim + config.qk_rope_head_dim))
        self.kv_b_proj = Linear(config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim))
        self.o_proj = Linear(heads * config.v_head_dim, config.hidden_size)


class VllmMlaAttention(MlaAttention):
    def __init__(self, config: Any = None, **sizes: Any) -> None:
        super().__init__(config, **sizes, fused_name="fused_qkv_a_proj")


class DecoderLayer(nn.Module):
    def __init__(self, *args: Any, config: Any = None, **_: Any) -> None:
        super().__init__()
        config = config or args[0]
        self.hidden_size = config.hidden_size
        self.self_attn = Attention(config)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size)
        self.input_layernorm, self.post_attention_layernorm = Norm(config.hidden_size), Norm(config.hidden_size)


LAYERS: dict[str, Any] = {
    "RMSNorm": Norm,
    "QKVParallelLinear": QkvLinear,
    "ReplicatedLinear": Linear,
    "ColumnParallelLinear": Linear,
    "RowParallelLinear": Linear,
    "MergedColumnParallelLinear": MergedLinear,
    "VocabParallelEmbedding": Vocabulary,
    "ParallelLMHead": Vocabulary,
    "LlamaMLP": Mlp,
    "Qwen3MLP": Mlp,
    "DeepseekV2MLP": Mlp,
    "LlamaDecoderLayer": DecoderLayer,
    "Qwen3DecoderLayer": DecoderLayer,
    "DeepseekV2AttentionMLA": MlaAttention,
    "DeepseekV2MLAAttention": VllmMlaAttention,
    "LlamaForCausalLM": nn.Module,
    "Qwen3ForCausalLM": nn.Module,
    "DeepseekV2ForCausalLM": nn.Module,
    "add_prefix": lambda name, prefix: f"{prefix}.{name}" if prefix else name,
    "maybe_prefix": lambda prefix, name: f"{prefix}.{name}" if prefix else name,
    "get_embedding_tp_kwargs": dict,
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """First of all finders, for the engine's own modules and for transformers, whose classes serve as annotations."""

    def __init__(self, engine: str, root: Path, real: Sequence[str], names: dict[str, Any]) -> None:
        self.replaced, self.root, self.real, self.names = (engine, "transformers"), root, real, LAYERS | names

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname in self.real:
            file = self.root / (fullname.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(fullname, file)
        if fullname.partition(".")[0] in self.replaced:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return self.names.get(name) or stand_in(name)

        module.__getattr__ = attribute  # type: ignore[method-assign]


def install(engine: str, root: Path, real: Sequence[str], names: dict[str, Any] | None = None) -> None:
    """From now on `import` finds the modules in `real` in the engine's sources, and stand-ins for its others."""
    sys.meta_path.insert(0, Finder(engine, root, real, names or {}))
