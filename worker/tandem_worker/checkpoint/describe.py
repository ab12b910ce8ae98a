"""Config -> Target and Drafter, for the families that the builtin engine runs. Everything else is refused by name."""

from __future__ import annotations

from typing import NamedTuple

from tandem_worker.checkpoint.config import Config, read_config
from tandem_worker.checkpoint.description import Drafter, Target
from tandem_worker.checkpoint.errors import CheckpointError, error
from tandem_worker.checkpoint.files import readable
from tandem_worker.checkpoint.folder import Checkpoint
from tandem_worker.checkpoint.layer_ids import STATES, read_layer_ids
from tandem_worker.finding import Verdict

TARGET_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
UNSUPPORTED_DRAFTERS = ("Eagle3DeepseekV2ForCausalLM", "PEagleDraftModel")
STORED_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}

# A setting that the engine would silently ignore changes what the model computes, so it is refused. Field -> the one
# value that the engine's code means; absent means the same.
COMMON_SETTINGS: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "quantization_config": None,
    "partial_rotary_factor": 1.0,
}
MISTRAL_SETTINGS: dict[str, object] = {"sliding_window": None}  # Llama-style code, drafters' too, never looks at it
DRAFTER_SETTINGS: dict[str, object] = COMMON_SETTINGS | {
    "num_hidden_layers": 1,
    "num_aux_hidden_states": STATES,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "eagle_fc_bias": False,
    "parallel_drafting": False,
    "transformer_layer_config": None,  # the speculators layout
}
EAGLE_SETTINGS: dict[str, object] = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}


class Dimensions(NamedTuple):
    """What target and drafter have in common."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int


def read_target(checkpoint: Checkpoint) -> Target:
    """Raises CheckpointError (CouldNotCheck) for an architecture or a setting that the builtin engine does not run."""
    config = checkpoint.config
    architecture = _architecture(config)
    if architecture not in TARGET_ARCHITECTURES:
        supported = ", ".join(TARGET_ARCHITECTURES)
        finding = error(
            "TDM-ARCHITECTURE-NOT-SUPPORTED",
            f"The target's architecture {architecture or '(none named)'} is not known to the builtin engine.",
            file=config.file,
            where="architectures",
            found=architecture,
            expected=f"one of {supported}",
            action=f"Use a target of a supported architecture ({supported}).",
        )
        raise CheckpointError(finding)
    settings = COMMON_SETTINGS | (MISTRAL_SETTINGS if architecture == "MistralForCausalLM" else {})
    _refuse_settings(config, settings, "target", Verdict.COULD_NOT_CHECK)
    return Target(
        architecture=architecture,
        layers=config.integer("num_hidden_layers"),
        tie_word_embeddings=config.boolean("tie_word_embeddings", default=False),
        bos_token_id=next(iter(config.integers("bos_token_id")), None),
        eos_token_ids=_eos_token_ids(checkpoint),
        dtype=declared_dtype(config) or stored_dtype(checkpoint, "model.embed_tokens.weight"),
        **_dimensions(config)._asdict(),
    )


def read_drafter(checkpoint: Checkpoint, target: Target) -> Drafter:
    """Raises CheckpointError: CouldNotCheck for a broken config, DoesNotFit for what the builtin engine can not run."""
    config = checkpoint.config
    architecture = _architecture(config)
    if architecture in UNSUPPORTED_DRAFTERS:
        finding = error(
            "TDM-DRAFTER-NOT-SUPPORTED",
            f"The drafter's architecture {architecture} is not one that the builtin engine runs.",
            file=config.file,
            where="architectures",
            found=architecture,
            expected="a Llama-style EAGLE-3 drafter with one layer",
            action="Use a Llama-style EAGLE-3 drafter.",
        )
        raise CheckpointError(finding, verdict=Verdict.DOES_NOT_FIT)
    _refuse_settings(config, DRAFTER_SETTINGS, "drafter", Verdict.DOES_NOT_FIT)
    _refuse_settings(config.nested("eagle_config"), EAGLE_SETTINGS, "drafter", Verdict.DOES_NOT_FIT)
    dimensions = _dimensions(config)
    ids = read_layer_ids(config, target.layers)
    return Drafter(
        architecture=architecture,
        draft_vocab_size=config.integer("draft_vocab_size", default=dimensions.vocab_size),
        target_hidden_size=config.integer("target_hidden_size", default=target.hidden_size),
        norm_before_residual=config.boolean("norm_before_residual", default=False),
        dtype=declared_dtype(config) or stored_dtype(checkpoint, "fc.weight"),
        declared_layer_ids=ids.declared,
        declared_at=ids.declared_at,
        capture_indexes=ids.capture_indexes,
        **dimensions._asdict(),
    )


def declared_dtype(config: Config) -> str | None:
    """`dtype` is the newer name of `torch_dtype`."""
    for name in ("dtype", "torch_dtype"):
        if config.has(name):
            return config.text(name).removeprefix("torch.")
    return None


def stored_dtype(checkpoint: Checkpoint, tensor: str) -> str:
    """The dtype of a tensor in the words of config files; float32, the libraries' default, when it is not there."""
    info = checkpoint.tensors.get(tensor)
    return STORED_DTYPES.get(info.dtype, info.dtype) if info else "float32"


