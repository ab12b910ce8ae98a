"""The corrections, one function each. Each looks at what the engine would make of the drafter and changes what the
files themselves prove wrong; whether that was enough is for the checks to say, which the copy must pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from tandem_worker.checkpoint import TensorInfo
from tandem_worker.checkpoint.declared import IDS, NESTED_IDS
from tandem_worker.checkpoint.tensors import FLOATS
from tandem_worker.checks.engine_resolution import Origin, Use, family_by_tensors
from tandem_worker.checks.layer_rules import RULES, Indexes, default_indexes, ids_for
from tandem_worker.checks.names import PACKED, PARAMETER, meant_for
from tandem_worker.convert.draft import Change, Draft, Entry, NotMechanical

STORED_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
CLASSES = {
    "llama": ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"),
    "qwen3": ("Eagle3Qwen3ForCausalLM",),
    "mla": ("Eagle3DeepseekV2ForCausalLM",),
}
SPECULATORS_ONLY = ("transformer_layer_config", "speculators_config", "speculators_model_type", "speculators_version")


def flat_config(draft: Draft) -> None:
    """Speculators nest the layer's config; only vLLM reads that."""
    nested = draft.config.get("transformer_layer_config")
    if not isinstance(nested, dict) or draft.pairing.engine.name == "vllm":
        return
    for name, value in nested.items():
        if name != "architectures" and draft.config.get(name) is None:
            draft.set(name, value, "moved out of transformer_layer_config, which the engine does not read")
    draft.set("model_type", nested.get("model_type", "llama"), "that of the drafter's layer")
    for name in (*SPECULATORS_ONLY, "auto_map", "has_no_defaults_at_init"):
        draft.remove(name, "of the speculators layout")


def architecture(draft: Draft) -> None:
    """A class that the engine has for these tensors; left alone when it is accepted as it is."""
    pairing, engine = draft.pairing, draft.pairing.engine
    family = family_by_tensors(pairing.drafter)
    nested = "transformer_layer_config" in draft.config  # vLLM goes by model_type there
    if nested or engine.ask("drafter_by", "tensors").value == "tensors" or pairing.resolution.family == family:
        return
    for name in CLASSES[family]:
        known = engine.ask("drafter", None, architecture=name).value
        if known and known["family"] == family:
            draft.set("architectures", [name], f"{engine.title} has this class for the tensors of the drafter")
            return
    raise NotMechanical(f"{engine.title} has no class for a drafter with the tensors of the {family} family")


def tensor_names(draft: Draft) -> None:
    """Spellings that the engine passes over or refuses; `midlayer.` without a prefix is read by every engine."""
    tensors = draft.pairing.resolution.tensors
    prefix = next((name.removesuffix("fc.weight") for name in tensors if name.endswith("fc.weight")), "")
    for name, (use, _) in tensors.items():
        bare = name.removeprefix(prefix)
        meant = meant_for(name) or (bare if PARAMETER.fullmatch(bare) else None)
        if use in (Use.DROPPED, Use.REFUSED) and meant and meant != name and not PACKED.search(name):
            draft.rename(name, meant, "a name that every engine reads")


def layer_count(draft: Draft) -> None:
    layers = {int(match[1]) for name in draft.tensors if (match := re.search(r"(?:^|\.)layers\.(\d+)\.", name))}
    layers |= {0} if any("midlayer." in name for name in draft.tensors) else set()
    field = _at(draft, "num_hidden_layers")
    if layers and draft.pairing.drafter.layers.value != len(layers):
        draft.set(field, len(layers), "as many layers as the files hold")


def draft_vocabulary(draft: Draft) -> None:
    """The head's rows say it, where d2t agrees."""
    head, d2t = draft.pairing.parameters.get("lm_head.weight"), draft.pairing.parameters.get("d2t")
    drafter = draft.pairing.drafter
    if head is None or len(head.shape) != 2:
        if drafter.draft_vocab_size.value is None and not drafter.draft_vocab_size_null:
            draft.set("draft_vocab_size", None, "the head is the target's: the field must be there, as null")
        return
    rows = head.shape[0]
    proven = rows == drafter.vocab_size.value or (d2t is not None and d2t.shape == (rows,))
    if drafter.draft_vocab_size.value != rows and proven:
        draft.set("draft_vocab_size", rows, "rows of lm_head.weight")


