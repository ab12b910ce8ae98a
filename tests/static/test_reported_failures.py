"""Failures of pairs from public reports, each rebuilt from its report: what must block, what must be warned of, and what
must pass without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from static import targets
from static.build import Change, Model, drafter, eagle3_8b, llama_8b, map_vocabulary, marks, offsets, spread
from static.judging import judged

IDS = "eagle_aux_hidden_state_layer_ids"
SGLANG_CLASS = "LlamaForCausalLMEagle3"
SHORT = "TDM-MAX-POSITION-SHORTER"  # of the published baseline drafter: 2048 positions

FITS, WARNS, FAILS, UNKNOWN = "Fits", "FitsWithWarnings", "DoesNotFit", "CouldNotCheck"
Maker = Callable[[], Model]


class Case(NamedTuple):
    """`codes` are all errors and warnings, but for those of the baseline; `says`: what the findings must contain."""

    report: str
    change: Change
    verdict: str
    codes: set[str]
    says: tuple[str, ...] = ()
    engine: str = "any"
    target: Maker = llama_8b
    drafter: Maker = eagle3_8b
    options: tuple[str, ...] = ()


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


def llama70_drafter(**fields: object) -> Model:
    return drafter(
        **{
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 6144, "target_hidden_size": 8192,
            "num_attention_heads": 48, "num_key_value_heads": 8, "intermediate_size": 16384, "vocab_size": 128256,
            "draft_vocab_size": 32000, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", **fields,
        }
    )  # fmt: skip


def wide_drafter() -> Model:
    model = llama70_drafter()
    model.put("embed_tokens.weight", [128256, 6144])
    return model


def gpt_oss_v3(values: list[int]) -> Model:
    model = drafter(
        architectures=[SGLANG_CLASS], model_type="llama", hidden_size=2880, num_attention_heads=64,
        num_key_value_heads=8, head_dim=64, intermediate_size=17280, vocab_size=201088, draft_vocab_size=32000,
        max_position_embeddings=131072, rope_theta=150000, torch_dtype="bfloat16", norm_before_fc=True,
        eagle_config={IDS: values},
    )  # fmt: skip
    model.put("input_norm.weight", [8640])
    return model


def kimi_drafter(**fields: object) -> Model:
    model = drafter(
        **{
            "architectures": [SGLANG_CLASS], "model_type": "llama", "hidden_size": 7168, "num_attention_heads": 64,
            "num_key_value_heads": 64, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 163840,
            "draft_vocab_size": 163840, "rope_theta": 50000.0, "max_position_embeddings": 262144, "dtype": "bfloat16",
            "tie_word_embeddings": False, **fields,
        }
    )  # fmt: skip
    model.put("embed_tokens.weight", [163840, 7168])
    return model


def mla_drafter(**fields: object) -> Model:
    config = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 7168,
        "num_hidden_layers": 1, "num_attention_heads": 64, "num_key_value_heads": 64, "intermediate_size": 18432,
        "vocab_size": 163840, "draft_vocab_size": 163840, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "rope_theta": 50000.0,
        "max_position_embeddings": 262144, "dtype": "bfloat16", "tie_word_embeddings": False, **fields,
    }  # fmt: skip
    model = Model(config)
    shapes = {
        "fc": [7168, 21504], "norm": [7168], "lm_head": [163840, 7168],
        "layers.0.self_attn.q_a_proj": [1536, 14336], "layers.0.self_attn.q_a_layernorm": [1536],
        "layers.0.self_attn.q_b_proj": [12288, 1536], "layers.0.self_attn.kv_a_proj_with_mqa": [576, 14336],
        "layers.0.self_attn.kv_a_layernorm": [512], "layers.0.self_attn.kv_b_proj": [16384, 512],
        "layers.0.self_attn.o_proj": [7168, 8192], "layers.0.mlp.gate_proj": [18432, 7168],
        "layers.0.mlp.up_proj": [18432, 7168], "layers.0.mlp.down_proj": [7168, 18432],
        "layers.0.input_layernorm": [7168], "layers.0.hidden_norm": [7168],
        "layers.0.post_attention_layernorm": [7168],
    }  # fmt: skip
    for name, shape in shapes.items():
        model.put(f"{name}.weight", shape)
    return model


def qwen3_drafter(hidden: int, heads: int, wide: int, **fields: object) -> Model:
    return drafter(
        **{
            "architectures": [SGLANG_CLASS], "model_type": "llama", "hidden_size": hidden,
            "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": wide,
            "vocab_size": 151936, "draft_vocab_size": 32000, "rope_theta": 1000000.0,
            "max_position_embeddings": 40960, "torch_dtype": "bfloat16", **fields,
        }
    )  # fmt: skip


def speculators(model_type: str, normed: bool, **fields: object) -> Model:
    """RedHatAI/Qwen3-8B-speculator.eagle3."""
    layer = {
        "model_type": model_type, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 1, "vocab_size": 151936,
        "rope_theta": 1000000.0, "max_position_embeddings": 40960,
    }  # fmt: skip
    model = drafter(
        "layers.0.",
        **{
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 32000,
            "norm_before_residual": True, "target_hidden_size": None, "transformer_layer_config": layer, **fields,
        },
    )  # fmt: skip
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
    import struct

    d.put("d2t", [32000], "I64", struct.pack("<32000q", *spread(32000, 128256)))


def zero_maps(t: Model, d: Model) -> None:
    d.put("d2t", [32000], "I64", bytes(8 * 32000))
    d.put("t2d", [128256], "BOOL", b"\1" * 128256)


def as_i32(t: Model, d: Model) -> None:
    import struct

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


CASES = [
    # the width of fc, the number and meaning of layers
    Case("vllm #54526", both(ids([2, 10, 18, 29]), put("fc.weight", [4096, 16384])), WARNS, {"TDM-STATES-TOP-LEVEL"}, ("4 aux layers", "top-level key")),
    Case("vllm #54526", both(ids([2, 10, 18, 29]), put("fc.weight", [4096, 16384])), FAILS, {"TDM-STATES-IGNORED"}, ("16384", "12288"), "vllm@0.33.0", drafter=named),
    Case("vllm #54526 twin", ids([2, 10, 18, 29]), FAILS, {"TDM-LAYER-IDS-COUNT"}, ("4 layers", "3 states"), drafter=named),
    Case("EAGLE #214", eagle1, FAILS, {"TDM-EAGLE1-LAYOUT"}, ("[4096, 8192]", "EAGLE-1")),
    Case("EAGLE #214 twin", both(ids([2, 16, 29]), put("fc.weight", [4096, 8192])), FAILS, {"TDM-EAGLE1-LAYOUT"}, ("2 x hidden",)),
    Case("sglang #32226", nothing, WARNS, {"TDM-LAYER-ID-LAST"}, ("36",), target=targets.gpt_oss_120b, drafter=lambda: gpt_oss_v3([24, 30, 36])),
    Case("sglang #32226", nothing, FITS, set(), (), "sglang@0.5.18", targets.gpt_oss_120b, lambda: gpt_oss_v3([24, 30, 36])),
    Case("sglang #32226", nothing, FAILS, {"TDM-LAYER-IDS-OUT-OF-RANGE", "TDM-FLAG-IGNORED"}, ("37", "norm_before_fc"), "sglang@0.5.16", targets.gpt_oss_120b, lambda: gpt_oss_v3([24, 30, 36])),
    Case("sglang #32226", nothing, FAILS, {"TDM-LAYER-IDS-IGNORED"}, ("[24, 30, 36]", "[2, 18, 33]"), "vllm@0.33.0", targets.gpt_oss_120b, lambda: gpt_oss_v3([24, 30, 36])),
    Case("sglang #32226 id 37", nothing, FAILS, {"TDM-LAYER-IDS-OUT-OF-RANGE"}, ("37", "36"), target=targets.gpt_oss_120b, drafter=lambda: gpt_oss_v3([24, 30, 37])),
    Case("vllm #27688", both(nested(use_aux_hidden_state=False), drop("fc.weight")), FITS, set()),
    Case("vllm #27688", both(nested(use_aux_hidden_state=False), drop("fc.weight", "midlayer.hidden_norm.weight")), FITS, set(), (), "vllm@0.33.0", drafter=named),
    Case("vllm #27688 twin", nested(use_aux_hidden_state=False), WARNS, {"TDM-FC-UNUSED"}, ("fc.weight", "use_aux_hidden_state")),
    Case("vllm #27688 twin", both(nested(use_aux_hidden_state=True), drop("fc.weight")), FAILS, {"TDM-PARAMETERS-MISSING"}, ("fc.weight",)),
    Case("vllm #27688 twin", drop("fc.weight"), FAILS, {"TDM-PARAMETERS-MISSING"}, ("fc.weight",)),
    Case("vllm #18906", nothing, FITS, set(), target=targets.llama_70b, drafter=wide_drafter),
    Case("vllm #18906 twin", nothing, FAILS, {"TDM-PARAMETERS-MISSING"}, ("8192", "6144", "embed_tokens"), target=targets.llama_70b, drafter=llama70_drafter),
    Case("vllm #18906 twin", drop("target_hidden_size"), FAILS, {"TDM-TARGET-HIDDEN-SIZE"}, ("24576", "8192"), target=targets.llama_70b, drafter=wide_drafter),
    Case("sglang #21274", drop("eagle_config"), FITS, set(), ("[2, 30, 58]", "[1, 29, 57]"), "sglang@0.5.23", targets.kimi_k25, kimi_drafter),
    Case("sglang #21274", config(eagle_config=None), FITS, set(), ("[2, 30, 58]",), target=targets.kimi_k25, drafter=kimi_drafter),
    Case("sglang #21274", config(eagle_config={}), FITS, set(), ("[2, 30, 58]",), target=targets.kimi_k25, drafter=kimi_drafter),
    Case("ids: none", ids([]), FAILS, {"TDM-LAYER-IDS-COUNT"}, ("[]",)),
    Case("ids: two", ids([2, 16]), FAILS, {"TDM-LAYER-IDS-COUNT"}, ("[2, 16]",)),
    Case("ids: negative", ids([-1, 16, 29]), FAILS, {"TDM-LAYER-IDS-OUT-OF-RANGE"}, ("-1",)),
    Case("ids: beyond", ids([2, 16, 33]), FAILS, {"TDM-LAYER-IDS-OUT-OF-RANGE"}, ("33", "32 layers")),
    Case("ids: float", ids([2.0, 16, 29]), FAILS, {"TDM-LAYER-IDS-MALFORMED"}, ("2.0",)),
    Case("ids: text", ids(["2", 16, 29]), FAILS, {"TDM-LAYER-IDS-MALFORMED"}),
    Case("ids: bool", nested(**{IDS: [True, 16, 29]}), FAILS, {"TDM-LAYER-IDS-MALFORMED"}, ("True",)),
    Case("ids: twice", ids([2, 2, 29]), WARNS, {"TDM-CAPTURE-INDEXES-REPEATED"}, ("[2, 2, 29]",)),
    Case("ids: twice", ids([2, 2, 29]), FAILS, {"TDM-CAPTURE-INDEXES-REPEATED"}, ("2 states",), "vllm@0.33.0", drafter=named),
    Case("ids: unsorted", ids([29, 2, 16]), WARNS, {"TDM-CAPTURE-INDEXES-UNSORTED"}, ("[29, 2, 16]",)),
    Case("ids: misspelt", config(eagle_aux_hidden_layer_ids=[3, 17, 30]), FAILS, {"TDM-LAYER-IDS-MISSPELT"}, ("eagle_aux_hidden_layer_ids",)),
    # the same list on other engines and versions
    Case("sglang #25454", nested(**{IDS: [2, 30, 58]}), FITS, set(), ("[2, 30, 58]",), "sglang@0.5.13", targets.kimi_k25, kimi_drafter),
    Case("sglang #25454", nested(**{IDS: [2, 30, 58]}), WARNS, {"TDM-LAYER-IDS-CONVENTION"}, ("[3, 31, 59]",), "sglang@0.5.12", targets.kimi_k25, kimi_drafter),
    Case("sglang #25454", nested(**{IDS: [1, 29, 57]}), FITS, set(), (), "sglang@0.5.12", targets.kimi_k25, kimi_drafter),
    Case("trained on", nested(**{IDS: [2, 30, 58]}), FAILS, {"TDM-CAPTURE-INDEX-MISMATCH"}, ("[3, 31, 59]", "[1, 29, 57]"), "sglang@0.5.12", targets.kimi_k25, kimi_drafter, ("--trained-on", "2,30,58")),
    Case("trained on", nested(**{IDS: [2, 30, 58]}), FITS, set(), (), "sglang@0.5.13", targets.kimi_k25, kimi_drafter, ("--trained-on", "2,30,58")),
    Case("vllm #43671", ids([1, 15, 28]), WARNS, {"TDM-LAYER-IDS-CONVENTION"}, ("[1, 15, 28]", "[2, 16, 29]"), "vllm@0.33.0", drafter=named),
    Case("nested ids on vLLM", nested(**{IDS: [3, 10, 20]}), FAILS, {"TDM-LAYER-IDS-IGNORED"}, ("[3, 10, 20]",), "vllm@0.33.0", drafter=named),
    Case("top-level ids on SGLang", ids([3, 10, 20]), FAILS, {"TDM-LAYER-IDS-IGNORED"}, ("[3, 10, 20]",), "sglang@0.5.23", drafter=named),
    # vocabulary, heads, embeddings
    Case("EAGLE #249", drop("draft_vocab_size"), FAILS, {"TDM-DRAFT-VOCABULARY-SIZE"}, ("32000", "128256")),
    Case("EAGLE #249", drop("draft_vocab_size"), FAILS, {"TDM-DRAFT-VOCABULARY-SIZE"}, ("32000", "128256"), "sglang@0.5.23", drafter=named),
    Case("EAGLE #248", small_vocabulary, FAILS, {"TDM-T2D-COUNT"}, ("1746", "32000"), drafter=lambda: eagle3_8b(vocab_size=32000, max_position_embeddings=131072)),
    Case("SpecForge #139", nothing, FAILS, {"TDM-TIED-REDUCED-VOCABULARY"}, ("32000", "151936"), target=targets.qwen3_4b, drafter=lambda: qwen3_drafter(2560, 32, 9728, tie_word_embeddings=True)),
    Case("SpecForge #139 twin", both(full_vocabulary, config(tie_word_embeddings=True), drop("lm_head.weight")), FITS, set()),
    Case("sglang #27829", drop("lm_head.weight"), WARNS, {"TDM-HEAD-BORROWED"}, ("lm_head.weight", "borrowed"), target=targets.kimi_k25, drafter=mla_drafter),
    Case("sglang #27829", drop("lm_head.weight"), FAILS, {"TDM-PARAMETERS-MISSING"}, ("lm_head.weight", "163840"), "sglang@0.5.23", targets.kimi_k25, mla_drafter),
    Case("sglang #27829 twin", drop("lm_head.weight"), FAILS, {"TDM-PARAMETERS-MISSING"}, ("lm_head.weight", "32000")),
    Case("vllm #27737", put("embed_tokens.weight", [128256, 4096]), FITS, set(), ("embed_tokens.weight",)),
    Case("d2t below", offset_at(0, -1), FAILS, {"TDM-D2T-OUT-OF-RANGE"}, ("-1", "128256")),
    Case("d2t beyond", offset_at(-1, 10**6), FAILS, {"TDM-D2T-OUT-OF-RANGE"}, ("1000000", "128256")),
    Case("d2t i32", as_i32, WARNS, {"TDM-D2T-DTYPE"}, ("I32",)),
    Case("d2t matrix", put("d2t", [1, 32000], "I64"), FAILS, {"TDM-D2T-RANK"}, ("[1, 32000]",)),
    Case("d2t longer", put("d2t", [128300], "I64"), FAILS, {"TDM-D2T-LENGTH"}, ("128300", "32000")),
    Case("t2d u8", marks_as("U8", 1), WARNS, {"TDM-T2D-DTYPE"}, ("U8",)),
    Case("t2d i64", marks_as("I64", 8), WARNS, {"TDM-T2D-DTYPE"}, ("I64",)),
    Case("d2t of ids", d2t_as_ids, FAILS, {"TDM-D2T-HOLDS-IDS"}, ("offsets",)),
    Case("d2t never filled", zero_maps, FAILS, {"TDM-D2T-NEVER-FILLED"}, ("zeros", "32000")),
    Case("Automodel #2447", drop("d2t"), FAILS, {"TDM-DRAFT-VOCABULARY-MAP-MISSING"}, ("d2t", "32000")),
    Case("full vocabulary", full_vocabulary, FITS, set()),
    Case("theta in rope_parameters", config(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}), FITS, set()),
    Case("ids null", ids(None), FITS, set()),
    Case("speculators", nothing, FITS, set(), target=targets.qwen3_8b, drafter=lambda: speculators("llama", False)),
    Case("speculators", nothing, FITS, set(), (), "vllm@0.33.0", targets.qwen3_8b, lambda: speculators("llama", False)),
    Case("speculators on SGLang", nothing, FAILS, {"TDM-DRAFTER-CLASS"}, ("Eagle3Speculator",), "sglang@0.5.23", targets.qwen3_8b, lambda: speculators("llama", False)),
    Case("padded vocabulary", tokenizer_sized, WARNS, {"TDM-VOCABULARY-PADDED"}, ("151669", "151936"), target=targets.qwen3_8b, drafter=lambda: qwen3_drafter(4096, 32, 12288)),
    # names, architectures, files
    Case("sglang #9135", config(architectures=["Qwen3ForCausalLM"]), WARNS, {"TDM-ARCHITECTURE-NAME"}, ("wrong class",), target=targets.qwen3_14b, drafter=lambda: qwen3_drafter(5120, 40, 17408)),
    Case("sglang #9135", config(architectures=["Qwen3ForCausalLM"]), FAILS, {"TDM-DRAFTER-CLASS-PLAIN"}, ("Qwen3ForCausalLM",), "sglang@0.5.23", targets.qwen3_14b, lambda: qwen3_drafter(5120, 40, 17408)),
    Case("plain name on vLLM", config(architectures=["LlamaForCausalLM"]), FITS, set(), (), "vllm@0.33.0", drafter=named),
    Case("plain name on SGLang", nothing, FAILS, {"TDM-DRAFTER-CLASS-PLAIN"}, ("LlamaForCausalLM", "wrong class"), "sglang@0.5.23"),
    Case("vllm #44322", nothing, FITS, set(), target=targets.qwen3_8b, drafter=lambda: speculators("qwen3", True)),
    Case("vllm #44322", nothing, FITS, set(), (), "vllm@0.33.0", targets.qwen3_8b, lambda: speculators("qwen3", True)),
    Case("vllm #44322 twin", nothing, FAILS, {"TDM-TENSORS-DROPPED"}, ("q_norm",), target=targets.qwen3_8b, drafter=lambda: speculators("llama", True)),
    Case("DeepSpec #44", nothing, FITS, set(), target=targets.qwen3_4b, drafter=lambda: qwen3_drafter(2560, 32, 9728)),
    Case("SpecForge #129", config(num_hidden_layers=48), FAILS, {"TDM-LAYER-COUNT"}, ("48", "1 decoder layer"), target=targets.qwen3_8b, drafter=lambda: qwen3_drafter(4096, 32, 12288)),
    Case("SpecForge #129", config(num_hidden_layers=48), FAILS, {"TDM-LAYER-COUNT"}, ("48",), "sglang@0.5.11", targets.qwen3_8b, lambda: qwen3_drafter(4096, 32, 12288)),
    Case("vllm #11126", put("fc.bias", [4096]), FAILS, {"TDM-TENSORS-DROPPED"}, ("fc.bias", "bias")),
    Case("vllm #11126 flagged", both(put("fc.bias", [4096]), config(eagle_fc_bias=True)), FITS, set()),
    Case("vllm #8849", put("fc.weight", [4096]), FAILS, {"TDM-FC-WIDTH"}, ("[4096]",)),
    Case("Model-Optimizer #398", drop("head_dim"), FAILS, {"TDM-HEAD-DIM-GUESSED"}, ("45", "64"), target=targets.gpt_oss_120b, drafter=lambda: gpt_oss_v3([1, 17, 32])),
    Case("MLA heads", nothing, FITS, set(), target=targets.kimi_k25, drafter=mla_drafter),
    Case("MLA heads", nested(**{IDS: [1, 29, 57]}), FITS, set(), (), "sglang@0.5.12", targets.kimi_k25, mla_drafter),
    Case("MLA heads", nothing, FITS, set(), (), "vllm@0.33.0", targets.kimi_k25, mla_drafter),
    Case("sglang #25673", nothing, FAILS, {"TDM-DRAFTER-CLASS"}, ("Eagle3DeepseekV2ForCausalLM", "0.5.11"), "sglang@0.5.11", targets.kimi_k25, mla_drafter),
    Case("sglang #26726", config(num_nextn_predict_layers=0), WARNS, {"TDM-ENGINE-TRAP"}, ("num_nextn_predict_layers",), "sglang@0.5.12", targets.kimi_k25, mla_drafter),
    Case("sglang #26726", config(num_nextn_predict_layers=0), FITS, set(), (), "sglang@0.5.13", targets.kimi_k25, mla_drafter),
    Case("layers.0 before 0.5.12", lambda t, d: d.rename("midlayer.", "layers.0."), FAILS, {"TDM-TENSORS-DROPPED"}, ("layers.0.",), "sglang@0.5.11", drafter=named),
    Case("layers.0 from 0.5.12 on", lambda t, d: d.rename("midlayer.", "layers.0."), FITS, set(), (), "sglang@0.5.12", drafter=named),
    Case("model. on vLLM", lambda t, d: d.rename("midlayer.", "model.midlayer."), FAILS, {"TDM-TENSORS-DROPPED"}, ("model.midlayer.",), "vllm@0.33.0", drafter=named),
    # rotary settings, context
    Case("theta twice", config(rope_theta=500000.0, rope_parameters={"rope_theta": 10000.0}), WARNS, {"TDM-ROPE-THETA-TWICE"}, ("500000", "10000")),
    Case("theta twice and equal", config(rope_theta=500000.0, rope_parameters={"rope_theta": 500000.0}), FITS, set()),
    Case("vllm-ascend #6612", config(rope_theta=10000.0), WARNS, {"TDM-ROPE-THETA-DIFFERS"}, ("10000", "500000", "vllm-ascend")),
    Case("vllm #48894", config(max_position_embeddings=2048), WARNS, {SHORT}, ("2048", "131072"), drafter=named),
    Case("vllm #48894", config(max_position_embeddings=2048), FAILS, {SHORT}, ("2048", "8192"), "vllm@0.26.0", drafter=named, options=("--context-length", "8192")),
    Case("vllm #48894", config(max_position_embeddings=2048), WARNS, {SHORT}, ("2048", "8192"), "vllm@0.33.0", drafter=named, options=("--context-length", "8192")),
    Case("served within", config(max_position_embeddings=2048), FITS, set(), (), "sglang@0.5.23", drafter=named, options=("--engine-args", "--context-length 2048")),
    Case("sglang #3574", config(max_position_embeddings=2048), FAILS, {SHORT}, ("2048", "8192", "crashes"), "sglang@0.5.23", drafter=named, options=("--engine-args", "--context-length=8192", "--env", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1")),
    Case("SpecForge #220", config(max_position_embeddings=4096), WARNS, {SHORT}, ("4096", "131072"), target=targets.gpt_oss_120b, drafter=lambda: gpt_oss_v3([1, 17, 32])),
    Case("SpecForge #310", nothing, WARNS, {"TDM-MROPE-MISSING"}, ("[16, 24, 24]", "mrope_section"), target=targets.qwen25_vl_7b, drafter=lambda: drafter(architectures=[SGLANG_CLASS], hidden_size=3584, num_attention_heads=28, num_key_value_heads=4, head_dim=128, intermediate_size=18944, vocab_size=152064, draft_vocab_size=32000, rope_theta=1000000.0, max_position_embeddings=128000)),
    # norms
    Case("vllm #38111", both(config(norm_before_fc=True), put("input_norm.weight", [12288])), FITS, set()),
    Case("vllm #38111 twin", put("input_norm.weight", [12288]), FAILS, {"TDM-TENSORS-DROPPED"}, ("input_norm.weight", "norm_before_fc")),
    Case("vllm #38111 twin", config(norm_before_fc=True), FAILS, {"TDM-PARAMETERS-MISSING"}, ("input_norm.weight",)),
    Case("EAGLE-3.1", both(config(fc_norm=True, norm_output=True), *(put(f"fc_norm.{i}.weight", [4096]) for i in range(3))), FITS, set()),
    Case("EAGLE-3.1 on an old SGLang", both(config(fc_norm=True, norm_output=True), *(put(f"fc_norm.{i}.weight", [4096]) for i in range(3))), FAILS, {"TDM-FLAG-IGNORED"}, ("fc_norm", "norm_output"), "sglang@0.5.11", drafter=named),
    Case("EAGLE-3.1 twin", config(fc_norm=True), FAILS, {"TDM-PARAMETERS-MISSING"}, ("fc_norm.0.weight",)),
    Case("norm_before_residual absent", nothing, FITS, set(), ("norm_before_residual", "takes false"), "vllm@0.33.0", drafter=named),
    # precision
    Case("SpecForge #348", lambda t, d: d.tensors.update({n: ("F32", s) for n, (k, s) in d.tensors.items() if k == "F16"}), WARNS, {"TDM-DTYPE-DIFFERS"}, ("float32", "float16", "bfloat16")),
    Case("vllm #37280", both(drop("lm_head.weight"), put("lm_head.weight_packed", [32000, 512], "I32"), put("lm_head.weight_scale", [32000, 32]), put("lm_head.weight_shape", [2], "I64")), WARNS, {"TDM-HEAD-QUANTISED"}, ("lm_head.weight_packed",)),
    Case("FP8 target", nothing, FITS, set(), target=targets.qwen3_8b_fp8, drafter=lambda: qwen3_drafter(4096, 32, 12288)),
    # targets
    Case("vllm #25961", nothing, FITS, set(), target=targets.llama4_maverick, drafter=lambda: drafter(architectures=["LlamaForCausalLMEagle3"], hidden_size=5120, num_attention_heads=40, num_key_value_heads=8, head_dim=128, intermediate_size=32768, vocab_size=202048, rope_theta=500000.0, max_position_embeddings=1048576)),
    Case("vllm #33329", nothing, FAILS, {"TDM-TARGET-CLASS"}, ("MistralForCausalLM",), "sglang@0.5.23", targets.mistral_7b, lambda: drafter(architectures=[SGLANG_CLASS], hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336, vocab_size=32000, draft_vocab_size=16000, rope_theta=10000.0, max_position_embeddings=32768)),
    Case("hybrid target", nested(**{IDS: [2, 24, 44]}), WARNS, {"TDM-LAYERS-NOT-ATTENTION"}, ("attention",), target=targets.qwen3_next, drafter=lambda: drafter(architectures=[SGLANG_CLASS], hidden_size=2048, num_attention_heads=16, num_key_value_heads=2, head_dim=256, intermediate_size=16384, vocab_size=151936, draft_vocab_size=32000, rope_theta=10000000.0, max_position_embeddings=262144)),
    Case("hybrid target", nested(**{IDS: [3, 23, 43]}), FITS, set(), target=targets.qwen3_next, drafter=lambda: drafter(architectures=[SGLANG_CLASS], hidden_size=2048, num_attention_heads=16, num_key_value_heads=2, head_dim=256, intermediate_size=16384, vocab_size=151936, draft_vocab_size=32000, rope_theta=10000000.0, max_position_embeddings=262144)),
    #
    Case("vllm #42004", put("mask_hidden", [1, 12288]), WARNS, {"TDM-TENSORS-UNUSED"}, ("mask_hidden",)),
    Case("vllm #42004 twin", config(parallel_drafting=True), FAILS, {"TDM-MASK-HIDDEN-MISSING"}, ("mask_hidden",)),
    Case("vllm #42004", both(config(parallel_drafting=True), put("mask_hidden", [1, 12288])), FITS, set()),
    # engines and versions that the tables do not know
    Case("unread version", nothing, UNKNOWN, {"TDM-ENGINE-UNKNOWN"}, ("0.9.9",), "sglang@0.9.9", drafter=named),
    Case("patched version", nothing, UNKNOWN, {"TDM-ENGINE-UNKNOWN"}, ("0.5.23+ours",), "sglang@0.5.23+ours", drafter=named),
    Case("unread version checks the rest", drop("midlayer.mlp.up_proj.weight"), FAILS, {"TDM-ENGINE-UNKNOWN", "TDM-PARAMETERS-MISSING"}, ("up_proj",), "sglang@0.9.9", drafter=named),
    Case("two mistakes", both(drop("midlayer.mlp.up_proj.weight"), put("d2t", [31000], "I64")), FAILS, {"TDM-PARAMETERS-MISSING", "TDM-D2T-LENGTH"}, ("up_proj", "31000")),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.report} {case.engine}".replace(" ", "-"))
def test_reported_failure(tmp_path: Path, case: Case) -> None:
    options = ("--engine", case.engine, *case.options)
    seen = judged(tmp_path, case.target(), case.drafter(), *options, change=case.change)
    baseline = {SHORT} if case.drafter is eagle3_8b else set()
    assert seen.codes - baseline == case.codes, seen.text
    wanted = WARNS if case.verdict == FITS and seen.codes & baseline else case.verdict
    assert seen.verdict == wanted
    for said in case.says:
        assert said in seen.text
