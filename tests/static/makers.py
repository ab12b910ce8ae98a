"""Public drafters, and the changes that reports tell of."""

from __future__ import annotations

import struct
from typing import Any

from static.build import Change, Model, drafter, eagle3_8b, map_vocabulary, marks, offsets, spread

IDS = "eagle_aux_hidden_state_layer_ids"
SGLANG_CLASS = "LlamaForCausalLMEagle3"


def nothing(t: Model, d: Model) -> None:
    pass


def both(*changes: Change) -> Change:
    def change(t: Model, d: Model) -> None:
        for each in changes:
            each(t, d)

    return change


def config(**fields: object) -> Change:
    return lambda t, d: d.set(**fields)


def put(name: str, shape: list[int], dtype: str = "F16") -> Change:
    return lambda t, d: d.put(name, shape, dtype)


def drop(*names: str) -> Change:
    return lambda t, d: d.drop(*names)


def ids(values: object) -> Change:
    return config(**{IDS: values})


def nested(**fields: object) -> Change:
    return config(eagle_config=fields)


def named() -> Model:
    """The baseline re-exported under the class that SGLang and vLLM both know."""
    return eagle3_8b(architectures=[SGLANG_CLASS], max_position_embeddings=131072)


def llama70_drafter(**fields: Any) -> Model:
    return drafter(
        **{
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 6144,
            "target_hidden_size": 8192,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "intermediate_size": 16384,
            "vocab_size": 128256,
            "draft_vocab_size": 32000,
            "max_position_embeddings": 131072,
            "torch_dtype": "bfloat16",
            **fields,
        }
    )


def wide_drafter() -> Model:
    model = llama70_drafter()
    model.put("embed_tokens.weight", [128256, 6144])
    return model


def gpt_oss_v3(values: list[int]) -> Model:
    model = drafter(
        architectures=[SGLANG_CLASS],
        model_type="llama",
        hidden_size=2880,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=17280,
        vocab_size=201088,
        draft_vocab_size=32000,
        max_position_embeddings=131072,
        rope_theta=150000,
        torch_dtype="bfloat16",
        norm_before_fc=True,
        eagle_config={IDS: values},
    )
    model.put("input_norm.weight", [8640])
    return model


def kimi_drafter(**fields: Any) -> Model:
    model = drafter(
        **{
            "architectures": [SGLANG_CLASS],
            "model_type": "llama",
            "hidden_size": 7168,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "head_dim": 128,
            "intermediate_size": 12288,
            "vocab_size": 163840,
            "draft_vocab_size": 163840,
            "rope_theta": 50000.0,
            "max_position_embeddings": 262144,
            "dtype": "bfloat16",
            "tie_word_embeddings": False,
            **fields,
        }
    )
    model.put("embed_tokens.weight", [163840, 7168])
    return model


def mla_drafter(**fields: Any) -> Model:
    config = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": 7168,
        "num_hidden_layers": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "intermediate_size": 18432,
        "vocab_size": 163840,
        "draft_vocab_size": 163840,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "rope_theta": 50000.0,
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        **fields,
    }
    model = Model(config)
    shapes = {
        "fc": [7168, 21504],
        "norm": [7168],
        "lm_head": [163840, 7168],
        "layers.0.self_attn.q_a_proj": [1536, 14336],
        "layers.0.self_attn.q_a_layernorm": [1536],
        "layers.0.self_attn.q_b_proj": [12288, 1536],
        "layers.0.self_attn.kv_a_proj_with_mqa": [576, 14336],
        "layers.0.self_attn.kv_a_layernorm": [512],
        "layers.0.self_attn.kv_b_proj": [16384, 512],
        "layers.0.self_attn.o_proj": [7168, 8192],
        "layers.0.mlp.gate_proj": [18432, 7168],
        "layers.0.mlp.up_proj": [18432, 7168],
        "layers.0.mlp.down_proj": [7168, 18432],
        "layers.0.input_layernorm": [7168],
        "layers.0.hidden_norm": [7168],
        "layers.0.post_attention_layernorm": [7168],
    }
    for name, shape in shapes.items():
        model.put(f"{name}.weight", shape)
    return model


def qwen3_drafter(hidden: int, heads: int, wide: int, **fields: Any) -> Model:
    return drafter(
        **{
            "architectures": [SGLANG_CLASS],
            "model_type": "llama",
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": wide,
            "vocab_size": 151936,
            "draft_vocab_size": 32000,
            "rope_theta": 1000000.0,
            "max_position_embeddings": 40960,
            "torch_dtype": "bfloat16",
            **fields,
        }
    )


def speculators(model_type: str, normed: bool, **fields: Any) -> Model:
    """RedHatAI/Qwen3-8B-speculator.eagle3."""
    layer = {
        "model_type": model_type,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 1,
        "vocab_size": 151936,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 40960,
    }
    model = drafter(
        "layers.0.",
        **{
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": 32000,
            "norm_before_residual": True,
            "target_hidden_size": None,
            "transformer_layer_config": layer,
            **fields,
        },
    )
    model.put("embed_tokens.weight", [151936, 4096])
    if normed:
        for name in ("q", "k"):
            model.put(f"layers.0.self_attn.{name}_norm.weight", [128])
    return model


def eagle1(t: Model, d: Model) -> None:
    d.drop("draft_vocab_size", "d2t", "t2d", "lm_head.weight", "midlayer.hidden_norm.weight")
    d.put("fc.weight", [4096, 8192], "F16")
    d.put("midlayer.self_attn.q_proj.weight", [4096, 4096], "F16")


def full_vocabulary(t: Model, d: Model) -> None:
    d.set(draft_vocab_size=128256)
    d.drop("d2t", "t2d")
    d.put("lm_head.weight", [128256, 4096], "F16")


def small_vocabulary(t: Model, d: Model) -> None:
    """Of 32000, all of them drafted, and only 1746 marked."""
    for model in (t, d):
        model.set(vocab_size=32000)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        t.put(name, [32000, 4096])
    d.put("d2t", [32000], "I64", bytes(8 * 32000))
    d.put("t2d", [32000], "BOOL", marks(list(range(1746)), 32000))


def offset_at(entry: int, value: int) -> Change:
    def change(t: Model, d: Model) -> None:
        chosen = spread(32000, 128256)
        chosen[entry] = entry + value if entry >= 0 else 32000 + entry + value
        d.put("d2t", [32000], "I64", offsets(chosen))

    return change


def d2t_as_ids(t: Model, d: Model) -> None:
    d.put("d2t", [32000], "I64", struct.pack("<32000q", *spread(32000, 128256)))


def zero_maps(t: Model, d: Model) -> None:
    d.put("d2t", [32000], "I64", bytes(8 * 32000))
    d.put("t2d", [128256], "BOOL", b"\1" * 128256)


def as_i32(t: Model, d: Model) -> None:
    chosen = spread(32000, 128256)
    d.put("d2t", [32000], "I32", struct.pack("<32000i", *(c - i for i, c in enumerate(chosen))))


def marks_as(dtype: str, width: int) -> Change:
    def change(t: Model, d: Model) -> None:
        ones = marks(spread(32000, 128256), 128256)
        data = b"".join(bytes([one]) + bytes(width - 1) for one in ones)
        d.put("t2d", [128256], dtype, data)

    return change


def tokenizer_sized(t: Model, d: Model) -> None:
    d.set(vocab_size=151669)
    map_vocabulary(d, 32000, 151669)
