"""What target and drafter declare, in any dialect: two frozen descriptions whose facts say where they were read.

Dialects differ in where they write things. Targets nest the language model (`text_config` of multimodal classes).
Drafters are flat (EAGLE repo, SpecForge, SGLang, AngelSlim), flat with an `eagle_config` (ModelOpt, some of
SpecForge's), nested in `transformer_layer_config` (speculators) or in `model` (vLLM's own). Nothing here knows an
engine; what an engine makes of a field is in `engines`.

H hidden size, V target vocabulary, Vd draft vocabulary, n decoder layers of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem_worker.checkpoint.class_defaults import class_default
from tandem_worker.checkpoint.config import Config
from tandem_worker.checkpoint.errors import error
from tandem_worker.checkpoint.folder import Checkpoint
from tandem_worker.checkpoint.levels import Fact, Levels
from tandem_worker.checkpoint.rope import Rope, read_rope
from tandem_worker.finding import Finding

TEXT_LEVELS = ("text_config", "llm_config", "language_config")
DRAFTER_LEVELS = ("transformer_layer_config", "text_config", "model")
GUESSED_HEAD_DIM = "hidden_size / num_attention_heads"
ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "attention", "local_attention")


@dataclass(frozen=True)
class Dimensions:
    """None: neither declared nor a known default."""

    hidden_size: Fact[int | None]
    intermediate_size: Fact[int | None]
    heads: Fact[int | None]
    kv_heads: Fact[int | None]
    head_dim: Fact[int | None]
    layers: Fact[int | None]
    vocab_size: Fact[int | None]
    max_positions: Fact[int | None]
    rope: Rope
    dtype: Fact[str | None]
    tie: Fact[bool | None]
    quantization: Fact[str | None]  # the method's name


@dataclass(frozen=True)
class DeclaredTarget(Dimensions):
    checkpoint: Checkpoint
    architecture: Fact[str | None]
    model_type: Fact[str | None]
    linear_layers: frozenset[int]  # layers without attention, of hybrid targets
    moe: bool  # whether it has experts
    problems: tuple[Finding, ...]


@dataclass(frozen=True)
class MlaDimensions:
    q_lora: Fact[int | None]
    kv_lora: Fact[int | None]
    rope_head: Fact[int | None]
    nope_head: Fact[int | None]
    value_head: Fact[int | None]


@dataclass(frozen=True)
class DeclaredDrafter(Dimensions):
    checkpoint: Checkpoint
    dialect: str  # flat, eagle_config, speculators, nested
    architecture: Fact[str | None]
    model_type: Fact[str | None]
    draft_vocab_size: Fact[int | None]  # None: absent or null
    draft_vocab_size_null: bool
    target_hidden_size: Fact[int | None]
    states: Fact[int | None]  # num_aux_hidden_states
    ids: Mapping[str, tuple[int, ...]]  # by path, as written
    aux: bool  # use_aux_hidden_state
    aux_where: str
    flags: Mapping[str, bool]  # by path
    mla: MlaDimensions
    algorithm: str  # of speculators: eagle3, peagle
    problems: tuple[Finding, ...]

    @property
    def vocabulary(self) -> int | None:
        """Vd: as many rows as the head has."""
        return self.draft_vocab_size.value or self.vocab_size.value

    def flag(self, paths: list[str]) -> Fact[bool] | None:
        """The first of these paths that is declared."""
        return next((Fact(self.flags[path], path) for path in paths if path in self.flags), None)


IDS = "eagle_aux_hidden_state_layer_ids"
NESTED_IDS = f"eagle_config.{IDS}"
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
KNOWN_ID_KEYS = (IDS, "target_layer_ids", "layer_ids", "aux_hidden_state_layer_ids", "dspark_target_layer_ids")
FLAGS = (
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "use_aux_norm",
    "norm_output",
    "bias",
    "eagle_fc_bias",
    "attention_bias",
    "qkv_bias",
    "mlp_bias",
    "parallel_drafting",
    "use_last_layernorm",
    "use_input_layernorm_in_first_layer",
)


def read_declared_target(checkpoint: Checkpoint) -> DeclaredTarget:
    """Raises nothing: what is wrong with a field is in `problems`."""
    problems: list[Finding] = []
    config = checkpoint.config
    top = Levels([config], problems)
    levels = Levels([*_nested(top, TEXT_LEVELS), config], problems)
    model_type = levels.text("model_type")
    dimensions = _dimensions(levels, model_type.value or "", config)
    for fact, name in ((dimensions.hidden_size, "hidden_size"), (dimensions.layers, "num_hidden_layers")):
        _require(fact, name, levels, problems)
    return DeclaredTarget(
        **vars(dimensions),
        checkpoint=checkpoint,
        architecture=_architecture(top),
        model_type=model_type,
        linear_layers=_linear_layers(levels, dimensions.layers.value or 0),
        moe=levels.find(*EXPERTS) is not None,
        problems=tuple(problems),
    )


def read_declared_drafter(checkpoint: Checkpoint) -> DeclaredDrafter:
    """Raises nothing: what is wrong with a field is in `problems`."""
    problems: list[Finding] = []
    config = checkpoint.config
    top = Levels([config], problems)
    nested = _nested(top, DRAFTER_LEVELS)
    eagle = top.nested_object("eagle_config")
    levels = Levels([*nested, config], problems)
    model_type = levels.text("model_type")
    dimensions = _dimensions(levels, model_type.value or "", config)
    _require(dimensions.hidden_size, "hidden_size", levels, problems)
    everywhere = Levels([config, *nested], problems)
    speculators = "speculators_model_type" in config.names() or config.has("transformer_layer_config")
    aux = Levels([eagle or config, config], problems).boolean("use_aux_hidden_state", default=True)
    _misspelt(config, eagle, problems)
    return DeclaredDrafter(
        **vars(dimensions),
        checkpoint=checkpoint,
        dialect="speculators" if speculators else "nested" if nested else "eagle_config" if eagle else "flat",
        architecture=_architecture(top),
        model_type=model_type,
        draft_vocab_size=everywhere.integer("draft_vocab_size", "truncated_vocab_size"),
        draft_vocab_size_null=everywhere.null("draft_vocab_size"),
        target_hidden_size=everywhere.integer("target_hidden_size"),
        states=everywhere.integer("num_aux_hidden_states"),
        ids=_ids(config, eagle, top),
        aux=aux.value is not False,
        aux_where=aux.where,
        flags=_flags(config, eagle, nested, problems),
        mla=MlaDimensions(
            levels.integer("q_lora_rank"),
            levels.integer("kv_lora_rank"),
            levels.integer("qk_rope_head_dim"),
            levels.integer("qk_nope_head_dim"),
            levels.integer("v_head_dim"),
        ),
        algorithm=top.text("speculators_model_type", default="").value or "",
        problems=tuple(problems),
    )


def _nested(top: Levels, names: tuple[str, ...]) -> list[Config]:
    """The level that describes the language model or the draft layers, when it is not the top one."""
    for name in names:
        if top.find(name):
            inner = top.nested_object(name)
            return [inner] if inner is not None else []
    return []


def _dimensions(levels: Levels, model_type: str, top: Config) -> Dimensions:
    whose = f"default of {model_type}" if model_type else ""

    def default(name: str) -> int | None:
        value = None if levels.null(name) else class_default(model_type, name)  # null is an answer of its own
        return int(value) if value is not None else None

    hidden, heads = levels.integer("hidden_size"), levels.integer("num_attention_heads")
    head_dim = levels.integer("head_dim", default=default("head_dim"), whose=whose)
    if head_dim.value is None and hidden.value and heads.value:
        head_dim = Fact(max(hidden.value // heads.value, 1), "", GUESSED_HEAD_DIM)
    kv_heads = default("num_key_value_heads")
    theta, tie = (class_default(model_type, name) for name in ("rope_theta", "tie_word_embeddings"))
    return Dimensions(
        hidden_size=hidden,
        intermediate_size=levels.integer("intermediate_size"),
        heads=heads,
        kv_heads=levels.integer(
            "num_key_value_heads",
            default=kv_heads or heads.value,
            whose=whose if kv_heads else "num_attention_heads",
        ),
        head_dim=head_dim,
        layers=levels.integer("num_hidden_layers", "n_layers", "num_layers"),
        vocab_size=levels.integer("vocab_size", default=default("vocab_size"), whose=whose),
        max_positions=levels.integer(
            "max_position_embeddings", default=default("max_position_embeddings"), whose=whose
        ),
        rope=read_rope(levels, theta, whose),
        dtype=_dtype(levels),
        tie=levels.boolean("tie_word_embeddings", default=None if tie is None else bool(tie), whose=whose),
        quantization=_quantization(levels, Levels([top], levels.problems)),
    )


def _dtype(levels: Levels) -> Fact[str | None]:
    fact = levels.text("dtype", "torch_dtype")
    return Fact(fact.value.removeprefix("torch."), fact.where) if fact.value else fact


def _quantization(levels: Levels, top: Levels) -> Fact[str | None]:
    for level in (levels, top):
        for name in ("quantization_config", "compression_config"):
            config = level.nested_object(name)
            if config is not None:
                method = Levels([config], levels.problems).text("quant_method", "quant_algo", default="unnamed").value
                return Fact(method, config.prefix.rstrip("."))
    return Fact(None)


def _architecture(top: Levels) -> Fact[str | None]:
    found = top.find("architectures")
    if found is None:
        return Fact(None)
    level, name = found
    value = level.raw(name)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return Fact(value[0], "architectures[0]")
    top.wrong(level, name, "a list of class names")
    return Fact(None)


def _ids(config: Config, eagle: Config | None, top: Levels) -> dict[str, tuple[int, ...]]:
    ids = {}
    for level in (config, eagle):
        value = None if level is None else level.raw(IDS)
        if level is None or value is None:
            continue
        if isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            ids[level.prefix + IDS] = tuple(value)
        else:
            top.wrong(level, IDS, "a list of integers, such as [2, 16, 29]", code="TDM-LAYER-IDS-MALFORMED")
    return ids


def _misspelt(config: Config, eagle: Config | None, problems: list[Finding]) -> None:
    """Engines look for one spelling and say nothing when it is not there."""
    for level in (config, eagle):
        for name in () if level is None else level.names():
            near = "layer_id" in name.lower() or "aux_hidden_state_layer" in name.lower()
            if level is not None and near and name not in KNOWN_ID_KEYS and isinstance(level.raw(name), list):
                problems.append(
                    error(
                        "TDM-LAYER-IDS-MISSPELT",
                        f"{level.prefix}{name} is a list of layers under a name that no engine reads; "
                        f"they read {IDS} and fall back to their defaults in silence.",
                        file=level.file,
                        where=level.prefix + name,
                        found=name,
                        expected=IDS,
                        action=f"Rename the field to {IDS}.",
                    )
                )


def _flags(config: Config, eagle: Config | None, nested: list[Config], problems: list[Finding]) -> dict[str, bool]:
    """Declared booleans by path; those of a nested layer config under their bare name, as engines flatten it."""
    flags: dict[str, bool] = {}
    for level in [config, *([eagle] if eagle else [])]:
        for name in FLAGS:
            fact = Levels([level], problems).boolean(name)
            if fact.value is not None:
                flags[fact.where] = fact.value
    for level in nested:
        for name in FLAGS:
            fact = Levels([level], problems).boolean(name)
            if fact.value is not None:
                flags.setdefault(name, fact.value)
    return flags


def _linear_layers(levels: Levels, layers: int) -> frozenset[int]:
    found = levels.find("layer_types")
    kinds = found[0].raw("layer_types") if found else None
    if isinstance(kinds, list):
        return frozenset(i for i, kind in enumerate(kinds) if kind not in ATTENTION_KINDS)
    interval = levels.integer("full_attention_interval").value
    if interval and interval > 1:
        return frozenset(i for i in range(min(layers, 10_000)) if (i + 1) % interval)
    return frozenset()


def _require(fact: Fact[int | None], name: str, levels: Levels, problems: list[Finding]) -> None:
    if fact.value is None and not any(name in problem.where for problem in problems):
        problems.append(
            error(
                "TDM-CONFIG-FIELD-MISSING",
                f"config.json has no {name}.",
                file=levels.file,
                where=name,
                expected="a value",
                action="Add the field, or restore the file from where the checkpoint was published.",
            )
        )
