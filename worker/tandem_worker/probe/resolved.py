"""From a pair and an engine's table: the wiring that the engine will make, and what else the drafter may be for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tandem_worker.checkpoint import TensorInfo
from tandem_worker.checkpoint.tensors import Array
from tandem_worker.checks.engine_resolution import Origin, Use
from tandem_worker.checks.names import meant_for
from tandem_worker.checks.pairing import Pairing
from tandem_worker.probe.hypotheses import COMMON_THETAS, Choices, readings
from tandem_worker.probe.wiring import DraftIds, Pairs, Source, View, Wiring

SOURCES = {Origin.FILES: Source.OWN, Origin.TARGET: Source.TARGET, Origin.TIED: Source.TARGET}
TABLES = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
FLAG_TENSORS = {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}


def engine_wiring(pairing: Pairing) -> Wiring:
    """Of an engine whose table tells what is captured; others raise no error here but are not to be asked."""
    resolution, drafter = pairing.resolution, pairing.drafter
    origins, flags = resolution.parameters, resolution.flags
    lost = frozenset(name for name, origin in origins.items() if origin is Origin.RANDOM and name not in TABLES)
    embedding = SOURCES.get(origins.get("embed_tokens.weight", Origin.RANDOM), Source.RANDOM)
    if _overwritten(pairing):
        embedding = Source.TARGET
    wiring = Wiring(
        capture=resolution.captured or (),
        ids=DraftIds.OFFSETS if origins.get("d2t") is Origin.FILES else DraftIds.IGNORED,
        norm_before_residual=flags["norm_before_residual"].value,
        norm_before_fc=flags["norm_before_fc"].value,
        fc_norm=flags["fc_norm"].value,
        norm_output=flags["norm_output"].value,
        embedding=embedding,
        head=SOURCES.get(origins.get("lm_head.weight", Origin.RANDOM), Source.RANDOM),
        rope_theta=drafter.rope.theta.value or 10_000.0,
        random=lost,
    )
    if not drafter.aux:
        return replace(wiring, fused=False, capture=(pairing.target.layers.value or 0,), view=View.FINAL_NORM)
    if not resolution.fc_applied and "fc.weight" not in lost:
        return replace(wiring, fused=False, capture=wiring.capture[:1])
    return wiring


def choices_of(pairing: Pairing, wiring: Wiring) -> Choices:
    drafter, target, tensors = pairing.drafter, pairing.target, tensors_of(pairing)
    layers, wide = target.layers.value or 0, drafter.hidden_size.value == target.hidden_size.value
    fc = tensors.get("fc.weight")
    width = pairing.resolution.target_width or target.hidden_size.value
    states = fc.shape[1] // width if fc is not None and len(fc.shape) == 2 and width else 0
    own = {name for name in ("embed_tokens.weight", "lm_head.weight") if name in tensors}
    borrowed = (Source.TARGET,) if wide else ()
    thetas = [target.rope.theta.value, *(theta.value for theta in drafter.rope.thetas), *COMMON_THETAS]
    return Choices(
        layers=layers,
        states=states,
        readings=readings(tuple(drafter.ids.values()), pairing.trained_on, layers, states),
        ids=_draft_ids(pairing),
        flags=(
            "norm_before_residual",
            *(flag for flag, tensor in FLAG_TENSORS.items() if tensor in tensors or getattr(wiring, flag)),
        ),
        embeddings=(*((Source.OWN,) if "embed_tokens.weight" in own else ()), *borrowed),
        heads=(*((Source.OWN,) if "lm_head.weight" in own else ()), *borrowed),
        thetas=tuple(dict.fromkeys(theta for theta in thetas if theta)),
        pairs=() if pairing.drafter.mla.kv_lora.value else tuple(Pairs),  # latent attention has its own
        unfused=wide,
        restorable=frozenset(wiring.random & tensors.keys()),
    )


def tensors_of(pairing: Pairing) -> Mapping[str, TensorInfo]:
    """Parameter -> the tensor of the drafter's files that fills it or was meant to, whatever the engine does."""
    found = dict(pairing.parameters)
    for key, (use, _) in pairing.resolution.tensors.items():
        meant = meant_for(key) if use is not Use.LOADED else None
        if meant:
            found.setdefault(meant, pairing.drafter.checkpoint.tensors[key])
    return found


def _overwritten(pairing: Pairing) -> bool:
    """An own embedding in whose place the engine puts the target's."""
    equal = pairing.drafter.hidden_size.value == pairing.target.hidden_size.value
    return equal and pairing.engine.ask("own_embedding", "kept").value == "overwritten"


def _draft_ids(pairing: Pairing) -> tuple[DraftIds, ...]:
    """The readings under which every draft id has a target id of its own; of readings that agree, the first."""
    if not pairing.reduced:
        return (DraftIds.IGNORED,)
    d2t, t2d, count = pairing.d2t, pairing.t2d, pairing.drafter.vocabulary or 0
    places, vocabulary = np.arange(count), pairing.target.vocab_size.value or 0
    possible: dict[DraftIds, Array] = {}
    if d2t is not None and len(d2t) == count:
        values = d2t.astype(np.int64)
        possible = {DraftIds.OFFSETS: places + values, DraftIds.IDS: values}
    possible[DraftIds.IGNORED] = places
    if t2d is not None and int(t2d.sum()) == count:
        possible[DraftIds.MARKED] = np.flatnonzero(t2d)
    seen: list[bytes] = []
    offered = []
    for reading, ids in possible.items():
        distinct = len(np.unique(ids)) == count and ids.min(initial=0) >= 0 and ids.max(initial=0) < vocabulary
        if distinct and ids.tobytes() not in seen:
            seen.append(ids.tobytes())
            offered.append(reading)
    return tuple(offered)
