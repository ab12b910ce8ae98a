"""What the builtin engine runs, as plain frozen data: a narrow view, made by `describe`, used by models and engine.
What any checkpoint of any dialect declares is in `declared`.

H hidden size, V target vocabulary, Vd draft vocabulary, n decoder layers of the target.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A Llama-style target."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Drafter:
    """A Llama-style EAGLE-3 head with one decoder layer, as the builtin engine will read it."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    norm_before_residual: bool
    dtype: str
    declared_layer_ids: tuple[int, ...] | None  # as written; None: the config has none
    declared_at: str  # the field they stand in, or "default"
    capture_indexes: tuple[int, ...]  # as the builtin engine reads them, order kept
