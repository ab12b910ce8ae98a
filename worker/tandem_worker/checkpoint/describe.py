"""Config -> Target, for the families that the builtin models compute. Everything else is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tandem_worker.checkpoint.config import Config, read_config
from tandem_worker.checkpoint.describe_parts import (
    architecture_of,
    declared_dtype,
    impossible,
    read_dimensions,
    read_mla,
    read_rope_scaling,
    refuse_settings,
    stored_dtype,
)
from tandem_worker.checkpoint.description import GptOss, Moe, Target
from tandem_worker.checkpoint.errors import CheckpointError, error
from tandem_worker.checkpoint.files import readable
from tandem_worker.checkpoint.folder import Checkpoint
from tandem_worker.finding import Finding, Verdict

# A setting that the models would silently ignore changes what is computed, so it is refused. Field -> the one value
# that the code means; absent means the same.
COMMON_SETTINGS: Mapping[str, object] = {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1.0}
MOST_EXPERTS = 1 << 14
NO_WINDOW: Mapping[str, object] = {"use_sliding_window": False}


class Family(NamedTuple):
    name: str  # a key of `models.families.FAMILIES`
    settings: Mapping[str, object] = {}
    head_dim: int | None = None  # of transformers' config class; None: hidden_size / num_attention_heads
    qkv_bias: bool = False  # whatever the config says
    attention_bias: bool = False  # where it says nothing


DEEPSEEK = Family("deepseek_v3", {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1})
ARCHITECTURES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family("llama"),
    "MistralForCausalLM": Family("llama", {"sliding_window": None}),
    "Qwen2ForCausalLM": Family("qwen2", NO_WINDOW, qkv_bias=True),
    "Qwen3ForCausalLM": Family("qwen3", NO_WINDOW, head_dim=128),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", {**NO_WINDOW, "decoder_sparse_step": 1}),
    "DeepseekV3ForCausalLM": DEEPSEEK,
    "GptOssForCausalLM": Family("gpt_oss", head_dim=64, attention_bias=True),
    "KimiK2ForCausalLM": DEEPSEEK,
    "KimiK25ForConditionalGeneration": DEEPSEEK,
    "Kimi_K25ForConditionalGeneration": DEEPSEEK,  # as transformers writes it
}


def read_target(checkpoint: Checkpoint) -> Target:
    """Raises CheckpointError (CouldNotCheck) for an architecture or a setting that the models do not compute."""
    architecture = architecture_of(checkpoint.config)
    if architecture not in ARCHITECTURES:
        raise CheckpointError(_unknown(checkpoint.config, architecture))
    family = ARCHITECTURES[architecture]
    top = checkpoint.config
    config = top.nested("text_config") if top.has("text_config") else top
    refuse_settings(config, {**COMMON_SETTINGS, **family.settings}, "target", Verdict.COULD_NOT_CHECK)
    latent = family is DEEPSEEK
    dimensions = read_dimensions(config, 2 if latent else family.head_dim)  # with latent attention nobody asks for it
    bias = config.boolean("attention_bias", default=family.attention_bias)
    if latent:
        refuse_settings(config, {"attention_bias": False}, "target", Verdict.COULD_NOT_CHECK)
    return Target(
        architecture=architecture,
        layers=config.layers(),
        tie_word_embeddings=config.boolean("tie_word_embeddings", top.boolean("tie_word_embeddings", default=False)),
        bos_token_id=next(iter(config.integers("bos_token_id") or top.integers("bos_token_id")), None),
        eos_token_ids=_eos_token_ids(checkpoint, config),
        dtype=declared_dtype(config) or declared_dtype(top) or stored_dtype(checkpoint, "embed_tokens.weight"),
        family=family.name,
        rope_scaling=read_rope_scaling(config, "target", Verdict.COULD_NOT_CHECK),
        qkv_bias=bias or family.qkv_bias,
        out_bias=bias and not family.qkv_bias,
        mla=read_mla(config) if latent else None,
        moe=_possible(config, _read_moe(config, family)),
        gpt_oss=_read_gpt_oss(config) if family.name == "gpt_oss" else None,
        **dimensions._asdict(),
    )


def _read_moe(config: Config, family: Family) -> Moe | None:
    layers = config.layers()
    if family.name == "qwen3_moe":
        return Moe(
            experts=config.integer("num_experts", config.integer("num_local_experts", default=128)),
            per_token=config.integer("num_experts_per_tok", default=8),
            intermediate_size=config.integer("moe_intermediate_size", default=768),
            normalise=config.boolean("norm_topk_prob", default=False),
            dense_layers=frozenset(config.integers("mlp_only_layers")),
        )
    if family.name == "deepseek_v3":
        return Moe(
            experts=config.integer("n_routed_experts"),
            per_token=config.integer("num_experts_per_tok", default=8),
            intermediate_size=config.integer("moe_intermediate_size"),
            normalise=config.boolean("norm_topk_prob", default=True),
            dense_layers=frozenset(range(min(layers, config.integer("first_k_dense_replace", default=0, minimum=0)))),
            shared=config.integer("n_shared_experts", default=0, minimum=0),
            groups=config.integer("n_group", default=1),
            best_groups=config.integer("topk_group", default=1),
            scale=config.number("routed_scaling_factor", default=1.0),
        )
    if family.name == "gpt_oss":
        return Moe(
            experts=config.integer("num_local_experts", default=128),
            per_token=config.integer("num_experts_per_tok", config.integer("experts_per_token", default=4)),
            intermediate_size=config.integer("intermediate_size"),
            normalise=True,
            dense_layers=frozenset(),
        )
    return None


def _possible(config: Config, moe: Moe | None) -> Moe | None:
    if moe is None:
        return None
    sizes = f"{moe.experts} experts, {moe.per_token} for a token, {moe.best_groups} of {moe.groups} groups"
    each = moe.experts // moe.groups
    whole = moe.experts % moe.groups == 0 and (moe.groups == 1 or each >= 2)  # a group is judged by its two best
    reach = moe.per_token <= each * moe.best_groups and moe.best_groups <= moe.groups
    if not (whole and reach and moe.experts <= MOST_EXPERTS):
        expected = f"at most {MOST_EXPERTS}, in equal groups, and as many within the chosen groups as a token visits"
        raise impossible(config, "num_experts_per_tok", sizes, expected, "TDM-EXPERTS-IMPOSSIBLE")
    return moe


def _read_gpt_oss(config: Config) -> GptOss:
    """Without `layer_types` every other layer has a window, the first one too."""
    layers = config.layers()
    kinds = config.texts("layer_types") or ("sliding_attention", "full_attention") * layers
    return GptOss(
        window=config.integer("sliding_window", default=128),
        windowed_layers=frozenset(i for i in range(layers) if kinds[i % len(kinds)] == "sliding_attention"),
        swiglu_limit=config.number("swiglu_limit", default=7.0),
        swiglu_alpha=config.number("swiglu_alpha", default=1.702),
    )


def _unknown(config: Config, architecture: str) -> Finding:
    supported = ", ".join(ARCHITECTURES)
    return error(
        "TDM-ARCHITECTURE-NOT-SUPPORTED",
        f"The target's architecture {architecture or '(none named)'} is not known to the builtin engine.",
        file=config.file,
        where="architectures",
        found=architecture,
        expected=f"one of {supported}",
        action=f"Use a target of a supported architecture ({supported}).",
    )


def _eos_token_ids(checkpoint: Checkpoint, config: Config) -> tuple[int, ...]:
    """generation_config.json, where there is one, says what ends a text; config.json often knows one id of several."""
    ids = config.integers("eos_token_id") or checkpoint.config.integers("eos_token_id")
    file = checkpoint.path / "generation_config.json"
    with readable(file):
        exists = file.exists()
    return (read_config(file).integers("eos_token_id") if exists else ()) or ids
