"""What an engine, at a version, will do with a pair. Read from its table (`engines`), never from branches on versions.

The one thing that is reasoned here is how facts combine: which list of layer ids is read, what becomes of each tensor
of the drafter's files, and where each parameter of the drafter's class gets its values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tandem_worker.checkpoint.declared import DeclaredDrafter, DeclaredTarget
from tandem_worker.checkpoint.levels import Fact
from tandem_worker.checks.expected import VOCABULARY, Shape, expected_parameters
from tandem_worker.checks.layer_rules import RULES, Indexes, default_indexes
from tandem_worker.checks.names import HARMLESS, SCALES, Spelling, parameter_of, spelling
from tandem_worker.engines import NEUTRAL, Engine, load

FLAG_NAMES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "fc_bias", "attention_bias")


class Use(StrEnum):
    """Of a tensor in the drafter's files."""

    LOADED = "loaded"
    DROPPED = "dropped"
    REFUSED = "refused"
    NOT_NEEDED = "not needed"


class Origin(StrEnum):
    """Of a parameter's values."""

    FILES = "drafter's files"
    TARGET = "shared from the target"
    TIED = "tied to the embedding"
    IDENTITY = "draft ids are target ids"
    RANDOM = "left at random"


@dataclass(frozen=True)
class EngineResolution:
    """`captured` is None when the table does not tell; `unknown` names everything that it does not tell."""

    engine: Engine
    family: str  # of the drafter's class: llama, qwen3, mla; plain, other: not for these tensors; empty: refused
    drafter_class: str
    target_family: str | None
    hook: bool | None  # whether the target's class can capture
    ids: Indexes | None  # the list that the engine reads
    ids_where: str
    ids_rule: str
    ids_read: tuple[tuple[str, str], ...]  # every place that the engine looks at, and the rule there
    ignored_ids: Mapping[str, Indexes]
    captured: Indexes | None
    states: int | None
    states_where: str
    target_width: int | None  # of one captured state, as the engine sizes fc
    flags: Mapping[str, Fact[bool]]
    shapes: Mapping[str, Shape]  # of every parameter that the class has
    tensors: Mapping[str, tuple[Use, str]]  # tensor -> use, parameter
    parameters: Mapping[str, Origin]
    fc_applied: bool
    fc_reason: str
    unknown: tuple[str, ...]


class _Asker:
    """Asks the table and keeps what it could not tell."""

    def __init__(self, engine: Engine, unknown: list[str]) -> None:
        self.engine, self.unknown = engine, unknown

    def __call__(self, about: str, name: str, default: Any = None, **keys: str) -> Any:
        answer = self.engine.ask(name, default, **keys)
        if not answer.known and about not in self.unknown:
            self.unknown.append(about)
        return answer.value if answer.known else default


def resolve_for(target: DeclaredTarget, drafter: DeclaredDrafter, engine: Engine, runner: str = "") -> EngineResolution:
    """Never raises: what the table does not tell is in `unknown`, and the rest is resolved all the same.

    `runner`: the engine's model runner, where the deployment forces one (vLLM has two, which read layer ids at
    different places).
    """
    ask = _Asker(engine, [])
    family, drafter_class = _drafter_class(drafter, ask)
    if family in ("llama", "qwen3", "mla") and (family == "mla") != (family_by_tensors(drafter) == "mla"):
        family = "other"  # the class is for the other kind of attention
    counted = family if family in ("llama", "qwen3", "mla") else "llama"  # to go on checking what does not depend on it
    target_family = engine.family_of(target.architecture.value or "")
    sources = _ids_read(target, ask, target_family or "", runner)
    read, where, rule, captured = _captured(target, drafter, ask, target_family or "", sources)
    hook = _hook(target, target_family, ask)
    if family in ("", "plain", "other") and "the drafter's class" not in ask.unknown:
        # The engine has no class for this drafter, and says no more of it. What any class would need is still checked.
        counted, ask = family_by_tensors(drafter), _Asker(load(NEUTRAL), ask.unknown)
    states, states_where = _states(drafter, ask, counted)
    width = drafter.target_hidden_size.value or (
        drafter.hidden_size.value if ask("the width of fc", "target_width") == "drafter" else target.hidden_size.value
    )
    flags = {name: _flag(name, drafter, ask, counted) for name in FLAG_NAMES}
    shapes = expected_parameters(drafter, counted, states, width, {name: flag.value for name, flag in flags.items()})
    tensors = _tensors(drafter, shapes, spelling(ask("the names of tensors", "names", ANY_SPELLING, drafter=counted)))
    parameters = _parameters(target, drafter, shapes, tensors, ask)
    skips = ask("whether fc is applied", "fc_skipped", "never") == "equal_width"
    skipped = skips and states == 1 and width == drafter.hidden_size.value
    applied, reason = _fc(drafter, parameters, skipped, f"{states} states of {width} side by side")
    return EngineResolution(
        engine=engine,
        family=family,
        drafter_class=drafter_class,
        target_family=target_family,
        hook=hook,
        ids=read,
        ids_where=where,
        ids_rule=rule,
        ids_read=sources,
        ignored_ids={path: ids for path, ids in drafter.ids.items() if path != where},
        captured=captured,
        states=states,
        states_where=states_where,
        target_width=width,
        flags=flags,
        shapes=shapes,
        tensors=tensors,
        parameters=parameters,
        fc_applied=applied,
        fc_reason=reason,
        unknown=tuple(ask.unknown),
    )


