"""Names: what the engine drops or refuses, what nothing provides, what it borrows from the target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tandem_worker.checkpoint.errors import Details, Place, error, listed, note, warning
from tandem_worker.checks.engine_resolution import Origin, Use
from tandem_worker.checks.expected import VOCABULARY
from tandem_worker.checks.names import PACKED, meant_for, meant_for_all
from tandem_worker.checks.pairing import Pairing
from tandem_worker.finding import Finding

FLAG_OF = {"input_norm.weight": "norm_before_fc", "fc_norm": "fc_norm", "fc.bias": "bias (eagle_fc_bias)"}


def dropped_tensors(pairing: Pairing) -> Iterable[Finding]:
    """A dropped weight changes what the drafter computes, and no engine says so at run time."""
    resolution = pairing.resolution
    lost = [key for key, (use, name) in resolution.tensors.items() if use in (Use.DROPPED, Use.REFUSED)]
    lost = [key for key in lost if not _told_elsewhere(pairing, key)]
    if pairing.eagle1 or not lost:
        return
    refused = any(resolution.tensors[key][0] is Use.REFUSED for key in lost)
    meant = [name for key in lost for name in meant_for_all(key)]
    random = sorted(name for name in meant if resolution.parameters.get(name) is Origin.RANDOM)
    effect = "refuses to load them" if refused else "would drop them in silence"
    flags = {flag for key in lost for part, flag in FLAG_OF.items() if part in key}
    yield error(
        "TDM-TENSORS-DROPPED",
        f"{pairing.says} has no parameter for {len(lost)} tensors of the drafter and {effect}: {listed(lost)}."
        + (f" {len(random)} parameters would stay random: {listed(random)}." if random else "")
        + (f" The config does not set {listed(sorted(flags))}." if flags else ""),
        file=pairing.drafter.checkpoint.tensors[lost[0]].file,
        where=lost[0],
        found=listed(lost),
        expected=_accepted(pairing),
        action=f"Set {listed(sorted(flags))} to true if the drafter was trained so."
        if flags
        else "Rename the tensors (tandem-worker convert), or use a drafter without this feature.",
    )


def _told_elsewhere(pairing: Pairing, key: str) -> bool:
    """Tensors whose fate follows from something that another check tells."""
    name = pairing.resolution.tensors[key][1]
    flagged = {"input_norm.weight": "norm_before_fc"}.get(name) or ("fc_norm" if name.startswith("fc_norm.") else "")
    if flagged:
        paths = [flagged, f"eagle_config.{flagged}", "use_aux_norm"]
        declared = pairing.drafter.flag(paths)
        return declared is not None and declared.value
    if name.startswith("layers.") or (key.startswith("layers.") and not name):
        return bool(pairing.drafter.layers.value and pairing.engine.name != "builtin" and name)
    return name in ("fc.weight", "fc.bias") and not pairing.drafter.aux


def _accepted(pairing: Pairing) -> str:
    value = pairing.engine.ask("names", None, drafter=pairing.resolution.family or "llama").value
    if value is None:
        return "the names of the engine's class"
    prefixes = " or ".join(repr(prefix) if prefix else "nothing" for prefix in value["prefixes"])
    return f"fc, {' or '.join(value['layer0'])}, norm, lm_head, embed_tokens, d2t, t2d, behind {prefixes}"


def missing_parameters(pairing: Pairing) -> Iterable[Finding]:
    """Parameters that would keep the random values a fresh model starts with."""
    if pairing.eagle1:
        return
    parameters, tensors = pairing.resolution.parameters, pairing.resolution.tensors
    lost = [key for key, (use, _) in tensors.items() if use in (Use.DROPPED, Use.REFUSED)]
    meant = {name for key in lost for name in meant_for_all(key)}
    random = [name for name, origin in parameters.items() if origin is Origin.RANDOM and name not in meant]
    if (pairing.drafter.layers.value or 1) > 1:
        present = {name.split(".")[1] for _, name in tensors.values() if name.startswith("layers.")}
        random = [name for name in random if not name.startswith("layers.") or name.split(".")[1] in present]
    if pairing.foreign or pairing.stored_hidden:  # told as another target, or as a wrong hidden_size
        random = [name for name in random if name != "embed_tokens.weight"]
    maps = [name for name in random if name in VOCABULARY]
    weights = sorted(name for name in random if name not in VOCABULARY)
    path = pairing.drafter.checkpoint.path
    if weights:
        yield error(
            "TDM-PARAMETERS-MISSING",
            f"Nothing provides {len(weights)} parameters of the drafter; they would stay random: {listed(weights)}."
            + _why_not_shared(pairing, weights),
            file=path,
            where=weights[0],
            found=f"{len(weights)} missing",
            expected="every parameter in the drafter's files, or shared by the target",
            action="Check the tensor names (a prefix?), the config's flags, and that all shards are there.",
        )
    if maps and "lm_head.weight" not in weights:
        yield error(
            "TDM-DRAFT-VOCABULARY-MAP-MISSING",
            f"The draft vocabulary has {pairing.drafter.vocabulary} ids of {pairing.drafter.vocab_size.value}; "
            f"without {listed(maps)} a draft id has no meaning, and engines take it for a target id.",
            file=path,
            where=maps[0],
            expected=listed(maps),
            action="Export the drafter with d2t and t2d.",
        )


def _why_not_shared(pairing: Pairing, missing: list[str]) -> str:
    drafter, target = pairing.drafter, pairing.target
    why = ""
    if "embed_tokens.weight" in missing and drafter.hidden_size.value != target.hidden_size.value:
        why += (
            f" The target's embedding is {target.hidden_size.value} wide, the drafter {drafter.hidden_size.value}: it "
            "can not be shared."
        )
    if "lm_head.weight" in missing and drafter.vocabulary != target.vocab_size.value:
        why += f" The target's head has {target.vocab_size.value} rows, the drafter's needs {drafter.vocabulary}."
    elif "lm_head.weight" in missing:
        why += (
            f" {pairing.says} borrows the target's head only when draft_vocab_size is null; it is {drafter.vocabulary}."
        )
    return why


def colliding_tensors(pairing: Pairing) -> Iterable[Finding]:
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for key, (use, name) in pairing.resolution.tensors.items():
        if use is Use.LOADED and name:
            keys[name].append(key)
    for name, several in keys.items():
        if len(several) > 1:
            yield error(
                "TDM-TENSORS-COLLIDE",
                f"{listed(several)} all mean the drafter's {name}; which one counts is unclear.",
                file=pairing.drafter.checkpoint.path,
                where=several[0],
                found=listed(several),
                expected=f"one tensor for {name}",
                action="Remove the tensors that do not belong to the drafter.",
            )


def fc_unused(pairing: Pairing) -> Iterable[Finding]:
    """fc in the files, and nothing that runs it."""
    fc = next((key for key in pairing.drafter.checkpoint.tensors if meant_for(key) == "fc.weight"), None)
    if fc is None or pairing.eagle1:
        return
    alone = pairing.resolution.states == 1 and pairing.resolution.target_width == pairing.drafter.hidden_size.value
    if pairing.neutral and pairing.drafter.aux and alone:
        message = "One captured state is as wide as the embedding; SGLang tells by the width whether to apply fc, and"
        yield warning("TDM-FC-UNUSED", f"{message} skips it.", file=pairing.config_file, where=fc)
    if pairing.resolution.fc_applied:
        return
    tensor = pairing.drafter.checkpoint.tensors[fc]
    place: Place = {"file": tensor.file, "where": fc, "found": list(tensor.shape)}
    if not pairing.drafter.aux:
        yield warning(
            "TDM-FC-UNUSED",
            f"{fc} {list(tensor.shape)} is there, and use_aux_hidden_state is false: it is never applied.",
            expected="no fc.weight",
            action="Remove the tensor, or set use_aux_hidden_state to true if the drafter was trained with fc.",
            **place,
        )
    elif "skip" in pairing.resolution.fc_reason:
        message = f"{pairing.says} skips {fc} {list(tensor.shape)}: {pairing.resolution.fc_reason}."
        yield error("TDM-FC-UNUSED", message, expected="more than one state", action="Use another engine.", **place)


def mask_hidden(pairing: Pairing) -> Iterable[Finding]:
    """Of parallel drafting (P-EAGLE): needed where it is on, passed over where it is off."""
    drafter = pairing.drafter
    stated = drafter.flag(["parallel_drafting"])
    asked = str(pairing.deployment.values.get("parallel_drafting", "")).lower()
    named = "peagle" in (drafter.architecture.value or "").lower()
    key = next((key for key in drafter.checkpoint.tensors if key.endswith("mask_hidden")), None)
    on = asked == "true" or (stated is not None and stated.value) or drafter.algorithm == "peagle"
    off = asked == "false" or (stated is not None and not stated.value)
    if key is None and not off and (on or named):
        make = error if on else warning
        yield make(
            "TDM-MASK-HIDDEN-MISSING",
            "The drafter has no tensor mask_hidden, and parallel drafting can not be done without it.",
            file=drafter.checkpoint.path,
            where="mask_hidden",
            expected=f"[1, {(pairing.resolution.states or 3) * (pairing.resolution.target_width or 0)}]",
            action="Export the drafter with mask_hidden, or switch parallel drafting off.",
        )
    elif key is not None and not on and (off or not named):
        yield warning(
            "TDM-TENSORS-UNUSED",
            f"{key} belongs to parallel drafting, which is off: the drafter drafts in a chain and does not use it.",
            file=drafter.checkpoint.tensors[key].file,
            where=key,
            action="Switch parallel drafting on if the drafter was trained for it.",
        )


def quantised_head(pairing: Pairing) -> Iterable[Finding]:
    head = pairing.parameters.get("lm_head.weight")
    if head is not None and PACKED.search(head.name):
        yield warning(
            "TDM-HEAD-QUANTISED",
            f"The drafter's head is quantised ({head.name}, {head.dtype}); engines were reported to fail on it.",
            file=head.file,
            where=head.name,
            found=head.dtype,
            expected="lm_head.weight in floats",
            action="Export the drafter with a head that is not quantised.",
        )


def told(pairing: Pairing) -> Iterable[Finding]:
    """What is borrowed from the target, and what is kept."""
    drafter, parameters = pairing.drafter, pairing.resolution.parameters
    path = drafter.checkpoint.path
    head, embedding = parameters.get("lm_head.weight"), parameters.get("embed_tokens.weight")
    if embedding is Origin.TARGET:
        message = "The drafter has no embedding of its own; it shares the target's."
        yield note("TDM-EMBEDDING-SHARED", message, file=path, where="embed_tokens.weight")
    if Origin.FILES in (head, embedding) and embedding is Origin.FILES:
        message = (
            "The drafter has an embedding of its own (embed_tokens.weight), which must be kept beside the target's."
        )
        yield note("TDM-EMBEDDING-OWN", message, file=path, where="embed_tokens.weight")
    if head is Origin.TARGET:
        quiet = drafter.tie.value or drafter.draft_vocab_size.value is None
        message = (
            "The drafter has no head (lm_head.weight) of its own; it must be borrowed from the target. Not every "
            "engine "
            "does: SGLang leaves it at random when draft_vocab_size is set."
        )
        action = "For SGLang copy the target's lm_head.weight into the drafter (tandem-worker convert)."
        make = note if quiet else warning
        yield make("TDM-HEAD-BORROWED", message, file=path, where="lm_head.weight", action=action)
    if pairing.resolution.family == "qwen3" and "midlayer.self_attn.q_norm.weight" not in parameters:
        message = (
            f"{pairing.says} loads a Qwen3 drafter class, which normalises queries and keys; the files have no "
            "q_norm and "
            "k_norm, so it does so with weights of one."
        )
        yield note("TDM-QUERY-NORMS-ABSENT", message, file=path, where="midlayer.self_attn.q_norm.weight")
    unneeded = [key for key, (use, _) in pairing.resolution.tensors.items() if use is Use.NOT_NEEDED]
    if unneeded:
        yield note("TDM-TENSORS-NOT-NEEDED", f"{pairing.says} does not need {listed(unneeded)}.", file=path)


def tied(pairing: Pairing) -> Iterable[Finding]:
    """Copied from a target's config: an engine that ties would put the full embedding in place of the draft head."""
    drafter, config = pairing.drafter, pairing.config_file
    if not drafter.tie.value or not pairing.reduced:
        return
    details: Details = {"file": config, "where": drafter.tie.where, "found": "true", "expected": "false"}
    details["action"] = "Set tie_word_embeddings to false in the drafter's config.json."
    message = (
        f"The drafter's config ties head and embedding, but the head has {drafter.vocabulary} rows and the embedding "
        f"{drafter.vocab_size.value}: an engine that ties draws logits over all ids and maps them by d2t."
    )
    if pairing.engine.ask("tie", "honoured").value == "ignored" and pairing.engine.name != "builtin":
        yield warning("TDM-TIED-REDUCED-VOCABULARY", f"{message} {pairing.says} does not tie.", **details)
    else:
        yield error("TDM-TIED-REDUCED-VOCABULARY", message, **details)
