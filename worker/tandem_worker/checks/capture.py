"""Captured states: what the engine will capture, what the config means, what the training run captured."""

from __future__ import annotations

from collections.abc import Iterable

from tandem_worker.checkpoint.declared import IDS
from tandem_worker.checkpoint.errors import Place, error, note, warning
from tandem_worker.checks.layer_rules import RULES, SAID, as_outputs, default_indexes, ids_for
from tandem_worker.checks.pairing import Pairing
from tandem_worker.finding import Finding


def trained_on(pairing: Pairing) -> Iterable[Finding]:
    captured, trained = pairing.resolution.captured, pairing.trained_on
    if trained is None or captured is None or trained == captured:
        return
    yield error(
        "TDM-CAPTURE-INDEX-MISMATCH",
        f"{pairing.says} will capture {list(captured)}; this drafter was trained on {list(trained)}: "
        f"{remedy(pairing, trained)}.",
        file=pairing.config_file,
        where=pairing.resolution.ids_where or IDS,
        found=list(captured),
        expected=list(trained),
        action=_sentence(remedy(pairing, trained)),
    )


def layer_ids_count(pairing: Pairing) -> Iterable[Finding]:
    """The list that the config declares against the states that fc takes."""
    fc, width = pairing.fc, pairing.target.hidden_size.value
    if fc is None or len(fc.shape) != 2 or not width or pairing.eagle1:
        return
    for path, ids in pairing.drafter.ids.items():
        states = fc.shape[1] / width
        if path in pairing.miscounted:
            yield error(
                "TDM-LAYER-IDS-COUNT",
                f"{path} names {len(ids)} layers, {list(ids)}; fc.weight is {list(fc.shape)} and takes {states:g} "
                "states "
                f"of the target's {width}.",
                file=pairing.config_file,
                where=path,
                found=f"{len(ids)} ids",
                expected=f"{states:g} ids",
                action="Name the layers that the training run captured, one for each state.",
            )
            return


def states_captured(pairing: Pairing) -> Iterable[Finding]:
    """A number of states that nothing but num_aux_hidden_states says: the default list has three."""
    resolution, stated = pairing.resolution, pairing.drafter.states
    captured = resolution.captured
    if resolution.ids is not None or captured is None or not stated.value or resolution.ignored_ids:
        return
    if resolution.states == stated.value != len(captured):
        yield error(
            "TDM-STATES-CAPTURED",
            f"{stated.where} is {stated.value}, and the config names no layers: {pairing.engine.title} captures "
            f"{len(captured)}, {list(captured)}.",
            file=pairing.config_file,
            where=stated.where,
            found=stated.value,
            expected=len(captured),
            action="Name the layers that the training run captured, one for each state.",
        )


def layer_ids_range(pairing: Pairing) -> Iterable[Finding]:
    layers = pairing.target.layers.value
    if layers is None:
        return
    resolution = pairing.resolution
    for path, ids in pairing.drafter.ids.items():
        lowest = -1 if pairing.engine.name == "builtin" and "." in path else 0
        outside = [i for i in ids if not lowest <= i <= layers]
        if outside:
            yield _out_of_range(pairing, path, list(ids), f"{outside[0]} is not among {lowest} to {layers}", layers)
            return
    if resolution.captured is None:
        return
    beyond = [i for i in resolution.captured if not 0 <= i <= layers]
    shown = list(resolution.ids if resolution.ids is not None else resolution.captured)
    where = resolution.ids_where or "default"
    if beyond:
        reason = (
            f"{pairing.engine.title} makes {list(resolution.captured)} of them, and {beyond[0]} is none of its layers"
        )
        yield _out_of_range(pairing, where, shown, reason, layers)
    if layers in resolution.captured:
        yield from _last(pairing, where, shown, layers)
    if 0 in resolution.captured:
        effect = pairing.engine.ask("embedding", "captured", family=resolution.target_family or "").value
        if effect != "captured":
            yield _out_of_range(pairing, where, shown, f"capture index 0 {effect}", layers)


