"""What the builtin engine does with a pair: which parameter comes from where, and what is captured.

Validation and the engine's loader use the same functions, so that they can not disagree about a name.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import TYPE_CHECKING

from tandem_worker.checkpoint import Checkpoint, Drafter, Target, TensorInfo

if TYPE_CHECKING:
    from tandem_worker.contract import Resolution

VOCABULARY = ("d2t", "t2d")
PARAMETERS = (
    "fc.weight",
    *(f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *(f"midlayer.{name}.weight" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")),
    "norm.weight",
    "lm_head.weight",
    "embed_tokens.weight",
    *VOCABULARY,
)
TARGET_EMBEDDING = "model.embed_tokens.weight"
TARGET_HEAD = "lm_head.weight"


def parameter_name(key: str) -> str | None:
    """The drafter parameter that a tensor of the drafter's files fills; None: the engine drops it.

    Accepted spellings: an optional leading `model.`, and `layers.0.` for `midlayer.`.
    """
    name = re.sub(r"^layers\.0\.", "midlayer.", key.removeprefix("model."))
    return name if name in PARAMETERS else None


def drafter_parameters(checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    """Parameter name -> tensor of the drafter's files. Of two tensors for one parameter the first by name counts."""
    found: dict[str, TensorInfo] = {}
    for key in sorted(checkpoint.tensors):
        name = parameter_name(key)
        if name is not None:
            found.setdefault(name, checkpoint.tensors[key])
    return found


def shared_parameters(target: Target, drafter: Drafter, target_names: Container[str]) -> dict[str, str]:
    """Drafter parameter -> the target's tensor that stands in when the drafter's files have none.

    Both need equal widths. The embedding also needs the target's vocabulary, the head a draft vocabulary that is the
    whole of it. A tied target's head is its embedding.
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

    loaded = drafter_parameters(drafter_checkpoint).keys()
    shareable = shared_parameters(target, drafter, target_checkpoint.tensors).keys()
    optional = VOCABULARY if drafter.draft_vocab_size == drafter.vocab_size else ()
    absent = [name for name in PARAMETERS if name not in loaded and name not in optional]
    return Resolution(
        capture_indexes=drafter.capture_indexes,
        fc_input_width=len(drafter.capture_indexes) * drafter.target_hidden_size,
        fc_applied="fc.weight" in loaded,
        norm_before_residual=drafter.norm_before_residual,
        loaded=tuple(sorted(loaded)),
        shared=tuple(sorted(name for name in absent if name in shareable)),
        missing=tuple(sorted(name for name in absent if name not in shareable)),
        dropped=tuple(sorted(key for key in drafter_checkpoint.tensors if parameter_name(key) is None)),
    )