ANY_SPELLING = {"prefixes": ["", "model."], "layer0": ["midlayer.", "layers.0."], "unmatched": "dropped"}


def _drafter_class(drafter: DeclaredDrafter, ask: _Asker) -> tuple[str, str]:
    """(family, class). By the architecture's name, as the engine rewrites it, or by the tensors."""
    name = drafter.architecture.value or ""
    if ask("the drafter's class", "drafter_by", "tensors") == "tensors":
        return family_by_tensors(drafter), name
    if drafter.dialect == "speculators":
        kind = drafter.model_type.value or "llama"
        name = ask("the drafter's class", "speculators", "", model_type=kind) or name
    prefix = ask("the drafter's class", "prefix", "")
    known = ask("the drafter's class", "drafter", None, architecture=name)
    if known is None and prefix and not name.startswith(prefix) and not name.endswith(prefix):
        known = ask("the drafter's class", "drafter", None, architecture=prefix + name)
    return (known["family"], known["class"]) if known else ("", name)


def family_by_tensors(drafter: DeclaredDrafter) -> str:
    if any("kv_a_proj_with_mqa" in key for key in drafter.checkpoint.tensors):
        return "mla"
    architecture = drafter.architecture.value or ""
    qwen3 = "qwen3" in (drafter.model_type.value or "") or "Qwen3" in architecture
    normed = any(key.endswith("self_attn.q_norm.weight") for key in drafter.checkpoint.tensors)
    return "qwen3" if qwen3 and normed else "llama"


def _ids_read(target: DeclaredTarget, ask: _Asker, family: str, runner: str) -> tuple[tuple[str, str], ...]:
    """Where the engine looks for layer ids, and by which rule it makes capture indexes of them. Empty: not known."""
    about = "the layers that are captured"
    kind = "hybrid" if target.linear_layers else "moe" if target.moe else "dense"
    runner = runner or ask(about, "runner", "", kind=kind, architecture=target.architecture.value or "")
    found = []
    for path, rule in ask(about, "ids_read", [], runner=runner):
        found.append((path, ask(about, "ids_rule", "", family=family) if rule == "by_target" else rule))
    return tuple(found)


def _captured(
    target: DeclaredTarget,
    drafter: DeclaredDrafter,
    ask: _Asker,
    family: str,
    sources: tuple[tuple[str, str], ...],
) -> tuple[Indexes | None, str, str, Indexes | None]:
    """(the list that is read, where, the rule, capture indexes)."""
    layers = target.layers.value
    if layers is None or not sources or not drafter.aux:
        return None, "", "", None
    order = ask("the layers that are captured", "order", "kept")
    for path, rule in sources:
        ids = drafter.ids.get(path)
        if not ids:
            continue
        if not rule:
            return ids, path, "", None
        captured = RULES[rule](ids, layers)
        return ids, path, rule, tuple(sorted(set(captured))) if order == "ascending" else captured
    shift = ask("the layers that are captured", "default_shift", 0, family=family)
    captured = tuple(i + shift for i in default_indexes(layers))
    return None, "", "", tuple(sorted(set(captured))) if order == "ascending" else captured


def _states(drafter: DeclaredDrafter, ask: _Asker, family: str) -> tuple[int | None, str]:
    """How many states the engine sizes fc for."""
    if not drafter.aux:
        return 1, "use_aux_hidden_state"
    for source in ask("the width of fc", "states", [], drafter=family):
        if source == "num_aux_hidden_states" and drafter.states.value:
            return drafter.states.value, drafter.states.where
        if drafter.ids.get(source):
            return len(drafter.ids[source]), source
        if source.isdigit():
            return int(source), "default"
    return None, ""


def _flag(name: str, drafter: DeclaredDrafter, ask: _Asker, family: str) -> Fact[bool]:
    paths = ask(f"the flag {name}", "flag", [], flag=name, drafter=family)
    stated = drafter.flag(paths)
    if stated is not None:
        return stated
    peagle = drafter.algorithm == "peagle"
    default = ask(f"the flag {name}", "flag_default", False, flag=name, dialect="peagle" if peagle else drafter.dialect)
    return Fact(bool(default), "", ask.engine.title)


