"""Shapes in the drafter's files against those that its config implies. [outputs, inputs] for matrices.

Each size of an expected shape carries the field that it comes from. Sizes that disagree are gathered by that field: if
all tensors that it sizes agree on another value, the field is wrong and is told once; otherwise the tensors are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tandem_worker.checkpoint import TensorInfo
from tandem_worker.checkpoint.declared import GUESSED_HEAD_DIM, IDS
from tandem_worker.checkpoint.errors import Place, error, warning
from tandem_worker.checkpoint.levels import Fact
from tandem_worker.checks.pairing import Pairing, packed
from tandem_worker.finding import Finding

APART = frozenset({"fc.weight", "d2t", "t2d"})  # looked at by checks of their own


class Mismatch(NamedTuple):
    tensor: TensorInfo
    axis: int
    expected: int
    shape: tuple[int | None, ...]


def fc_width(pairing: Pairing) -> Iterable[Finding]:
    """fc reads the captured states side by side: [H of the drafter, states x H of the target]."""
    fc, hidden, width = (
        pairing.fc,
        pairing.drafter.hidden_size.value,
        pairing.target.hidden_size.value,
    )
    resolution = pairing.resolution
    if fc is None or not hidden or not width or not pairing.drafter.aux or pairing.stored_hidden:
        return
    states, engine_width = resolution.states, resolution.target_width or width
    place: Place = {"file": fc.file, "where": fc.name, "found": list(fc.shape)}
    if len(fc.shape) != 2:
        message = (
            f"{fc.name} is {list(fc.shape)}, not a matrix; {pairing.engine.title} gives it {states} states of {width}."
        )
        expected = [hidden, (states or 3) * width]
        yield error("TDM-FC-WIDTH", message, expected=expected, action="Export the drafter again.", **place)
        return
    if pairing.eagle1:
        yield error(
            "TDM-EAGLE1-LAYOUT",
            f"fc.weight is {list(fc.shape)}: inputs of 2 x hidden ({2 * hidden}) are the EAGLE-1 layout (embedding and "
            f"one state); EAGLE-3 has {states or 3} states of {width}.",
            expected=[hidden, (states or 3) * width],
            action="Use an EAGLE-3 drafter that was trained on three states of this target.",
            **place,
        )
        return
    odd = states is not None and fc.shape[1] != states * width and fc.shape[0] == hidden
    if odd and pairing.engine.name == "builtin" and fc.shape[1] / width in pairing.declared_states:
        return  # the engine's own reading of the config refuses any number but three
    if states is None or (fc.shape == (hidden, states * engine_width) and engine_width == width):
        return
    if pairing.miscounted and fc.shape == (hidden, fc.shape[1] // width * width):
        return  # the list names another number of layers than fc takes: told as a mistake of the list
    yield _fc_differs(pairing, fc, states, engine_width, hidden, width, place)


def _fc_differs(
    pairing: Pairing, fc: TensorInfo, states: int, engine_width: int, hidden: int, width: int, place: Place
) -> Finding:
    drafter, seen = pairing.drafter, fc.shape[1] / width
    if pairing.foreign and fc.shape[0] == hidden:
        return error(
            "TDM-TARGET-HIDDEN-SIZE",
            f"fc.weight is {list(fc.shape)}, {states} states of {hidden}: the drafter was made for a target "
            f"{hidden} wide; "
            f"this target is {width} wide.",
            file=fc.file,
            where=fc.name,
            found=hidden,
            expected=width,
            action="Use the target that the drafter was trained for.",
        )
    expected = [hidden, states * engine_width]
    stated = drafter.target_hidden_size
    if stated.value and stated.value != width:
        return error(
            "TDM-TARGET-HIDDEN-SIZE",
            f"The drafter was made for a target {stated.value} wide; this target is {width} wide.",
            file=pairing.config_file,
            where=stated.where,
            found=stated.value,
            expected=width,
            action="Use the target that the drafter was trained for.",
        )
    if engine_width != width and fc.shape[1] == states * width and fc.shape[0] == hidden:
        return error(
            "TDM-TARGET-HIDDEN-SIZE",
            f"fc.weight is {list(fc.shape)}, {states} states of the target's {width}; the config has no "
            f"target_hidden_size, so {pairing.engine.title} sizes fc by the drafter's own {hidden}: {expected}.",
            file=pairing.config_file,
            where="target_hidden_size",
            found="absent",
            expected=width,
            action=f'Add "target_hidden_size": {width} to the drafter\'s config.json.',
        )
    if fc.shape[0] == hidden and seen in pairing.declared_states and engine_width == width:
        return error(
            "TDM-STATES-IGNORED",
            f"The config names {seen:g} states and fc.weight {list(fc.shape)} takes {seen:g}; "
            f"{pairing.engine.title} does "
            f"not read them there and sizes fc for {states}: {expected}.",
            file=pairing.config_file,
            where=next(iter(drafter.ids), IDS),
            found=list(fc.shape),
            expected=expected,
            action=f'Add "num_aux_hidden_states": {seen:g}, or use an engine that reads the top-level key.',
        )
    message = (
        f"fc.weight is {list(fc.shape)} ({fc.shape[1]} inputs = {seen:g} states of the target's {width}); "
        f"{pairing.engine.title} gives it {states} states of {width} and takes {hidden} outputs."
    )
    action = "Use a drafter that was trained on states of this target."
    return error("TDM-FC-WIDTH", message, expected=[hidden, states * width], action=action, **place)


def states_from_top_level(pairing: Pairing) -> Iterable[Finding]:
    """As many states as only a top-level list says: engines that size fc by other keys take three."""
    resolution = pairing.resolution
    fc, width = pairing.fc, pairing.target.hidden_size.value or 0
    fits = fc is not None and len(fc.shape) == 2 and fc.shape[1] == (resolution.states or 0) * width
    if pairing.neutral and resolution.states_where == IDS and resolution.states != 3 and fits:
        yield warning(
            "TDM-STATES-TOP-LEVEL",
            f"{resolution.states} aux layers are declared by the top-level {IDS} alone: that needs an engine that "
            "reads "
            "the top-level key (vLLM's Llama drafter class and SGLang size fc for 3).",
            file=pairing.config_file,
            where=IDS,
            found=resolution.states,
            action=f'Add "num_aux_hidden_states": {resolution.states}.',
        )


def drafter_shapes(pairing: Pairing) -> Iterable[Finding]:
    if pairing.eagle1:
        return
    wrong: defaultdict[str, list[Mismatch]] = defaultdict(list)
    for name, shape in pairing.resolution.shapes.items():
        tensor = pairing.parameters.get(name)
        if tensor is None or name in APART or packed(tensor):
            continue
        sizes = tuple(dim.size for dim in shape)
        if len(tensor.shape) != len(shape):
            yield _rank(tensor, sizes)
            continue
        for axis, dim in enumerate(shape):
            if dim.size is not None and tensor.shape[axis] != dim.size:
                wrong[dim.source].append(Mismatch(tensor, axis, dim.size, sizes))
    yield from _told(pairing, wrong)


def _told(pairing: Pairing, wrong: dict[str, list[Mismatch]]) -> Iterable[Finding]:
    if pairing.stored_hidden:
        yield _field_or_tensor("hidden_size", wrong["hidden_size"])
        wrong = {source: mismatches for source, mismatches in wrong.items() if "hidden" not in source}
        if pairing.drafter.head_dim.default_of == GUESSED_HEAD_DIM:
            wrong = {source: mismatches for source, mismatches in wrong.items() if "head" not in source}
    head_dim = _guessed_head_dim(pairing, wrong) or _wrong_head_dim(pairing, wrong)
    if head_dim is not None:
        yield head_dim
        wrong = {source: mismatches for source, mismatches in wrong.items() if "head" not in source}
    if vocabulary_disagrees(pairing):
        wrong = {source: mismatches for source, mismatches in wrong.items() if source != "draft_vocab_size"}
    for source, mismatches in wrong.items():
        yield _field_or_tensor(source, mismatches)


def vocabulary_disagrees(pairing: Pairing) -> bool:
    """Head and d2t agree with each other and not with the config: told once, by the check of vocabularies."""
    head, d2t, stated = (
        pairing.parameters.get("lm_head.weight"),
        pairing.parameters.get("d2t"),
        pairing.drafter.vocabulary,
    )
    return (
        head is not None
        and d2t is not None
        and len(head.shape) == 2
        and len(d2t.shape) == 1
        and head.shape[0] == d2t.shape[0] != stated
    )


def _guessed_head_dim(pairing: Pairing, wrong: dict[str, list[Mismatch]]) -> Finding | None:
    """Without `head_dim` it is the config class's default, or else guessed as hidden / heads, which is wrong for
    drafters of gpt-oss, Qwen3 and Gemma whose config says that they are Llamas.
    """
    drafter, heads = pairing.drafter, pairing.drafter.heads.value
    mismatches = wrong.get("num_attention_heads x head_dim")
    if drafter.head_dim.declared or not mismatches or not heads:
        return None
    rows = mismatches[0].tensor.shape[mismatches[0].axis]
    stored = f"{rows / heads:g}"
    return error(
        "TDM-HEAD-DIM-GUESSED",
        f"The config has no head_dim; {_whose(drafter.head_dim)} {drafter.head_dim.value}, the tensors say {stored}: "
        f"{mismatches[0].tensor.name} is {list(mismatches[0].tensor.shape)}.",
        file=pairing.config_file,
        where="head_dim",
        found=drafter.head_dim.value,
        expected=stored,
        action=f'Add "head_dim": {stored} to the drafter\'s config.json.',
    )


def _wrong_head_dim(pairing: Pairing, wrong: dict[str, list[Mismatch]]) -> Finding | None:
    """The heads are as many as stated and all of another width: one field is wrong, not each projection."""
    drafter = pairing.drafter
    queries, keys = (wrong.get(f"{heads} x head_dim") for heads in ("num_attention_heads", "num_key_value_heads"))
    if not queries or not keys or not drafter.heads.value or not drafter.kv_heads.value:
        return None
    stored = {
        mismatch.tensor.shape[mismatch.axis] / heads
        for mismatches, heads in ((queries, drafter.heads.value), (keys, drafter.kv_heads.value))
        for mismatch in mismatches
    }
    if len(stored) != 1:
        return None
    first = queries[0].tensor
    return error(
        "TDM-DRAFTER-SHAPE",
        f"head_dim is {drafter.head_dim.value}, and the tensors have heads of {stored.pop():g}: {first.name} is "
        f"{list(first.shape)}.",
        file=pairing.config_file,
        where=drafter.head_dim.where or "head_dim",
        found=drafter.head_dim.value,
        expected=f"{first.shape[queries[0].axis] / drafter.heads.value:g}",
        action="Correct head_dim, or use the config that belongs to these weights.",
    )


def _whose(head_dim: Fact[int | None]) -> str:
    return "hidden / heads gives" if head_dim.default_of == GUESSED_HEAD_DIM else f"the {head_dim.default_of} is"


def _field_or_tensor(source: str, mismatches: list[Mismatch]) -> Finding:
    first = mismatches[0]
    tensor, found = first.tensor, first.tensor.shape[first.axis]
    expected = [
        first.expected if axis == first.axis else size if size is not None else tensor.shape[axis]
        for axis, size in enumerate(first.shape)
    ]
    more = f" (and {len(mismatches) - 1} like it)" if len(mismatches) > 1 else ""
    what = "columns" if first.axis else "rows" if len(first.shape) > 1 else "entries"
    hint = " (embedding beside feature)" if source == "2 x hidden_size" else ""
    return error(
        "TDM-DRAFTER-SHAPE",
        f"{tensor.name}{more} is {list(tensor.shape)}; the config implies {expected}: {source} = {first.expected} "
        f"{what}{hint}, the file has {found}.",
        file=tensor.file,
        where=tensor.name,
        found=list(tensor.shape),
        expected=expected,
        action=f"Use the config that belongs to these weights, or correct {source}.",
    )


def _rank(tensor: TensorInfo, sizes: tuple[int | None, ...]) -> Finding:
    return error(
        "TDM-DRAFTER-SHAPE",
        f"{tensor.name} has {len(tensor.shape)} dimensions, {list(tensor.shape)}; expected {len(sizes)}.",
        file=tensor.file,
        where=tensor.name,
        found=list(tensor.shape),
        expected=list(sizes),
        action="Export the drafter again.",
    )
