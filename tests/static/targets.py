"""Configs of public targets, by the fields that decide whether a drafter fits (their own config.json files)."""

from __future__ import annotations

from typing import Any

from static.build import Model, target
from static.build import llama_8b as llama_8b

YARN_32 = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


def _flat(
    architecture: str,
    model_type: str,
    hidden: int,
    layers: int,
    heads: int,
    kv: int,
    wide: int,
    vocabulary: int,
    **more: Any,
) -> Model:
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": wide,
        "vocab_size": vocabulary,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    return target(**(config | more))


def llama_70b() -> Model:
    return _flat(
        "LlamaForCausalLM",
        "llama",
        8192,
        80,
        64,
        8,
        28672,
        128256,
        rope_theta=500000.0,
        max_position_embeddings=131072,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    )


def qwen3(hidden: int, layers: int, heads: int, kv: int, wide: int, **more: Any) -> Model:
    fields = {"head_dim": 128, "rope_theta": 1000000, "rope_scaling": None, "max_position_embeddings": 40960}
    return _flat("Qwen3ForCausalLM", "qwen3", hidden, layers, heads, kv, wide, 151936, **(fields | more))


def qwen3_4b() -> Model:
    return qwen3(2560, 36, 32, 8, 9728, tie_word_embeddings=True)


def qwen3_8b() -> Model:
    return qwen3(4096, 36, 32, 8, 12288)


def qwen3_8b_fp8() -> Model:
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
    return qwen3(4096, 36, 32, 8, 12288, quantization_config=fp8)


def qwen3_14b() -> Model:
    return qwen3(5120, 40, 40, 8, 17408)


def qwen3_32b() -> Model:
    return qwen3(5120, 64, 64, 8, 25600)


def qwen3_moe(hidden: int, layers: int, heads: int, wide: int, **more: Any) -> Model:
    fields = {"head_dim": 128, "rope_theta": 1000000, "max_position_embeddings": 40960, "num_experts": 128}
    return _flat("Qwen3MoeForCausalLM", "qwen3_moe", hidden, layers, heads, 4, wide, 151936, **(fields | more))


def qwen3_30b() -> Model:
    return qwen3_moe(2048, 48, 32, 6144)


def qwen3_235b() -> Model:
    return qwen3_moe(4096, 94, 64, 12288)


def qwen3_coder_480b() -> Model:
    return _flat(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        6144,
        62,
        96,
        8,
        8192,
        151936,
        head_dim=128,
        rope_theta=10000000,
        max_position_embeddings=262144,
    )


def qwen3_next() -> Model:
    return _flat(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        2048,
        48,
        16,
        2,
        5120,
        151936,
        head_dim=256,
        rope_theta=10000000,
        max_position_embeddings=262144,
        full_attention_interval=4,
    )


def gpt_oss(layers: int, experts: int) -> Model:
    return _flat(
        "GptOssForCausalLM",
        "gpt_oss",
        2880,
        layers,
        64,
        8,
        2880,
        201088,
        head_dim=64,
        rope_theta=150000,
        rope_scaling=YARN_32,
        max_position_embeddings=131072,
        num_local_experts=experts,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    )


def gpt_oss_20b() -> Model:
    return gpt_oss(24, 32)


def gpt_oss_120b() -> Model:
    return gpt_oss(36, 128)


def deepseek(
    model_type: str, layers: int, heads: int, vocabulary: int, theta: float, factor: float, positions: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": model_type,
        "hidden_size": 7168,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": 18432,
        "vocab_size": vocabulary,
        "rope_theta": theta,
        "rope_scaling": {"type": "yarn", "factor": factor, "original_max_position_embeddings": 4096},
        "max_position_embeddings": positions,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        **more,
    }


def deepseek_v3() -> Model:
    return target(**deepseek("deepseek_v3", 61, 128, 129280, 10000, 40, 163840, num_nextn_predict_layers=1))


def kimi_k2() -> Model:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    return target(**deepseek("kimi_k2", 61, 64, 163840, 50000.0, 32.0, 131072, quantization_config=fp8))


def kimi_k25() -> Model:
    text = deepseek("kimi_k2", 61, 64, 163840, 50000.0, 64.0, 262144)
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return target(
        architectures=["KimiK25ForConditionalGeneration"],
        model_type="kimi_k25",
        pad_token_id=163839,
        text_config=text | {"quantization_config": packed},
        vision_config={"hidden_size": 1152, "vocab_size": 32000},
    )