def tie(draft: Draft) -> None:
    if draft.pairing.drafter.tie.value and "lm_head.weight" in draft.pairing.parameters:
        draft.set(_at(draft, "tie_word_embeddings"), False, "the drafter has a head of its own")


def head_dim(draft: Draft) -> None:
    """Guessed as hidden / heads where it is not stated; q and o state it."""
    drafter, parameters = draft.pairing.drafter, draft.pairing.parameters
    q, o = (parameters.get(f"midlayer.self_attn.{name}_proj.weight") for name in "qo")
    heads = drafter.heads.value
    if drafter.head_dim.declared or q is None or o is None or not heads or q.shape[0] % heads:
        return
    stated = q.shape[0] // heads
    if stated != drafter.head_dim.value and o.shape[-1] == q.shape[0]:
        draft.set(_at(draft, "head_dim"), stated, "rows of q_proj by heads")


def dtype(draft: Draft) -> None:
    stored = {tensor.dtype for name, tensor in draft.pairing.parameters.items() if name not in ("d2t", "t2d")}
    declared = draft.pairing.drafter.dtype
    if len(stored) == 1 and stored <= STORED_DTYPES.keys() and declared.declared:
        name = STORED_DTYPES[stored.pop()]
        if declared.value != name:
            draft.set(_at(draft, declared.where.rpartition(".")[2]), name, "the dtype of the files")


def offsets(draft: Draft) -> None:
    """d2t written as target ids; t2d marks exactly those, which proves it."""
    values, marked, tensor = draft.pairing.d2t, draft.pairing.t2d, draft.pairing.parameters.get("d2t")
    if values is None or tensor is None or not values.any():
        return
    ids, places = values.astype(np.int64), np.arange(len(values))
    if marked is None:
        return  # the checks name it if it is wrong; nothing proves what is right
    wanted = np.flatnonzero(marked)
    if np.array_equal(np.sort(ids), wanted) and not np.array_equal(np.sort(ids + places), wanted):
        offset = (ids - places).astype("<i8")
        name = next(name for name, entry in draft.tensors.items() if entry.source == tensor)
        draft.tensors[name] = Entry(tensor._replace(dtype="I64"), offset.tobytes())
        draft.changes.append(Change(name, "target ids", "offsets", "t2d marks exactly these ids"))


def needless_map(draft: Draft) -> None:
    """A map of the whole vocabulary onto itself, where the engine has no place for one."""
    values = draft.pairing.d2t
    if draft.pairing.reduced or values is None or values.any():
        return
    if draft.pairing.engine.ask("d2t_of_full", "harmless").value != "refused":
        return
    for name, (_, parameter) in draft.pairing.resolution.tensors.items():
        if parameter in ("d2t", "t2d") and name in draft.tensors:
            del draft.tensors[name]
            draft.changes.append(Change(name, "zeros", None, "draft ids are target ids, and the engine refuses a map"))


def borrowed(draft: Draft) -> None:
    """Head or embedding that would be left at random, from the target when the shapes allow."""
    pairing, hidden = draft.pairing, draft.pairing.drafter.hidden_size.value
    rows = {"lm_head.weight": pairing.drafter.vocabulary, "embed_tokens.weight": pairing.drafter.vocab_size.value}
    for parameter, count in rows.items():
        if pairing.resolution.parameters.get(parameter) is not Origin.RANDOM:
            continue
        tensor = _target_tensor(draft, parameter)
        if tensor is None or tensor.shape != (count, hidden) or tensor.dtype not in FLOATS:
            continue
        draft.tensors[parameter] = Entry(tensor)
        draft.changes.append(Change(parameter, None, tensor.name, "copied from the target; nothing else provides it"))