def _tensors(drafter: DeclaredDrafter, shapes: Mapping[str, Shape], spelled: Spelling) -> dict[str, tuple[Use, str]]:
    uses: dict[str, tuple[Use, str]] = {}
    for key in sorted(drafter.checkpoint.tensors):
        if SCALES.search(key):
            uses[key] = (Use.LOADED, "")
            continue
        parameter = parameter_of(key, spelled)
        if parameter is not None and (parameter in shapes or parameter == "mask_hidden"):
            uses[key] = (Use.LOADED, parameter)
        elif HARMLESS.search(key):
            uses[key] = (Use.NOT_NEEDED, "")
        else:
            silent = spelled.unmatched == "dropped" or any(re.search(pattern, key) for pattern in spelled.silent)
            uses[key] = (Use.DROPPED if silent else Use.REFUSED, parameter or "")
    return uses


def _parameters(
    target: DeclaredTarget,
    drafter: DeclaredDrafter,
    shapes: Mapping[str, Shape],
    tensors: Mapping[str, tuple[Use, str]],
    ask: _Asker,
) -> dict[str, Origin]:
    filled = {parameter for use, parameter in tensors.values() if use is Use.LOADED}
    full = drafter.vocabulary == drafter.vocab_size.value
    t2d = ask("whether t2d is needed", "t2d", "never")
    origins: dict[str, Origin] = {}
    for name in shapes:
        if name in filled:
            origins[name] = Origin.FILES
        elif name == "t2d" and t2d == "never":
            continue
        elif name in VOCABULARY:
            origins[name] = Origin.IDENTITY if full else Origin.RANDOM
        elif _may_be_absent(name, drafter):
            continue
        elif name == "embed_tokens.weight":
            equal = drafter.hidden_size.value == target.hidden_size.value
            origins[name] = Origin.TARGET if equal else Origin.RANDOM
        elif name == "lm_head.weight":
            origins[name] = _head(target, drafter, ask)
        else:
            origins[name] = Origin.RANDOM
    tied = drafter.tie.value and ask("whether a tied head is honoured", "tie") == "honoured"
    if tied and "lm_head.weight" in origins:
        origins["lm_head.weight"] = Origin.TIED
    return origins


def _may_be_absent(name: str, drafter: DeclaredDrafter) -> bool:
    """Parameters that do no harm when nothing provides them: they are not there, or norms of ones."""
    if name.endswith("hidden_norm.weight") and (not drafter.aux or name.startswith("layers.")):
        return True  # of further layers, vLLM has it and does not use it
    if name == "norm.weight" and drafter.flags.get("eagle_config.use_last_layernorm") is False:
        return True
    if name == "midlayer.input_layernorm.weight":
        return drafter.flags.get("eagle_config.use_input_layernorm_in_first_layer") is False
    return name.endswith(("o_proj.bias", "self_attn.q_norm.weight", "self_attn.k_norm.weight"))


def _head(target: DeclaredTarget, drafter: DeclaredDrafter, ask: _Asker) -> Origin:
    """Of a drafter that ships none."""
    same_width = drafter.hidden_size.value == target.hidden_size.value
    same_rows = drafter.vocabulary == (target.vocab_size.value or drafter.vocabulary)
    if not (same_width and same_rows):
        return Origin.RANDOM
    borrowed = ask("whether a missing head is borrowed", "borrowed_head")
    if borrowed == "never":
        return Origin.RANDOM
    if borrowed == "draft_vocab_size_null":
        return Origin.TARGET if drafter.draft_vocab_size.value is None else Origin.RANDOM
    return Origin.TARGET


def _fc(drafter: DeclaredDrafter, parameters: Mapping[str, Origin], skipped: bool, inputs: str) -> tuple[bool, str]:
    if not drafter.aux:
        return False, "use_aux_hidden_state is false: the drafter reads the target's last hidden state alone"
    if parameters.get("fc.weight") is not Origin.FILES:
        return False, "nothing provides fc.weight"
    if skipped:
        return False, "one state is as wide as the embedding, and by that test fc is skipped"
    return True, inputs


def _hook(target: DeclaredTarget, family: str | None, ask: _Asker) -> bool | None:
    name = target.architecture.value or "(none named)"
    if not ask.engine.table.targets:
        return True
    if family is None:
        ask.unknown.append(f"whether the target's class {name} can be captured")
        return None
    answer = ask.engine.ask("hook", False, family=family)
    if not answer.known:
        ask.unknown.append(f"whether the target's class {name} can be captured")
        return None
    return bool(answer.value)