def llama4(experts: int, positions: int, **more: Any) -> Model:
    text = {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "vocab_size": 202048,
        "rope_theta": 500000.0,
        "max_position_embeddings": positions,
        "num_local_experts": experts,
        "torch_dtype": "bfloat16",
    }
    return target(
        architectures=["Llama4ForConditionalGeneration"],
        model_type="llama4",
        torch_dtype="bfloat16",
        text_config=text,
        vision_config={"hidden_size": 1408, "num_hidden_layers": 34},
        **more,
    )


def llama4_scout() -> Model:
    return llama4(16, 10485760)


def llama4_maverick() -> Model:
    return llama4(128, 1048576, quantization_config={"quant_method": "compressed-tensors"})


def gemma3_27b() -> Model:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "intermediate_size": 21504,
        "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }
    return target(
        architectures=["Gemma3ForConditionalGeneration"],
        model_type="gemma3",
        torch_dtype="bfloat16",
        text_config=text,
        vision_config={"hidden_size": 1152, "num_hidden_layers": 27},
    )


def gemma3_1b() -> Model:
    return _flat(
        "Gemma3ForCausalLM",
        "gemma3_text",
        1152,
        26,
        4,
        1,
        6912,
        262144,
        head_dim=256,
        rope_theta=1000000,
        rope_local_base_freq=10000,
        rope_scaling=None,
        max_position_embeddings=32768,
        sliding_window=512,
    )


def gemma4_31b() -> Model:
    text = {
        "model_type": "gemma4_text",
        "hidden_size": 5376,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "intermediate_size": 21504,
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
    }
    return target(
        architectures=["Gemma4ForConditionalGeneration"],
        model_type="gemma4",
        dtype="bfloat16",
        text_config=text,
    )


def mistral_7b() -> Model:
    return _flat(
        "MistralForCausalLM",
        "mistral",
        4096,
        32,
        32,
        8,
        14336,
        32000,
        rope_theta=10000.0,
        sliding_window=4096,
        max_position_embeddings=32768,
    )


def qwen25(hidden: int, layers: int, heads: int, kv: int, wide: int, vocabulary: int, **more: Any) -> Model:
    return _flat(
        "Qwen2ForCausalLM",
        "qwen2",
        hidden,
        layers,
        heads,
        kv,
        wide,
        vocabulary,
        **({"rope_theta": 1000000.0, "max_position_embeddings": 32768} | more),
    )


def qwen25_05b() -> Model:
    return qwen25(896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True)


def qwen25_7b() -> Model:
    return qwen25(3584, 28, 28, 4, 18944, 152064, max_position_embeddings=131072)


def qwq_32b() -> Model:
    return qwen25(5120, 64, 40, 8, 27648, 152064, max_position_embeddings=40960)


def qwen25_vl(hidden: int, layers: int, heads: int, kv: int, wide: int) -> Model:
    return _flat(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        hidden,
        layers,
        heads,
        kv,
        wide,
        152064,
        rope_theta=1000000.0,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        max_position_embeddings=128000,
    )


def qwen25_vl_7b() -> Model:
    return qwen25_vl(3584, 28, 28, 4, 18944)


def qwen25_vl_32b() -> Model:
    return qwen25_vl(5120, 64, 40, 8, 27648)


def qwen35(hidden: int, layers: int, heads: int, kv: int, wide: int, architecture: str) -> Model:
    text = {
        "model_type": "qwen3_5_text",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": 256,
        "intermediate_size": wide,
        "vocab_size": 248320,
        "full_attention_interval": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
        },
    }
    return target(architectures=[architecture], model_type="qwen3_5", tie_word_embeddings=False, text_config=text)


def qwen35_9b() -> Model:
    return qwen35(4096, 32, 16, 4, 12288, "Qwen3_5ForConditionalGeneration")


def qwen35_35b() -> Model:
    return qwen35(2048, 40, 16, 2, 512, "Qwen3_5MoeForConditionalGeneration")


def deepseek_v2_lite() -> Model:
    return _flat(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        2048,
        27,
        16,
        16,
        10944,
        102400,
        rope_theta=10000,
        kv_lora_rank=512,
        rope_scaling={"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
        max_position_embeddings=163840,
    )


def ling_flash() -> Model:
    return _flat(
        "BailingMoeV2ForCausalLM",
        "bailing_moe",
        4096,
        32,
        32,
        4,
        9216,
        157184,
        head_dim=128,
        rope_theta=600000,
        max_position_embeddings=32768,
    )


def longcat_flash() -> Model:
    return _flat(
        "LongcatFlashForCausalLM",
        "longcat_flash",
        6144,
        28,
        64,
        64,
        12288,
        131072,
        rope_theta=10000000.0,
        max_position_embeddings=131072,
    )


def phi4() -> Model:
    return _flat(
        "Phi3ForCausalLM", "phi3", 5120, 40, 40, 10, 17920, 100352, rope_theta=250000, max_position_embeddings=16384
    )