def _last(pairing: Pairing, where: str, shown: list[int], layers: int) -> Iterable[Finding]:
    """Capture index n, the stream after the last layer."""
    effect = pairing.engine.ask("last", "captured", family=pairing.resolution.target_family or "").value
    if effect != "captured":
        reason = f"the stream after the last of {layers} layers {effect} in {pairing.engine.title}"
        yield _out_of_range(pairing, where, shown, reason, layers)
    elif pairing.neutral:
        yield warning(
            "TDM-LAYER-ID-LAST",
            f"{where} {shown} holds {layers}, the number of the target's layers: the stream after the last one, which "
            "not every engine captures (SGLang for gpt-oss only, from 0.5.18 on).",
            file=pairing.config_file,
            where=where,
            found=shown,
            action="Name the engine and its version, to be told what it does.",
        )


def _out_of_range(pairing: Pairing, where: str, shown: list[int], reason: str, layers: int) -> Finding:
    return error(
        "TDM-LAYER-IDS-OUT-OF-RANGE",
        f"{where} {shown} does not fit a target of {layers} layers: {reason}.",
        file=pairing.config_file,
        where=where,
        found=shown,
        expected=f"0 to {layers} for a target of {layers} layers",
        action="Write the layers that the training run captured, counted as the engine does.",
    )


def capture_order(pairing: Pairing) -> Iterable[Finding]:
    """Unusual lists are never put in order here; the user hears of them."""
    resolution, engine = pairing.resolution, pairing.engine
    ids = resolution.ids
    ascending = engine.ask("order", "kept").value == "ascending"
    if resolution.ids is None and resolution.captured is not None and len(resolution.captured) < 3:
        yield error(
            "TDM-CAPTURE-INDEXES-REPEATED",
            f"The target is too shallow for the default layers: only {list(resolution.captured)} are distinct, and fc "
            "takes three states.",
            file=pairing.config_file,
            where=IDS,
            found=list(resolution.captured),
            expected="three distinct capture indexes",
            action=f"Write {IDS}.",
        )
    if ids is None:
        return
    place: Place = {"file": pairing.config_file, "where": resolution.ids_where, "found": list(ids)}
    if len(set(ids)) < len(ids):
        message = f"The same state is captured more than once: {list(ids)}."
        if ascending:
            message += (
                f" {pairing.says} captures each once, so {len(set(ids))} states reach an fc that takes {len(ids)}."
            )
            yield error("TDM-CAPTURE-INDEXES-REPEATED", message, expected="distinct layers", **place)
        else:
            yield warning("TDM-CAPTURE-INDEXES-REPEATED", message, **place)
    elif list(ids) != sorted(ids):
        kept = "sorts them" if ascending else "keeps their order"
        message = (
            f"The layer ids do not rise, {list(ids)}; {engine.title} {kept}. It must be the order of fc's slots in "
            "the training run."
        )
        yield warning("TDM-CAPTURE-INDEXES-UNSORTED", message, expected=sorted(ids), **place)


def ignored_ids(pairing: Pairing) -> Iterable[Finding]:
    """Lists that stand where this engine does not look, or that contradict the one that it reads."""
    resolution, layers = pairing.resolution, pairing.target.layers.value
    captured = resolution.captured
    if captured is None or layers is None:
        return
    for path, ids in resolution.ignored_ids.items():
        readings = [tuple(sorted(rule(ids, layers))) for rule in (RULES["verbatim"], RULES["plus_one"])]
        agrees = tuple(sorted(captured)) in readings
        if resolution.ids is not None and pairing.engine.name == "builtin":
            continue  # which reads both, and refuses two that disagree
        if resolution.ids is not None:
            yield from _second_list(pairing, path, ids, agrees)
        elif not agrees and ids:
            yield error(
                "TDM-LAYER-IDS-IGNORED",
                f"{pairing.says} does not read {path} {list(ids)}: it captures {list(captured)}, its default.",
                file=pairing.config_file,
                where=path,
                found=list(ids),
                expected=f"the list at {_paths(pairing)}",
                action=_sentence(remedy(pairing, readings[0] if path == IDS else readings[1])),
            )


def _second_list(pairing: Pairing, path: str, ids: tuple[int, ...], agrees: bool) -> Iterable[Finding]:
    resolution = pairing.resolution
    same = resolution.ids == ids
    if agrees and not same:
        return
    place: Place = {
        "file": pairing.config_file,
        "where": path,
        "found": f"{list(resolution.ids or ())} and {list(ids)}",
    }
    message = (
        f"The two lists of layer ids name different streams: {list(resolution.ids or ())} at {resolution.ids_where}, "
        f"{list(ids)} at {path}. Engines count the first in capture indexes and the second in layer outputs, and each "
        "engine reads one of them."
    )
    action = "Keep the list that says what the training run captured; remove the other."
    if same or not pairing.neutral:
        yield warning("TDM-LAYER-IDS-DISAGREE", message, action=action, **place)
    else:
        expected = "one list, or the same streams in both"
        yield error("TDM-LAYER-IDS-DISAGREE", message, expected=expected, action=action, **place)


