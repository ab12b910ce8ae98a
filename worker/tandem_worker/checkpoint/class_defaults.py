"""What transformers' config classes fill in for a field that config.json leaves out. A default is never compared as if
somebody had declared it; it is told as what it is.
"""

from __future__ import annotations

from collections.abc import Mapping

GEMMA3: Mapping[str, float] = {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1_000_000.0,
    "head_dim": 256,
}
CLASS_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "gemma3_text": GEMMA3,
    "gemma3": GEMMA3,
    "llama": {"rope_theta": 10000.0},
    "mistral": {"rope_theta": 10000.0},
    "qwen2": {"rope_theta": 10000.0},
    "qwen3": {"rope_theta": 10000.0},
    "phi3": {"rope_theta": 10000.0},
}


def class_default(model_type: str, name: str) -> float | None:
    return CLASS_DEFAULTS.get(model_type, {}).get(name)
