"""What the builtin engine does with a pair: which parameter comes from where, and what is captured.

Validation and the engine's loader use the same functions, so that they can not disagree about a name.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from tandem_worker.checkpoint import Checkpoint, Drafter, Target, TensorInfo
from tandem_worker.checks.names import Spelling, parameter_of

if TYPE_CHECKING:
    from tandem_worker.contract import Resolution

VOCABULARY = ("d2t", "t2d")
TARGET_EMBEDDING = "model.embed_tokens.weight"
TARGET_HEAD = "lm_head.weight"


SPELLING = Spelling(prefixes=("", "model."), layer0=("midlayer.", "layers.0."), silent=(), unmatched="dropped")


def parameters_of(drafter: Drafter) -> tuple[str, ...]:
    """Every parameter that the drafter's module has (`models.eagle3`)."""
    layers = ["midlayer", *(f"layers.{i}" for i in range(1, drafter.layers))]
    fusion = ["fc.weight"] + ["fc.bias"] * drafter.fc_bias + ["input_norm.weight"] * drafter.norm_before_fc
    fusion += [f"fc_norm.{i}.weight" for i in range(len(drafter.capture_indexes)) if drafter.fc_norm]
    within = [f"self_attn.{name}" for name in _attention(drafter)]
    within += [f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    within += [f"{name}.weight" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")]
    inner = [f"{layer}.{name}" for layer in layers for name in within]
    return (*fusion, *inner, "norm.weight", "lm_head.weight", "embed_tokens.weight", *VOCABULARY)


def _attention(drafter: Drafter) -> list[str]:
    if drafter.mla:
        compressed = ["q_a_proj", "q_a_layernorm", "q_b_proj"] if drafter.mla.q_lora else ["q_proj"]
        names = [*compressed, "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"]
        return [f"{name}.weight" for name in names]
    names = [f"{name}_proj.weight" for name in "qkvo"] + [f"{name}_proj.bias" for name in "qkv" if drafter.qkv_bias]
    names += ["o_proj.bias"] * drafter.out_bias
    return names + [f"{name}_norm.weight" for name in "qk" if drafter.qk_norm]


def optional_parameters(drafter: Drafter) -> set[str]:
    """What the files may lack: the map of a whole vocabulary, a norm that this engine does not use."""
    unused = {f"layers.{i}.hidden_norm.weight" for i in range(1, drafter.layers)}
    return unused | (set(VOCABULARY) if drafter.draft_vocab_size == drafter.vocab_size else set())


def parameter_name(key: str) -> str | None:
    """The parameter that a tensor of a drafter's files fills, if its drafter has it; None: no drafter has such a one.

    Accepted spellings: an optional leading `model.`, `layers.0.` for `midlayer.`, `aux_norm_low` for `fc_norm.0`.
    """
    return parameter_of(key, SPELLING)


def drafter_parameters(checkpoint: Checkpoint, drafter: Drafter) -> dict[str, TensorInfo]:
    """Parameter name -> tensor of the drafter's files. Of two tensors for one parameter the first by name counts."""
    found: dict[str, TensorInfo] = {}
    wanted = set(parameters_of(drafter))
    for key in sorted(checkpoint.tensors):
        name = parameter_name(key)
        if name in wanted and name is not None:
            found.setdefault(name, checkpoint.tensors[key])
    return found


def dropped_tensors(checkpoint: Checkpoint, drafter: Drafter) -> tuple[str, ...]:
    """Tensors of the drafter's files that no parameter takes, sorted."""
    wanted = set(parameters_of(drafter))
    return tuple(sorted(key for key in checkpoint.tensors if parameter_name(key) not in wanted))


def shared_parameters(target: Target, drafter: Drafter, target_names: Container[str]) -> dict[str, str]:
    """Drafter parameter -> the target's tensor that stands in when the drafter's files have none.

    Both need equal widths, the head also a draft vocabulary that is the whole of the target's. The embedding is lent
    whole, whatever the drafter's vocab_size. A tied target's head is its embedding.
    """
    if drafter.hidden_size != target.hidden_size:
        return {}
    head = TARGET_EMBEDDING if target.tie_word_embeddings else TARGET_HEAD
    candidates = {"embed_tokens.weight": TARGET_EMBEDDING}
    if drafter.draft_vocab_size == target.vocab_size:
        candidates["lm_head.weight"] = head
    return {parameter: key for parameter, key in candidates.items() if key in target_names}


def resolve(
    target: Target, drafter: Drafter, target_checkpoint: Checkpoint, drafter_checkpoint: Checkpoint
) -> Resolution:
    """What the builtin engine will do with the pair.

    d2t and t2d are needed unless the drafter drafts its whole vocabulary; then draft ids are target ids.
    """
    from tandem_worker.contract import Resolution  # brings pydantic, which static checks start without

    loaded = drafter_parameters(drafter_checkpoint, drafter).keys()
    shareable = shared_parameters(target, drafter, target_checkpoint.tensors).keys()
    optional = optional_parameters(drafter)
    absent = [name for name in parameters_of(drafter) if name not in loaded and name not in optional]
    return Resolution(
        capture_indexes=drafter.capture_indexes,
        fc_input_width=len(drafter.capture_indexes) * drafter.target_hidden_size,
        fc_applied="fc.weight" in loaded,
        norm_before_residual=drafter.norm_before_residual,
        loaded=tuple(sorted(loaded)),
        shared=tuple(sorted(name for name in absent if name in shareable)),
        missing=tuple(sorted(name for name in absent if name not in shareable)),
        dropped=dropped_tensors(drafter_checkpoint, drafter),
    )
