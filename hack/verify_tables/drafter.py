"""Builds a drafter's class from an engine's source on small configs and watches what it does with tensor names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

HIDDEN = 64
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": 512,
    "draft_vocab_size": 128,
    "tie_word_embeddings": False,
    "num_hidden_layers": 1,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 2048,
    # of an MLA drafter
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
IDS = "eagle_aux_hidden_state_layer_ids"

Build = Callable[[SimpleNamespace], nn.Module]
"""Config -> the drafter. Raises what the engine would raise at start-up."""


class Drafter:
    def __init__(self, build: Build, family: str) -> None:
        self.build, self.family = build, family

    def made(self, **config: Any) -> nn.Module:
        """The drafter of a config; a value of `...` takes the field away."""
        fields = {name: value for name, value in (CONFIG | config).items() if value is not ...}
        return self.build(SimpleNamespace(**fields))

    def parameters(self, **config: Any) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in self.made(**config).named_parameters()}

    def layer0(self) -> tuple[str, ...]:
        """One tensor of the first layer that each family has."""
        return (
            ("self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight")
            if self.family == "mla"
            else ("mlp.gate_proj.weight",)
        )

    def loads(self, names: Iterable[str], **config: Any) -> set[str]:
        """Parameters that these tensors fill. Raises what the engine would raise."""
        model = self.made(**config)
        filled: set[str] = set()
        for name, parameter in model.named_parameters():
            parameter.weight_loader = lambda *_, name=name, **__: filled.add(name)  # type: ignore[attr-defined]
        model.load_weights((name, torch.empty(4, 4)) for name in names)  # type: ignore[operator]
        return filled


def names(drafter: Drafter) -> dict[str, Any]:
    """Which spellings find a parameter, and what becomes of a tensor that finds none."""
    prefixes = [prefix for prefix in ("", "model.") if _found(drafter, f"{prefix}norm.weight")]
    layer0 = [
        spelling
        for spelling in ("midlayer.", "layers.0.")
        if _found(drafter, *(f"{spelling}{name}" for name in drafter.layer0()))
    ]
    try:
        drafter.loads(["nothing.weight"])
    except Exception:
        return {"prefixes": prefixes, "layer0": layer0, "unmatched": "refused"}
    return {"prefixes": prefixes, "layer0": layer0, "unmatched": "dropped"}


def _found(drafter: Drafter, *tensors: str) -> bool:
    try:
        return bool(drafter.loads(tensors))
    except Exception:
        return False


def states(drafter: Drafter) -> list[str]:
    """Which fields say how many states fc takes, in order of precedence."""
    fields: dict[str, dict[str, Any]] = {
        "num_aux_hidden_states": {"num_aux_hidden_states": 5},
        f"eagle_config.{IDS}": {"eagle_config": {IDS: [1, 2, 3, 4]}},
        IDS: {IDS: [1, 2]},
    }
    counts = {name: _states(drafter, **config) for name, config in fields.items()}
    wanted = {"num_aux_hidden_states": 5, f"eagle_config.{IDS}": 4, IDS: 2}
    heard = [name for name in fields if counts[name] == wanted[name]]
    order: list[str] = []
    while heard:
        together = {key: value for name in heard for key, value in fields[name].items()}
        first = next(name for name in heard if wanted[name] == _states(drafter, **together))
        order.append(first)
        heard.remove(first)
    return [*order, str(_states(drafter))]


def _states(drafter: Drafter, **config: Any) -> int:
    shape = drafter.parameters(**config)["model.fc.weight"]
    return shape[1] // HIDDEN


FLAGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "norm_before_fc": (r"input_norm\.weight$", ("eagle_config.norm_before_fc", "norm_before_fc")),
    "fc_norm": (r"fc_norm\.0\.weight$", ("fc_norm", "use_aux_norm", "eagle_config.fc_norm")),
    "fc_bias": (r"fc\.bias$", ("bias", "eagle_fc_bias")),
    "attention_bias": (r"qkv\w*_proj\w*\.bias$", ("attention_bias", "qkv_bias")),
}


def flags(drafter: Drafter) -> dict[str, list[str]]:
    """Flag -> the fields that turn it on."""
    found = {
        flag: [field for field in fields if _has(drafter, pattern, **_config(field, True))]
        for flag, (pattern, fields) in FLAGS.items()
    }
    fields = ("norm_output", "eagle_config.norm_output")
    found["norm_output"] = [
        field for field in fields if getattr(drafter.made(**_config(field, True)).model, "norm_output", None) is True
    ]
    return found


def _has(drafter: Drafter, pattern: str, **config: Any) -> bool:
    return any(re.search(pattern, name) for name in drafter.parameters(**config))


def _config(field: str, value: Any) -> dict[str, Any]:
    outer, _, inner = field.rpartition(".")
    return {outer: {inner: value}} if outer else {field: value}


def most_layers(drafter: Drafter) -> int:
    """1, or 0 for any number."""
    try:
        drafter.made(num_hidden_layers=2)
    except ValueError:
        return 1
    return 0


def tie(drafter: Drafter) -> str:
    model: Any = drafter.made(tie_word_embeddings=True)
    return "honoured" if model.lm_head is model.model.embed_tokens else "ignored"


def draft_vocab_size(drafter: Drafter) -> str | None:
    try:
        drafter.made(draft_vocab_size=...)
    except AttributeError:
        return "required"
    return None