def flags(draft: Draft) -> None:
    """A flag that is set where the engine does not look for it."""
    pairing = draft.pairing
    family = family_by_tensors(pairing.drafter)
    for path, value in pairing.drafter.flags.items():
        flag = path.rpartition(".")[2]
        paths = pairing.engine.ask("flag", [], flag=flag, drafter=family).value or []
        if paths and value and pairing.drafter.flag(paths) is None:
            draft.set(paths[0], value, f"{path} is not where {pairing.engine.title} reads it")


def traps(draft: Draft) -> None:
    """Values that the engine stumbles over and that mean the same when absent."""
    for field, shown in draft.pairing.engine.asked("trap", "field", "is"):
        value = {"null": None}.get(shown, shown)
        here = field in draft.config and (draft.config[field] is value or str(draft.config[field]) == shown)
        if here and draft.pairing.engine.ask("trap", "", **{"field": field, "is": shown}).value:
            draft.remove(field, f"{shown} here is what {draft.pairing.engine.title} stumbles over")


def layer_ids(draft: Draft, meant: Indexes | None) -> None:
    """`meant`: the capture indexes of the training run."""
    pairing, layers = draft.pairing, draft.pairing.target.layers.value
    if layers is None or not pairing.drafter.aux:
        return
    meant = meant or _meant(draft, layers)
    if pairing.resolution.captured == meant and not pairing.resolution.ignored_ids:
        return
    sources = pairing.resolution.ids_read
    if not sources:
        raise NotMechanical(f"where {pairing.engine.title} reads layer ids is not known")
    path, rule = sources[0]
    if rule not in RULES:
        raise NotMechanical(f"what {pairing.engine.title} makes of layer ids for this target is not known")
    written = ids_for(meant, layers, rule)
    if written is None:
        raise NotMechanical(f"no list of ids makes {pairing.engine.title} capture {list(meant)}")
    for other in pairing.drafter.ids:
        if other != path:
            draft.remove(other, f"{pairing.engine.title} reads {path}; two lists are one too many")
    draft.set(path, list(written), f"captures {list(meant)}")


def _meant(draft: Draft, layers: int) -> Indexes:
    """What the config means by itself: no list is the default of all engines; the top level counts capture indexes. A
    nested list counts outputs for most engines and targets, and not for all.
    """
    ids = draft.pairing.drafter.ids
    readings: set[Indexes] = set()
    for path, listed in ids.items():
        if path == IDS:
            readings.add(listed)
        elif path == NESTED_IDS:
            readings |= set(_nested_readings(listed, layers))
        else:
            raise NotMechanical(f"{path} has no one meaning; say --trained-on or --from")
    classic = default_indexes(layers)
    if not ids or classic in readings:
        return classic
    if len(readings) == 1:
        return readings.pop()
    shown = " or ".join(str(list(reading)) for reading in sorted(readings))
    raise NotMechanical(
        f"the layer ids can mean the capture indexes {shown}: say --trained-on with those of the training run, or "
        "--from with the engine that the drafter works on now"
    )


def _nested_readings(ids: Indexes, layers: int) -> Iterator[Indexes]:
    """[1, ...] counts outputs under every rule there is; any other list may be read as it stands."""
    yield RULES["plus_one"](ids, layers)
    if ids and ids[0] != 1:
        yield ids


def _at(draft: Draft, name: str) -> str:
    """Where a field of the drafter's layer belongs."""
    return f"transformer_layer_config.{name}" if "transformer_layer_config" in draft.config else name


def _target_tensor(draft: Draft, parameter: str) -> TensorInfo | None:
    tensors = draft.pairing.target.checkpoint.tensors
    tied = draft.pairing.target.tie.value and parameter == "lm_head.weight"
    ending = "embed_tokens.weight" if tied else parameter
    found = [name for name in tensors if name == ending or name.endswith(f".{ending}")]
    return tensors[found[0]] if len(found) == 1 else None


FIXES: tuple[Callable[[Draft], None], ...] = (
    flat_config,
    architecture,
    tensor_names,
    layer_count,
    draft_vocabulary,
    tie,
    head_dim,
    dtype,
    offsets,
    needless_map,
    flags,
    traps,
    borrowed,
)
