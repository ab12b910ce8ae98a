"""The parameters that a drafter's class has, and their shapes: [outputs, inputs] for matrices.

H hidden size of the drafter, K captured states, Ht their width. A size carries the name of the field it comes from, so
that a wrong field is told once and not for each tensor that it sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tandem_worker.checkpoint.declared import DeclaredDrafter

VOCABULARY = ("d2t", "t2d")


class Dim(NamedTuple):
    size: int | None  # None: the config does not say
    source: str  # the field, or the product of fields


Shape = tuple[Dim, ...]


def expected_parameters(
    drafter: DeclaredDrafter, family: str, states: int | None, target_width: int | None, flags: Mapping[str, bool]
) -> dict[str, Shape]:
    """Of the family "llama", "qwen3" (with norms of queries and keys) or "mla" (compressed keys and values)."""
    hidden, wide = (
        Dim(drafter.hidden_size.value, "hidden_size"),
        Dim(drafter.intermediate_size.value, "intermediate_size"),
    )
    shapes: dict[str, Shape] = {}
    for i in range(min(drafter.layers.value or 1, 64)):
        layer = "midlayer" if i == 0 else f"layers.{i}"
        inputs = _times(2, hidden) if i == 0 else hidden
        attention = (
            _mla(drafter, inputs, hidden) if family == "mla" else _attention(drafter, family, inputs, hidden, flags)
        )
        shapes |= {f"{layer}.self_attn.{name}": shape for name, shape in attention.items()}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (wide, hidden) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, wide)
        for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{norm}.weight"] = (hidden,)
    rows = Dim(drafter.vocabulary, "draft_vocab_size")
    vocabulary = Dim(drafter.vocab_size.value, "vocab_size")
    shapes |= {"norm.weight": (hidden,), "lm_head.weight": (rows, hidden), "embed_tokens.weight": (vocabulary, hidden)}
    shapes |= {"d2t": (rows,), "t2d": (vocabulary,)}
    if drafter.aux:
        shapes |= _fusion(hidden, states, Dim(target_width, "target_hidden_size"), flags)
    return shapes


def _fusion(hidden: Dim, states: int | None, width: Dim, flags: Mapping[str, bool]) -> dict[str, Shape]:
    """fc and what belongs to it."""
    side_by_side = _times(states, width)
    shapes: dict[str, Shape] = {"fc.weight": (hidden, side_by_side)}
    if flags.get("fc_bias"):
        shapes["fc.bias"] = (hidden,)
    if flags.get("norm_before_fc"):
        shapes["input_norm.weight"] = (side_by_side,)
    if flags.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (width,) for i in range(states or 0)}
    return shapes


def _attention(
    drafter: DeclaredDrafter, family: str, inputs: Dim, hidden: Dim, flags: Mapping[str, bool]
) -> dict[str, Shape]:
    head_dim = drafter.head_dim.value
    queries = _product("num_attention_heads x head_dim", drafter.heads.value, head_dim)
    keys = _product("num_key_value_heads x head_dim", drafter.kv_heads.value, head_dim)
    shapes: dict[str, Shape] = {
        "q_proj.weight": (queries, inputs),
        "k_proj.weight": (keys, inputs),
        "v_proj.weight": (keys, inputs),
        "o_proj.weight": (hidden, queries),
    }
    if family == "qwen3":
        shapes |= {f"{name}_norm.weight": (Dim(head_dim, "head_dim"),) for name in "qk"}
    if flags.get("attention_bias"):
        shapes |= {"q_proj.bias": (queries,), "k_proj.bias": (keys,), "v_proj.bias": (keys,)}
        shapes["o_proj.bias"] = (hidden,)
    return shapes


def _mla(drafter: DeclaredDrafter, inputs: Dim, hidden: Dim) -> dict[str, Shape]:
    mla, heads = drafter.mla, drafter.heads.value
    q_lora, kv_lora = Dim(mla.q_lora.value, "q_lora_rank"), Dim(mla.kv_lora.value, "kv_lora_rank")
    query_head = _sum(mla.nope_head.value, mla.rope_head.value)
    value_head = _sum(mla.nope_head.value, mla.value_head.value)
    queries = _product("num_attention_heads x (qk_nope_head_dim + qk_rope_head_dim)", heads, query_head)
    compressed = Dim(_sum(mla.kv_lora.value, mla.rope_head.value), "kv_lora_rank + qk_rope_head_dim")
    shapes: dict[str, Shape] = {
        "kv_a_proj_with_mqa.weight": (compressed, inputs),
        "kv_a_layernorm.weight": (kv_lora,),
        "kv_b_proj.weight": (
            _product("num_attention_heads x (qk_nope_head_dim + v_head_dim)", heads, value_head),
            kv_lora,
        ),
        "o_proj.weight": (hidden, _product("num_attention_heads x v_head_dim", heads, mla.value_head.value)),
    }
    if q_lora.size is None:
        return shapes | {"q_proj.weight": (queries, inputs)}
    return shapes | {
        "q_a_proj.weight": (q_lora, inputs),
        "q_a_layernorm.weight": (q_lora,),
        "q_b_proj.weight": (queries, q_lora),
    }


def _times(factor: int | None, dim: Dim) -> Dim:
    size = None if factor is None or dim.size is None else factor * dim.size
    return Dim(size, f"{factor} x {dim.source}")


def _product(source: str, *factors: int | None) -> Dim:
    size = 1
    for factor in factors:
        if factor is None:
            return Dim(None, source)
        size *= factor
    return Dim(size, source)


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
