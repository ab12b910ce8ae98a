"""What transformers' config classes fill in for a field that config.json leaves out. A default is never compared as if
somebody had declared it; it is told as what it is. A family without a row for a field has no default that matters here:
as many key-value heads as heads, head_dim as hidden_size / num_attention_heads, untied.
"""

from __future__ import annotations

from collections.abc import Mapping

GEMMA3: Mapping[str, float] = {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1_000_000.0,
    "head_dim": 256,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
GEMMA4: Mapping[str, float] = {"rope_theta": 1_000_000.0, "num_key_value_heads": 4, "tie_word_embeddings": True}
LLAMA4: Mapping[str, float] = {"rope_theta": 500_000.0, "num_key_value_heads": 8, "head_dim": 128}
MLA: Mapping[str, float] = {"rope_theta": 10000.0, "num_key_value_heads": 128}
QWEN3_5: Mapping[str, float] = {"rope_theta": 10000.0, "num_key_value_heads": 4, "head_dim": 256}
CLASS_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "deepseek_v2": {"rope_theta": 10000.0},
    "deepseek_v3": MLA,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "gemma4": GEMMA4,
    "gemma4_text": GEMMA4,
    "gpt_oss": {"rope_theta": 150_000.0, "num_key_value_heads": 8, "head_dim": 64},
    "kimi_k2": MLA,  # engines and transformers read it as DeepSeek-V3
    "llama": {"rope_theta": 10000.0},
    "llama4": LLAMA4,
    "llama4_text": LLAMA4,
    "longcat_flash": {"rope_theta": 10_000_000.0},
    "mistral": {"rope_theta": 10000.0, "num_key_value_heads": 8},
    "phi3": {"rope_theta": 10000.0},
    "qwen2": {"rope_theta": 10000.0, "num_key_value_heads": 32},
    "qwen2_5_vl": {"rope_theta": 1_000_000.0, "num_key_value_heads": 8},
    "qwen3": {"rope_theta": 10000.0, "num_key_value_heads": 32, "head_dim": 128},
    "qwen3_5": QWEN3_5,
    "qwen3_5_text": QWEN3_5,
    "qwen3_moe": {"rope_theta": 10000.0, "num_key_value_heads": 4},
    "qwen3_next": {"rope_theta": 10000.0, "num_key_value_heads": 2, "head_dim": 256},
}


def class_default(model_type: str, name: str) -> float | None:
    return CLASS_DEFAULTS.get(model_type, {}).get(name)