def convention(pairing: Pairing) -> Iterable[Finding]:
    """The classic layers, written in the other engines' way of counting."""
    resolution, layers = pairing.resolution, pairing.target.layers.value
    if resolution.ids is None or layers is None or pairing.trained_on is not None or layers < 7:
        return
    classic, captured = default_indexes(layers), resolution.captured
    counted = {as_outputs(classic): "layer outputs", classic: "capture indexes"}.get(resolution.ids)
    if counted is None or captured == classic or captured is None:
        return
    written = ids_for(classic, layers, resolution.ids_rule)
    yield warning(
        "TDM-LAYER-IDS-CONVENTION",
        f"{resolution.ids_where} {list(resolution.ids)} are the classic layers of a target of {layers}, counted in "
        f"{counted}; {pairing.engine.title} captures {list(captured)}, one off ({SAID[resolution.ids_rule]}).",
        file=pairing.config_file,
        where=resolution.ids_where,
        found=list(resolution.ids),
        expected=list(written) if written else list(classic),
        action=f"If the drafter was trained on {list(classic)}: {remedy(pairing, classic)}.",
    )


def linear_layers(pairing: Pairing) -> Iterable[Finding]:
    """Hybrid targets: drafters were reported to need the states of attention layers."""
    captured, linear = pairing.resolution.captured, pairing.target.linear_layers
    if captured is None or not linear:
        return
    off = [i - 1 for i in captured if i - 1 in linear]
    if not off:
        return
    message = (
        f"The captured streams {list(captured)} leave layers {off}, which have no attention: the target mixes "
        "attention "
        "with linear layers, and its drafters are trained on attention layers."
    )
    place: Place = {"file": pairing.config_file, "where": pairing.resolution.ids_where or IDS, "found": off}
    if pairing.resolution.ids is None:
        yield note("TDM-LAYERS-NOT-ATTENTION", message, **place)
    else:
        action = "Check the layers against the drafter's model card."
        yield warning("TDM-LAYERS-NOT-ATTENTION", message, action=action, **place)


def defaults_told(pairing: Pairing) -> Iterable[Finding]:
    """What the config leaves open, engines fill in differently."""
    resolution, captured = pairing.resolution, pairing.resolution.captured
    if resolution.ids is None and captured is not None:
        message = (
            f"The config names no layer ids that {pairing.engine.title} reads; it captures {list(captured)} "
            f"(outputs of layers {list(as_outputs(captured))})."
        )
        yield note("TDM-LAYER-IDS-DEFAULT", message, file=pairing.config_file, where=IDS, expected="[2, n // 2, n - 3]")
    elif captured is not None:
        message = (
            f"{pairing.says} reads {list(resolution.ids or ())} at {resolution.ids_where} and captures "
            f"{list(captured)} "
            f"({SAID[resolution.ids_rule]})."
        )
        yield note("TDM-CAPTURE-INDEXES", message, file=pairing.config_file, where=resolution.ids_where)
    flag = resolution.flags["norm_before_residual"]
    if not flag.declared and "the flag norm_before_residual" not in resolution.unknown:
        message = (
            f"The config does not state norm_before_residual; {pairing.engine.title} takes {str(flag.value).lower()}, "
            f"some engines take {str(not flag.value).lower()}."
        )
        yield note("TDM-NORM-BEFORE-RESIDUAL-DEFAULT", message, file=pairing.config_file, where="norm_before_residual")


def remedy(pairing: Pairing, wanted: tuple[int, ...]) -> str:
    """How to write capture indexes so that this engine captures them."""
    layers = pairing.target.layers.value or 0
    ways = []
    for path, rule in pairing.resolution.ids_read:
        ids = ids_for(wanted, layers, rule) if rule else None
        if ids is not None:
            place = "at top level" if "." not in path else f"inside {path.split('.')[0]}"
            ways.append(f"{list(ids)} {place}")
    return "write " + ", or ".join(ways) if ways else "no list makes this engine capture it"


def _paths(pairing: Pairing) -> str:
    return " or ".join(path for path, _ in pairing.resolution.ids_read)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
