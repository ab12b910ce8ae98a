"""Config -> Drafter, as the builtin engine reads it. What it does not compute is refused by name.

Flags stand at top level, inside `eagle_config` (ModelOpt), or in both; speculators nests the draft layers' config in
`transformer_layer_config` and keeps the flags outside.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem_worker.checkpoint.config import Config
from tandem_worker.checkpoint.describe_parts import (
    architecture_of,
    declared_dtype,
    read_dimensions,
    read_mla,
    read_rope_scaling,
    refuse_settings,
    stored_dtype,
)
from tandem_worker.checkpoint.description import Drafter, Target
from tandem_worker.checkpoint.errors import CheckpointError, error
from tandem_worker.checkpoint.folder import Checkpoint
from tandem_worker.checkpoint.layer_ids import NESTED, STATES, read_layer_ids
from tandem_worker.finding import Finding, Verdict

UNSUPPORTED = ("PEagleDraftModel", "PEagleSpeculator", "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM")
LAYER_CONFIG = "transformer_layer_config"
LAYER_SETTINGS: Mapping[str, object] = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "quantization_config": None,
    "partial_rotary_factor": 1.0,
}
SETTINGS: Mapping[str, object] = {
    "num_aux_hidden_states": STATES,
    "quantization_config": None,
    "parallel_drafting": False,
}
EAGLE_SETTINGS: Mapping[str, object] = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
# Where each flag is read, in this order.
FLAGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "norm_before_residual": (("", "norm_before_residual"),),
    "norm_before_fc": ((NESTED, "norm_before_fc"), ("", "norm_before_fc")),
    "fc_norm": (("", "fc_norm"), ("", "use_aux_norm")),
    "norm_output": (("", "norm_output"),),
    "fc_bias": (("", "bias"), ("", "eagle_fc_bias")),
}


def read_drafter(checkpoint: Checkpoint, target: Target) -> Drafter:
    """Raises CheckpointError: CouldNotCheck for a broken config, DoesNotFit for what the builtin engine can not run."""
    top = checkpoint.config
    if architecture_of(top) in UNSUPPORTED:
        raise CheckpointError(_not_a_chain(top), verdict=Verdict.DOES_NOT_FIT)
    layer = top.nested(LAYER_CONFIG) if top.has(LAYER_CONFIG) else top
    refuse_settings(layer, LAYER_SETTINGS, "drafter", Verdict.DOES_NOT_FIT)
    refuse_settings(top, SETTINGS, "drafter", Verdict.DOES_NOT_FIT)
    refuse_settings(top.nested(NESTED), EAGLE_SETTINGS, "drafter", Verdict.DOES_NOT_FIT)
    tensors = checkpoint.tensors
    latent = any("kv_a_proj_with_mqa" in key for key in tensors)
    dimensions = read_dimensions(layer, 2 if latent else None)
    ids = read_layer_ids(top, target.layers)
    bias = layer.boolean("attention_bias", default=False)
    return Drafter(
        architecture=architecture_of(top),
        draft_vocab_size=top.integer("draft_vocab_size", default=dimensions.vocab_size),
        target_hidden_size=top.integer("target_hidden_size", default=target.hidden_size),
        dtype=declared_dtype(top) or declared_dtype(layer) or stored_dtype(checkpoint, "fc.weight"),
        declared_at=ids.declared_at,
        capture_indexes=ids.capture_indexes,
        layers=layer.layers(default=1),
        **{name: _flag(top, places) for name, places in FLAGS.items()},
        qkv_bias=bias,
        out_bias=bias and any(key.endswith("self_attn.o_proj.bias") for key in tensors),
        qk_norm=_qwen3(top, layer) and any(key.endswith("self_attn.q_norm.weight") for key in tensors),
        rope_scaling=read_rope_scaling(layer, "drafter", Verdict.DOES_NOT_FIT),
        mla=read_mla(layer) if latent else None,
        **dimensions._asdict(),
    )


def _not_a_chain(config: Config) -> Finding:
    architecture = architecture_of(config)
    return error(
        "TDM-DRAFTER-NOT-SUPPORTED",
        f"The drafter's architecture {architecture} is not one that the builtin engine runs.",
        file=config.file,
        where="architectures",
        found=architecture,
        expected="an EAGLE-3 drafter, which drafts in a chain",
        action="Use an EAGLE-3 drafter, or vLLM, which drafts in parallel.",
    )


def _qwen3(top: Config, layer: Config) -> bool:
    return "qwen3" in layer.text("model_type", default="") or "Qwen3" in architecture_of(top)


def _flag(config: Config, places: tuple[tuple[str, str], ...]) -> bool:
    for nested, name in places:
        level = config.nested(nested) if nested else config
        if level.has(name):
            return level.boolean(name, default=False)
    return False
