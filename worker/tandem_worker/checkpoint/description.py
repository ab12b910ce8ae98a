"""What the builtin models compute, as plain frozen data: a narrow view, made by `describe`, used by models, engine and
probe. What any checkpoint of any dialect declares is in `declared`.

H hidden size, V target vocabulary, Vd draft vocabulary, n decoder layers of the target.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeScaling:
    """Rotary frequencies for texts longer than those of pretraining. Absent fields have transformers' defaults."""

    kind: str  # linear, llama3, yarn
    factor: float
    original_positions: int
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    attention_factor: float | None = None  # yarn
    truncate: bool = True  # yarn


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): sizes of the compressed queries, keys and values."""

    q_lora: int | None  # None: queries are not compressed
    kv_lora: int
    nope_head: int  # of a query or key head, the part that is not rotated
    rope_head: int  # and the part that is; the keys' is shared by all heads
    value_head: int
    interleaved: bool  # whether the rotated pairs are neighbours (x0, x1), or halves (x0, xD/2)


@dataclass(frozen=True)
class Moe:
    """A mixture of experts in place of the MLP."""

    experts: int
    per_token: int
    intermediate_size: int  # of one expert
    normalise: bool  # whether the chosen experts' weights sum to one
    dense_layers: frozenset[int]  # with a plain MLP
    shared: int = 0  # experts that every token visits
    groups: int = 1  # of experts, of which only the best `best_groups` are chosen from
    best_groups: int = 1
    scale: float = 1.0  # of the routed experts' sum


@dataclass(frozen=True)
class GptOss:
    """What gpt-oss alone has."""

    window: int  # positions that a row of a windowed layer sees, itself included
    windowed_layers: frozenset[int]
    swiglu_limit: float
    swiglu_alpha: float


@dataclass(frozen=True)
class Target:
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
    family: str = "llama"  # whose module computes it: a key of `models.families.FAMILIES`
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    out_bias: bool = False  # of the attention's output
    mla: Mla | None = None
    moe: Moe | None = None
    gpt_oss: GptOss | None = None


@dataclass(frozen=True)
class Drafter:
    """An EAGLE-3 head, as the builtin engine will read it."""

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
    declared_at: str  # the field that names the layer ids, or "default"
    capture_indexes: tuple[int, ...]  # as the builtin engine reads them, order kept
    layers: int = 1
    norm_before_fc: bool = False  # one norm of all captured states side by side
    fc_norm: bool = False  # one norm for each captured state (EAGLE-3.1)
    norm_output: bool = False  # the next step is fed the hidden state behind the final norm (EAGLE-3.1)
    fc_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # of queries and keys, as in Qwen3
    rope_scaling: RopeScaling | None = None
    mla: Mla | None = None
