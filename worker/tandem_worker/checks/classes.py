"""Classes: which one the engine loads for the drafter, whether the target's can capture, what they stumble over."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tandem_worker.checkpoint.errors import error, note, warning
from tandem_worker.checks.pairing import Pairing
from tandem_worker.finding import Finding

NAMED_SO = "LlamaForCausalLMEagle3"
LLAMA_CLASSES = (NAMED_SO, "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")
MLA_CLASSES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def config_problems(pairing: Pairing) -> Iterable[Finding]:
    """Values of the wrong type, in the one file and the other."""
    yield from pairing.target.problems
    yield from pairing.drafter.problems


def target_class(pairing: Pairing) -> Iterable[Finding]:
    if pairing.resolution.hook is not False:
        return
    name = pairing.target.architecture.value
    effect = pairing.engine.ask("without_hook", "it can not serve the pair").value
    yield error(
        "TDM-TARGET-CLASS",
        f"{pairing.says} can not capture the states of a {name}: {effect}.",
        file=pairing.target.checkpoint.config.file,
        where="architectures[0]",
        found=name,
        expected="a class with EAGLE-3 capture in this version",
        action="Use a version whose class has it (tandem-worker check --all-engines), or another engine.",
    )


def drafter_class(pairing: Pairing) -> Iterable[Finding]:
    family, name = pairing.resolution.family, pairing.drafter.architecture.value or "(none named)"
    if pairing.engine.ask("drafter_by", "tensors").value == "tensors" or not pairing.engine.ask("drafter_by").known:
        yield from _by_tensors(pairing, name)
        return
    wanted = "Eagle3DeepseekV2ForCausalLM" if _mla(pairing) else NAMED_SO
    action = f'Set "architectures": ["{wanted}"] (tandem-worker convert writes a copy).'
    if pairing.drafter.dialect == "speculators" and not family:
        action = "Convert the speculators layout to this engine's (tandem-worker convert)."
    if family == "plain":
        yield error(
            "TDM-DRAFTER-CLASS-PLAIN",
            f"The tensors are an EAGLE-3 drafter's, and the architecture is named {name}: {pairing.engine.title} will "
            "load the wrong class, a plain language model that has no place for fc and midlayer.",
            file=pairing.config_file,
            where="architectures[0]",
            found=name,
            expected=wanted,
            action=action,
        )
    elif family == "other":
        yield _wrong_kind(pairing, name)
    elif pairing.refused and not any(problem.where == "architectures" for problem in pairing.drafter.problems):
        yield error(
            "TDM-DRAFTER-CLASS",
            f"{pairing.says} has no class for a drafter whose architecture is named {name}: start-up ends in an error.",
            file=pairing.config_file,
            where="architectures[0]",
            found=name,
            expected=wanted,
            action=action,
        )


def _wrong_kind(pairing: Pairing, name: str) -> Finding:
    mla = _mla(pairing)
    kinds = ("MLA", "Llama-style") if mla else ("Llama-style", "MLA")
    wanted = "Eagle3DeepseekV2ForCausalLM" if mla else NAMED_SO
    return error(
        "TDM-DRAFTER-CLASS-TENSORS",
        f"The architecture is named {name}, a class for {kinds[1]} attention, and the tensors are {kinds[0]}.",
        file=pairing.config_file,
        where="architectures[0]",
        found=name,
        expected=wanted,
        action=f'Set "architectures": ["{wanted}"] (tandem-worker convert writes a copy).',
    )


def _other_kind(pairing: Pairing, name: str) -> Iterable[Finding]:
    """A class that engines know, for the other kind of attention."""
    if (name in MLA_CLASSES and not _mla(pairing)) or (name in LLAMA_CLASSES and _mla(pairing)):
        yield _wrong_kind(pairing, name)


def _by_tensors(pairing: Pairing, name: str) -> Iterable[Finding]:
    """Tandem and nobody in particular go by the tensors; a name that says something else is told."""
    if "eagle3" in name.lower() or "peagle" in name.lower() or "eagle-3" in name.lower():
        if pairing.neutral:
            yield from _other_kind(pairing, name)
        return
    message = (
        f"The drafter's architecture is named {name}, a plain language model's, and its tensors are EAGLE-3: SGLang "
        "loads the wrong class for it, vLLM with the method eagle3 the right one."
    )
    if pairing.neutral and not name.startswith(("Llama", "(")):
        yield warning(
            "TDM-ARCHITECTURE-NAME",
            message,
            file=pairing.config_file,
            where="architectures[0]",
            found=name,
            expected=NAMED_SO,
            action=f'For SGLang set "architectures": ["{NAMED_SO}"].',
        )
    else:
        yield note(
            "TDM-ARCHITECTURE-NAME", message, file=pairing.config_file, where="architectures[0]", expected=NAMED_SO
        )


def layer_count(pairing: Pairing) -> Iterable[Finding]:
    """num_hidden_layers of the drafter against the layers in its files, and against what the class takes."""
    stated = pairing.drafter.layers
    if stated.value is None:
        return
    keys = pairing.drafter.checkpoint.tensors
    present = {int(match[1]) for key in keys if (match := LAYER.search(key))} or {0}
    if any("midlayer." in key for key in keys):
        present |= {0}
    most = pairing.engine.ask("layers_most", 0, drafter=pairing.resolution.family).value
    if stated.value != len(present):
        yield error(
            "TDM-LAYER-COUNT",
            f"num_hidden_layers is {stated.value}, the files hold {len(present)} decoder layer"
            f"{'s' * (len(present) > 1)}: the rest would stay random, or the engine refuses more than one.",
            file=pairing.config_file,
            where=stated.where,
            found=stated.value,
            expected=len(present),
            action=f"Set num_hidden_layers to {len(present)} in the drafter's config.json.",
        )
    elif most and stated.value > most:
        yield error(
            "TDM-LAYER-COUNT",
            f"{pairing.says} takes drafters of {most} layer; this one has {stated.value}.",
            file=pairing.config_file,
            where=stated.where,
            found=stated.value,
            expected=most,
            action="Use a version that takes several layers, or another engine.",
        )


def draft_vocab_size_stated(pairing: Pairing) -> Iterable[Finding]:
    drafter = pairing.drafter
    required = pairing.engine.ask("draft_vocab_size", "optional", drafter=pairing.resolution.family or "").value
    absent = drafter.draft_vocab_size.where == "" and not drafter.draft_vocab_size_null
    if (
        required == "required"
        and not pairing.refused
        and absent
        and not drafter.tie.value
        and not _head_disagrees(pairing)
        and not pairing.eagle1
    ):
        yield error(
            "TDM-DRAFT-VOCABULARY-UNSTATED",
            f"The drafter's config has no draft_vocab_size; {pairing.engine.title} reads it without a default and ends "
            "in an AttributeError.",
            file=pairing.config_file,
            where="draft_vocab_size",
            expected=f"{drafter.vocabulary}, or null",
            action=f'Add "draft_vocab_size": {drafter.vocabulary}.',
        )


def truncated_vocabulary(pairing: Pairing) -> Iterable[Finding]:
    """Some exports name the draft vocabulary truncated_vocab_size as well; engines read draft_vocab_size alone."""
    stated = pairing.drafter.draft_vocab_size
    if not stated.where.endswith("truncated_vocab_size") or pairing.engine.name == "builtin" or pairing.refused:
        return
    make = warning if pairing.neutral else error
    yield make(
        "TDM-DRAFT-VOCABULARY-UNSTATED",
        f"The drafter's config has {stated.where} {stated.value} and no draft_vocab_size; {pairing.engine.title} reads "
        "the second alone.",
        file=pairing.config_file,
        where="draft_vocab_size",
        found="absent",
        expected=stated.value,
        action=f'Add "draft_vocab_size": {stated.value}.',
    )


def aux_ignored(pairing: Pairing) -> Iterable[Finding]:
    """use_aux_hidden_state counts inside eagle_config alone; elsewhere an engine takes it for true."""
    drafter = pairing.drafter
    if drafter.aux or drafter.aux_where != "use_aux_hidden_state" or pairing.engine.name == "builtin":
        return
    make = warning if pairing.neutral else error
    yield make(
        "TDM-FLAG-IGNORED",
        f"use_aux_hidden_state is false at top level, and {pairing.engine.title} reads it inside eagle_config alone: "
        "it captures states and looks for fc.",
        file=pairing.config_file,
        where="use_aux_hidden_state",
        found="false",
        expected="eagle_config.use_aux_hidden_state",
        action='Write "eagle_config": {"use_aux_hidden_state": false}.',
    )


def not_a_drafter(pairing: Pairing) -> Iterable[Finding]:
    """Everything else then follows from it, and only this is told."""
    if not pairing.whole_model:
        return
    layers = pairing.drafter.layers.value
    yield error(
        "TDM-NOT-A-DRAFTER",
        f"The drafter at {pairing.drafter.checkpoint.path} is a language model of {layers} layers, not an EAGLE-3 "
        "head: it has no fc, no hidden_norm, and its first layer reads the embedding alone.",
        file=pairing.drafter.checkpoint.path,
        where="fc.weight",
        found=f"{pairing.drafter.architecture.value or 'no class'}, {layers} layers",
        expected="an EAGLE-3 drafter: fc, one decoder layer, norm",
        action="Give the drafter's own folder, not a model's.",
    )


def _head_disagrees(pairing: Pairing) -> bool:
    head = pairing.parameters.get("lm_head.weight")
    return head is not None and len(head.shape) == 2 and head.shape[0] != pairing.drafter.vocabulary


def traps(pairing: Pairing) -> Iterable[Finding]:
    """Values that a version is known to stumble over."""
    config = pairing.drafter.checkpoint.config
    for field, value in [] if pairing.refused else pairing.engine.asked("trap", "field", "is"):
        if value == "null":
            sprung = config.states_null(field)
        else:
            sprung = config.raw(field) is not None and str(config.raw(field)) == value
        effect = pairing.engine.ask("trap", "", **{"field": field, "is": value})
        if sprung and effect.known and effect.value:
            yield warning(
                "TDM-ENGINE-TRAP",
                f"{field} is {value}; in {pairing.engine.title} {effect.value} ({effect.source}).",
                file=config.file,
                where=field,
                found=value,
                expected="the field absent",
                action=f"Remove {field} from the drafter's config.json.",
            )


def flags_ignored(pairing: Pairing) -> Iterable[Finding]:
    """Flags that change what the drafter computes, and that this engine does not read."""
    if pairing.engine.name == "builtin" or pairing.refused:  # refused elsewhere, by its own narrow reading
        return
    for name, paths, error_too in (
        ("norm_before_fc", ["norm_before_fc", "eagle_config.norm_before_fc"], True),
        ("fc_norm", ["fc_norm", "use_aux_norm", "eagle_config.fc_norm"], True),
        ("norm_output", ["norm_output", "eagle_config.norm_output"], False),
        ("norm_before_residual", ["norm_before_residual", "eagle_config.norm_before_residual"], False),
    ):
        declared, taken = pairing.drafter.flag(paths), pairing.resolution.flags[name]
        known = f"the flag {name}" not in pairing.resolution.unknown
        if declared is None or not declared.value or taken.value or not known:
            continue
        make = error if error_too else warning
        yield make(
            "TDM-FLAG-IGNORED",
            f"{declared.where} is true, and {pairing.engine.title} does not read it: the drafter is computed "
            "without it, "
            "in silence.",
            file=pairing.config_file,
            where=declared.where,
            found="true",
            expected="an engine and version that read it",
            action="Use a version that supports the flag (tandem-worker check --all-engines).",
        )


def _mla(pairing: Pairing) -> bool:
    return any("kv_a_proj_with_mqa" in key for key in pairing.drafter.checkpoint.tensors)
