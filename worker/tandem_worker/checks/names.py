"""Which parameter of a drafter a tensor of its files is meant for, by the spellings that an engine accepts.

Parameters are named as in the EAGLE repository: `fc.weight`, `midlayer.self_attn.q_proj.weight`, `norm.weight`, and
`layers.1.` on for further layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_LAYER = (
    r"self_attn\.(?:[qkvo]_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.(?:weight|bias)"
    r"|self_attn\.(?:[qk]_norm|q_a_layernorm|kv_a_layernorm)\.weight"
    r"|mlp\.(?:gate|up|down)_proj\.(?:weight|bias)"
    r"|(?:hidden_norm|input_layernorm|post_attention_layernorm)\.weight"
)
PARAMETER = re.compile(
    r"fc\.(?:weight|bias)|input_norm\.weight|fc_norm\.\d+\.weight|norm\.weight|lm_head\.weight|embed_tokens\.weight"
    rf"|d2t|t2d|mask_hidden|(?:midlayer|layers\.\d+)\.(?:{_LAYER})"
)
_MEANT = re.compile(
    rf"(?:^|\.)(?:layers\.(\d+)\.)?({_LAYER}|fc\.weight|norm\.weight|lm_head\.weight|embed_tokens\.weight|d2t|t2d)$"
)

SCALES = re.compile(
    r"\.(?:weight_scale|weight_scale_inv|weight_scale_2|input_scale|output_scale|[qkv]_scale|weight_shape"
    r"|weight_zero_point|weight_g_idx|qzeros|scales|g_idx|(?:input|weight)_global_scale)$"
)
PACKED = re.compile(r"\.(?:weight_packed|qweight)$")
# Tensors that may be dropped without changing a draft: tables that can be computed, copies of the target's weights.
HARMLESS = re.compile(r"(?:^|\.)(?:rotary_emb\.(?:inv_freq|cos_cached|sin_cached)|verifier_(?:lm_head|norm)\.weight)$")
LEGACY = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


class Spelling(NamedTuple):
    prefixes: tuple[str, ...]
    layer0: tuple[str, ...]
    silent: tuple[str, ...]  # patterns of tensors that are dropped without a word
    unmatched: str  # "dropped" or "refused"


def spelling(value: Mapping[str, Sequence[str] | str]) -> Spelling:
    return Spelling(
        tuple(value["prefixes"]), tuple(value["layer0"]), tuple(value.get("silent", ())), str(value["unmatched"])
    )


def parameter_of(key: str, spelled: Spelling) -> str | None:
    """The parameter that this tensor fills under these spellings; a packed matrix counts as the matrix."""
    key = PACKED.sub(".weight", key)
    for prefix in sorted(spelled.prefixes, key=len, reverse=True):
        if not key.startswith(prefix):
            continue
        name = key[len(prefix) :]
        if name.startswith(("midlayer.", "layers.0.")):
            for first in spelled.layer0:
                if name.startswith(first):
                    return _known("midlayer." + name[len(first) :])
            return None
        for old, new in LEGACY.items():
            name = name.replace(old, new)
        return _known(name)
    return None


FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def meant_for_all(key: str) -> tuple[str, ...]:
    """As `meant_for`; of projections that were fused before they were saved, each."""
    for fused, parts in FUSED.items():
        if f".{fused}." in key:
            return tuple(name for part in parts if (name := meant_for(key.replace(fused, part))))
    name = meant_for(key)
    return (name,) if name else ()


def meant_for(key: str) -> str | None:
    """The parameter that a tensor under a foreign name was probably meant for."""
    match = _MEANT.search(PACKED.sub(".weight", key))
    if match is None:
        return None
    layer, name = match.groups()
    if not re.fullmatch(_LAYER, name):
        return name
    return f"layers.{layer}.{name}" if layer and layer != "0" else f"midlayer.{name}"


def _known(name: str) -> str | None:
    return name if PARAMETER.fullmatch(name) else None