def rope_thetas(config: Config) -> tuple[float, ...]:
    """Every theta that the config states: at top level, and inside the `rope_parameters` of transformers 5."""
    stated = [config.number("rope_theta")] if config.has("rope_theta") else []
    nested = config.nested("rope_parameters")
    return tuple(stated + ([nested.number("rope_theta")] if nested.has("rope_theta") else []))


def _dimensions(config: Config) -> Dimensions:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", default=heads)
    head_dim = config.integer("head_dim", default=max(hidden // heads, 1))
    if heads % kv_heads or head_dim % 2:
        found = f"{heads} heads, {kv_heads} key-value heads, head_dim {head_dim}"
        expected = "heads a multiple of key-value heads, head_dim even"
        finding = error(
            "TDM-HEADS-IMPOSSIBLE",
            f"{config.file.name} describes attention that can not be: {found}; expected {expected}.",
            file=config.file,
            where="num_attention_heads",
            found=found,
            expected=expected,
            action="Correct the config.",
        )
        raise CheckpointError(finding)
    return Dimensions(
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size"),
        rms_norm_eps=config.number("rms_norm_eps", default=1e-6),
        rope_theta=next(iter(rope_thetas(config)), 10000.0),
        max_position_embeddings=config.integer("max_position_embeddings", default=2048),
    )


def _architecture(config: Config) -> str:
    return next(iter(config.texts("architectures")), "")


def _eos_token_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    """generation_config.json, where there is one, says what ends a text; config.json often knows one id of several."""
    ids = checkpoint.config.integers("eos_token_id")
    file = checkpoint.path / "generation_config.json"
    with readable(file):
        exists = file.exists()
    return (read_config(file).integers("eos_token_id") if exists else ()) or ids


def _scales(rope: Config) -> bool:
    kinds = [rope.text(name) for name in ("rope_type", "type") if rope.has(name)]
    return any(kind != "default" for kind in kinds) or (not kinds and rope.has("factor"))


def _refuse_settings(config: Config, supported: dict[str, object], of: str, verdict: Verdict) -> None:
    """One finding for each setting that the engine would compute without; a CheckpointError when there is any."""
    findings = [
        error(
            "TDM-SETTING-NOT-SUPPORTED",
            f"The {of}'s {config.prefix}{name} is {config.shown(name)}; the builtin engine knows only {value!r}.",
            file=config.file,
            where=config.prefix + name,
            found=config.shown(name),
            expected=f"{value!r} or absent",
            action=f"Use a {of} without this setting.",
        )
        for name, value in supported.items()
        if config.has(name) and not config.states(name, value)
    ]
    findings += [
        error(
            "TDM-ROPE-SCALING-NOT-SUPPORTED",
            f"The {of}'s {config.prefix}{name} asks for rotary scaling, {config.shown(name)}; "
            "the builtin engine rotates without scaling.",
            file=config.file,
            where=config.prefix + name,
            found=config.shown(name),
            expected="absent, or rope_type default",
            action=f"Use a {of} without rotary scaling.",
        )
        for name in ("rope_scaling", "rope_parameters")
        if _scales(config.nested(name))
    ]
    if findings:
        raise CheckpointError(*findings, verdict=verdict)
