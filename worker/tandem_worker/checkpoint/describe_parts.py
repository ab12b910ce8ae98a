"""What the readers of targets and drafters share: dimensions, rotary scaling, latent attention, refused settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tandem_worker.checkpoint.config import Config
from tandem_worker.checkpoint.description import Mla, RopeScaling
from tandem_worker.checkpoint.errors import CheckpointError, error
from tandem_worker.checkpoint.folder import Checkpoint
from tandem_worker.finding import Finding, Verdict

STORED_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
SCALED_ROPES = ("linear", "llama3", "yarn")


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


def read_dimensions(config: Config, head_dim_default: int | None = None) -> Dimensions:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", default=heads)
    head_dim = config.integer("head_dim", default=head_dim_default or max(hidden // heads, 1))
    if heads % kv_heads or head_dim % 2:
        found = f"{heads} heads, {kv_heads} key-value heads, head_dim {head_dim}"
        raise impossible(config, "num_attention_heads", found, "heads a multiple of key-value heads, head_dim even")
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


def impossible(
    config: Config, field: str, found: str, expected: str, code: str = "TDM-HEADS-IMPOSSIBLE"
) -> CheckpointError:
    what = "attention" if code == "TDM-HEADS-IMPOSSIBLE" else "experts"
    return CheckpointError(
        error(
            code,
            f"{config.file.name} describes {what} that can not be: {found}; expected {expected}.",
            file=config.file,
            where=config.prefix + field,
            found=found,
            expected=expected,
            action="Correct the config.",
        )
    )


def rope_thetas(config: Config) -> tuple[float, ...]:
    """Every theta that the config states: at top level, and inside the `rope_parameters` of transformers 5."""
    stated = [config.number("rope_theta")] if config.has("rope_theta") else []
    nested = config.nested("rope_parameters")
    return tuple(stated + ([nested.number("rope_theta")] if nested.has("rope_theta") else []))


def read_rope_scaling(config: Config, of: str, verdict: Verdict) -> RopeScaling | None:
    """Raises CheckpointError for a kind that the models do not compute."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.nested(name)
        kind = next((rope.text(key) for key in ("rope_type", "type") if rope.has(key)), "")
        if kind == "default" or (not kind and not rope.has("factor")):
            continue
        if kind not in SCALED_ROPES:
            raise CheckpointError(_not_scaled(config, name, of), verdict=verdict)
        positions = config.integer("max_position_embeddings", default=2048)
        optional = {key: rope.number(key) for key in ("mscale", "mscale_all_dim", "attention_factor") if rope.has(key)}
        scaling = RopeScaling(
            kind=kind,
            factor=rope.number("factor"),
            original_positions=rope.integer("original_max_position_embeddings", default=positions),
            low_freq_factor=rope.number("low_freq_factor", default=1.0),
            high_freq_factor=rope.number("high_freq_factor", default=4.0),
            beta_fast=rope.number("beta_fast", default=32.0),
            beta_slow=rope.number("beta_slow", default=1.0),
            truncate=rope.boolean("truncate", default=True),
            **optional,
        )
        low, high, theta = scaling.low_freq_factor, scaling.high_freq_factor, next(iter(rope_thetas(config)), 10000.0)
        if high <= low or (kind == "yarn" and theta <= 1):
            found = f"low_freq_factor {low:g}, high_freq_factor {high:g}, rope_theta {theta:g}"
            raise impossible(config, name, found, "high_freq_factor above low_freq_factor, rope_theta above 1")
        return scaling
    return None


def _not_scaled(config: Config, name: str, of: str) -> Finding:
    return error(
        "TDM-ROPE-SCALING-NOT-SUPPORTED",
        f"The {of}'s {config.prefix}{name} asks for rotary scaling, {config.shown(name)}; "
        f"the builtin models know {', '.join(SCALED_ROPES)}.",
        file=config.file,
        where=config.prefix + name,
        found=config.shown(name),
        expected=f"absent, or rope_type default, {', '.join(SCALED_ROPES)}",
        action=f"Use a {of} without this scaling.",
    )


def read_mla(config: Config) -> Mla:
    mla = Mla(
        q_lora=config.integer("q_lora_rank") if config.has("q_lora_rank") else None,
        kv_lora=config.integer("kv_lora_rank"),
        nope_head=config.integer("qk_nope_head_dim"),
        rope_head=config.integer("qk_rope_head_dim"),
        value_head=config.integer("v_head_dim"),
        interleaved=config.boolean("rope_interleave", default=True),
    )
    if mla.rope_head % 2:
        raise impossible(config, "qk_rope_head_dim", str(mla.rope_head), "an even number")
    return mla


def declared_dtype(config: Config) -> str | None:
    """`dtype` is the newer name of `torch_dtype`."""
    for name in ("dtype", "torch_dtype"):
        if config.has(name):
            return config.text(name).removeprefix("torch.")
    return None


def stored_dtype(checkpoint: Checkpoint, ending: str) -> str:
    """The dtype of the first tensor whose name ends so, in the words of config files; float32, the libraries' default,
    when there is none.
    """
    name = next((name for name in checkpoint.tensors if name.endswith(ending)), None)
    stored = checkpoint.tensors[name].dtype if name else "F32"
    return STORED_DTYPES.get(stored, stored)


def architecture_of(config: Config) -> str:
    return next(iter(config.texts("architectures")), "")


def refuse_settings(config: Config, supported: Mapping[str, object], of: str, verdict: Verdict) -> None:
    """One finding for each setting that the models would compute without; a CheckpointError when there is any.

    supported: field -> the one value that the code means; absent means the same.
    """
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
    if findings:
        raise CheckpointError(*findings, verdict=verdict)
