"""Public reports, rebuilt. Rotary settings, context, norms, precision, targets, engines that the tables do not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from static import targets
from static.build import Model, drafter
from static.cases import FAILS, FITS, SHORT, UNKNOWN, WARNS, Case, hold, name_of
from static.makers import IDS, SGLANG_CLASS, both, config, drop, gpt_oss_v3, named, nested, nothing, put, qwen3_drafter


def gemma3_drafter() -> Model:
    return drafter(
        architectures=[SGLANG_CLASS],
        hidden_size=1152,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        intermediate_size=6912,
        vocab_size=262144,
        draft_vocab_size=32000,
        rope_theta=1000000.0,
        max_position_embeddings=32768,
    )


CASES = [
    # rotary settings, context
    Case(
        "theta twice",
        config(rope_theta=500000.0, rope_parameters={"rope_theta": 10000.0}),
        WARNS,
        {"TDM-ROPE-THETA-TWICE"},
        ("500000", "10000"),
    ),
    Case("theta twice and equal", config(rope_theta=500000.0, rope_parameters={"rope_theta": 500000.0}), FITS, set()),
    Case(
        "vllm-ascend #6612",
        config(rope_theta=10000.0),
        WARNS,
        {"TDM-ROPE-THETA-DIFFERS"},
        ("10000", "500000", "vllm-ascend"),
    ),
    Case("vllm #48894", config(max_position_embeddings=2048), WARNS, {SHORT}, ("2048", "131072"), drafter=named),
    Case(
        "vllm #48894",
        config(max_position_embeddings=2048),
        FAILS,
        {SHORT},
        ("2048", "8192"),
        "vllm@0.26.0",
        drafter=named,
        options=("--context-length", "8192"),
    ),
    Case(
        "vllm #48894",
        config(max_position_embeddings=2048),
        WARNS,
        {SHORT},
        ("2048", "8192"),
        "vllm@0.33.0",
        drafter=named,
        options=("--context-length", "8192"),
    ),
    Case(
        "served within",
        config(max_position_embeddings=2048),
        FITS,
        set(),
        (),
        "sglang@0.5.23",
        drafter=named,
        options=("--engine-args", "--context-length 2048"),
    ),
    Case(
        "sglang #3574",
        config(max_position_embeddings=2048),
        FAILS,
        {SHORT},
        ("2048", "8192", "crashes"),
        "sglang@0.5.23",
        drafter=named,
        options=("--engine-args", "--context-length=8192", "--env", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"),
    ),
    Case(
        "SpecForge #220",
        config(max_position_embeddings=4096),
        WARNS,
        {SHORT},
        ("4096", "131072"),
        target=targets.gpt_oss_120b,
        drafter=lambda: gpt_oss_v3([1, 17, 32]),
    ),
    Case(
        "SpecForge #310",
        nothing,
        WARNS,
        {"TDM-MROPE-MISSING"},
        ("[16, 24, 24]", "mrope_section"),
        target=targets.qwen25_vl_7b,
        drafter=lambda: drafter(
            architectures=[SGLANG_CLASS],
            hidden_size=3584,
            num_attention_heads=28,
            num_key_value_heads=4,
            head_dim=128,
            intermediate_size=18944,
            vocab_size=152064,
            draft_vocab_size=32000,
            rope_theta=1000000.0,
            max_position_embeddings=128000,
        ),
    ),
    # norms
    Case("vllm #38111", both(config(norm_before_fc=True), put("input_norm.weight", [12288])), FITS, set()),
    Case(
        "vllm #38111 twin",
        put("input_norm.weight", [12288]),
        FAILS,
        {"TDM-TENSORS-DROPPED"},
        ("input_norm.weight", "norm_before_fc"),
    ),
    Case("vllm #38111 twin", config(norm_before_fc=True), FAILS, {"TDM-PARAMETERS-MISSING"}, ("input_norm.weight",)),
    Case(
        "EAGLE-3.1",
        both(config(fc_norm=True, norm_output=True), *(put(f"fc_norm.{i}.weight", [4096]) for i in range(3))),
        FITS,
        set(),
    ),
    Case(
        "EAGLE-3.1 on an old SGLang",
        both(config(fc_norm=True, norm_output=True), *(put(f"fc_norm.{i}.weight", [4096]) for i in range(3))),
        FAILS,
        {"TDM-FLAG-IGNORED"},
        ("fc_norm", "norm_output"),
        "sglang@0.5.11",
        drafter=named,
    ),
    Case("EAGLE-3.1 twin", config(fc_norm=True), FAILS, {"TDM-PARAMETERS-MISSING"}, ("fc_norm.0.weight",)),
    Case(
        "norm_before_residual absent",
        nothing,
        FITS,
        set(),
        ("norm_before_residual", "takes false"),
        "vllm@0.33.0",
        drafter=named,
    ),
    # precision
    Case(
        "SpecForge #348",
        lambda t, d: d.tensors.update({n: ("F32", s) for n, (k, s) in d.tensors.items() if k == "F16"}),
        WARNS,
        {"TDM-DTYPE-DIFFERS"},
        ("float32", "float16", "bfloat16"),
    ),
    Case(
        "vllm #37280",
        both(
            drop("lm_head.weight"),
            put("lm_head.weight_packed", [32000, 512], "I32"),
            put("lm_head.weight_scale", [32000, 32]),
            put("lm_head.weight_shape", [2], "I64"),
        ),
        WARNS,
        {"TDM-HEAD-QUANTISED"},
        ("lm_head.weight_packed",),
    ),
    Case(
        "FP8 target", nothing, FITS, set(), target=targets.qwen3_8b_fp8, drafter=lambda: qwen3_drafter(4096, 32, 12288)
    ),
    # targets
    Case(
        "vllm #25961",
        nothing,
        FITS,
        set(),
        target=targets.llama4_maverick,
        drafter=lambda: drafter(
            architectures=["LlamaForCausalLMEagle3"],
            hidden_size=5120,
            num_attention_heads=40,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=32768,
            vocab_size=202048,
            rope_theta=500000.0,
            max_position_embeddings=1048576,
        ),
    ),
    Case(
        "no hook in this engine",
        nothing,
        FAILS,
        {"TDM-TARGET-CLASS"},
        ("Gemma3ForCausalLM", "EAGLE3 interface"),
        "vllm@0.33.0",
        targets.gemma3_1b,
        gemma3_drafter,
    ),
    Case(
        "no hook yet",
        nothing,
        FAILS,
        {"TDM-TARGET-CLASS"},
        ("0.5.11",),
        "sglang@0.5.11",
        targets.gemma3_1b,
        gemma3_drafter,
    ),
    Case("hook since 0.5.12", nothing, FITS, set(), (), "sglang@0.5.12", targets.gemma3_1b, gemma3_drafter),
    Case(
        "hybrid target",
        nested(**{IDS: [2, 24, 44]}),
        WARNS,
        {"TDM-LAYERS-NOT-ATTENTION"},
        ("attention",),
        target=targets.qwen3_next,
        drafter=lambda: drafter(
            architectures=[SGLANG_CLASS],
            hidden_size=2048,
            num_attention_heads=16,
            num_key_value_heads=2,
            head_dim=256,
            intermediate_size=16384,
            vocab_size=151936,
            draft_vocab_size=32000,
            rope_theta=10000000.0,
            max_position_embeddings=262144,
        ),
    ),
    Case(
        "hybrid target",
        nested(**{IDS: [3, 23, 43]}),
        FITS,
        set(),
        target=targets.qwen3_next,
        drafter=lambda: drafter(
            architectures=[SGLANG_CLASS],
            hidden_size=2048,
            num_attention_heads=16,
            num_key_value_heads=2,
            head_dim=256,
            intermediate_size=16384,
            vocab_size=151936,
            draft_vocab_size=32000,
            rope_theta=10000000.0,
            max_position_embeddings=262144,
        ),
    ),
    #
    Case("vllm #42004", put("mask_hidden", [1, 12288]), WARNS, {"TDM-TENSORS-UNUSED"}, ("mask_hidden",)),
    Case("vllm #42004 twin", config(parallel_drafting=True), FAILS, {"TDM-MASK-HIDDEN-MISSING"}, ("mask_hidden",)),
    Case("vllm #42004", both(config(parallel_drafting=True), put("mask_hidden", [1, 12288])), FITS, set()),
    # engines and versions that the tables do not know
    Case("unread version", nothing, UNKNOWN, {"TDM-ENGINE-UNKNOWN"}, ("0.9.9",), "sglang@0.9.9", drafter=named),
    Case(
        "patched version",
        nothing,
        UNKNOWN,
        {"TDM-ENGINE-UNKNOWN"},
        ("0.5.23+ours",),
        "sglang@0.5.23+ours",
        drafter=named,
    ),
    Case(
        "unread version checks the rest",
        drop("midlayer.mlp.up_proj.weight"),
        FAILS,
        {"TDM-ENGINE-UNKNOWN", "TDM-PARAMETERS-MISSING"},
        ("up_proj",),
        "sglang@0.9.9",
        drafter=named,
    ),
    Case(
        "two mistakes",
        both(drop("midlayer.mlp.up_proj.weight"), put("d2t", [31000], "I64")),
        FAILS,
        {"TDM-PARAMETERS-MISSING", "TDM-D2T-LENGTH"},
        ("up_proj", "31000"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_reported_failure(tmp_path: Path, case: Case) -> None:
    hold(case, tmp_path)
