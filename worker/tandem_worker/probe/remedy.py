"""The one change that mends a cause, in the words of the engine that will run."""

from __future__ import annotations

from tandem_worker.checks.layer_rules import Indexes, ids_for
from tandem_worker.checks.pairing import Pairing
from tandem_worker.probe.wiring import Aspect, DraftIds, Source, View, Wiring

CONFIG = "in the drafter's config.json"


def remedy(pairing: Pairing, aspect: Aspect, engine: Wiring, wanted: Wiring) -> str:
    """Goes on from a semicolon."""
    if aspect is Aspect.CAPTURE:
        return layers(pairing, wanted.capture)
    if aspect is Aspect.FUSION:
        if not wanted.fused:
            return f"set eagle_config.use_aux_hidden_state to false {CONFIG}"
        way = layers(pairing, wanted.capture)
        captured = pairing.resolution.captured == wanted.capture
        return f"set eagle_config.use_aux_hidden_state to true {CONFIG}" + ("" if captured else f", and {way}")
    if aspect is Aspect.IDS:
        return _ids(pairing, wanted)
    if aspect is Aspect.RANDOM:
        return f"rename the tensors: {_convert(pairing)}"
    if aspect is Aspect.ROPE_THETA:
        where = pairing.drafter.rope.theta.where or "rope_theta"
        return f"set {where} to {wanted.rope_theta:g} {CONFIG}"
    if aspect in (Aspect.EMBEDDING, Aspect.HEAD):
        return _table(pairing, aspect, engine, wanted)
    if aspect is Aspect.VIEW:
        taken = "residual streams" if wanted.view is View.STREAM else "states behind a norm"
        return f"use an engine that captures {taken}, or train the drafter on what {pairing.engine.title} captures"
    if aspect is Aspect.ROPE_PAIRS:
        return "permute the rows of q_proj and k_proj from the one order to the other, head by head"
    return _flag(pairing, aspect.value, getattr(wanted, aspect.value))


def layers(pairing: Pairing, wanted: Indexes) -> str:
    """The list of ids that makes this engine capture `wanted`, at the place that the config already uses, if any."""
    engine, count = pairing.engine, pairing.target.layers.value or 0
    if engine.ask("order", "kept").value == "ascending" and list(wanted) != sorted(set(wanted)):
        now = sorted(set(wanted))
        return (
            f"{engine.title} feeds the streams in ascending order, so put the blocks of fc.weight's columns in the "
            f"order of {now}"
        )
    ways = []
    for path, rule in engine.ask("ids_read", []).value:
        if rule == "by_target":
            rule = engine.ask("ids_rule", family=pairing.resolution.target_family or "").value
        ids = ids_for(wanted, count, rule) if rule else None
        if ids is not None:
            ways.append((path != pairing.resolution.ids_where, path, ids))
    if not ways:
        return f"no list of ids makes {engine.title} capture {list(wanted)}; use another version or engine"
    _, path, ids = min(ways, key=lambda way: way[0])
    return f"set {path} to {list(ids)}"


def _ids(pairing: Pairing, wanted: Wiring) -> str:
    if wanted.ids is DraftIds.OFFSETS:
        return f"read d2t as offsets: {pairing.engine.title} does so by its table, so look at what it was given"
    if wanted.ids is DraftIds.IGNORED:
        return "write d2t as zeros and t2d as the first ids, or train with the vocabulary that d2t describes"
    source = "its entries" if wanted.ids is DraftIds.IDS else "the ids that t2d marks"
    return f"write d2t as offsets, d2t[i] = target id - i, from {source} ({_convert(pairing)})"


def _table(pairing: Pairing, aspect: Aspect, engine: Wiring, wanted: Wiring) -> str:
    name = "embed_tokens.weight" if aspect is Aspect.EMBEDDING else "lm_head.weight"
    now, to = (getattr(wiring, aspect.value) for wiring in (engine, wanted))
    if to is Source.OWN and now is Source.TARGET:
        return f"use an engine that keeps the drafter's {name}"
    if to is Source.OWN:
        return f"rename the tensors: {_convert(pairing)}"
    return f"copy the target's {name} into the drafter: {_convert(pairing)}"


def _flag(pairing: Pairing, flag: str, value: bool) -> str:
    family = pairing.resolution.family or "llama"
    paths = pairing.engine.ask("flag", [], flag=flag, drafter=family).value or []
    if not paths:
        return f"{pairing.engine.title} does not read {flag}; use a version or an engine that does"
    stated = pairing.drafter.flag(paths)
    return f"set {stated.where if stated else paths[0]} to {str(value).lower()} {CONFIG}"


def _convert(pairing: Pairing) -> str:
    engine = pairing.engine
    version = f"@{engine.version}" if engine.version else ""
    return f"tandem-worker convert DRAFTER COPY --target TARGET --engine {engine.name}{version}"
