"""Arguments and environment of the engine that defeat a healthy pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from static import targets
from static.judging import judged
from static.makers import kimi_drafter, named, qwen3_drafter

CASES = [
    ("sglang@0.5.23", "--speculative-algorithm EAGLE", "DoesNotFit", "TDM-ALGORITHM", "EAGLE"),
    ("sglang@0.5.23", "--speculative-algorithm NEXTN", "DoesNotFit", "TDM-ALGORITHM", "NEXTN"),
    ("sglang@0.5.23", "--speculative-algorithm EAGLE3", "Fits", "", ""),
    (
        "vllm@0.33.0",
        """--speculative-config '{"method": "eagle", "num_speculative_tokens": 3}'""",
        "DoesNotFit",
        "TDM-ALGORITHM",
        "eagle",
    ),
    ("vllm@0.33.0", """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'""", "Fits", "", ""),
    (
        "vllm@0.33.0",
        """--speculative-config '{"num_speculative_tokens": "4"}'""",
        "DoesNotFit",
        "TDM-ARGUMENT-TYPE",
        "'4'",
    ),
    (
        "vllm@0.33.0",
        """--speculative-config '{"parallel_drafting": "true"}'""",
        "DoesNotFit",
        "TDM-ARGUMENT-TYPE",
        "true",
    ),
    ("vllm@0.33.0", "--speculative-config '{'", "DoesNotFit", "TDM-ARGUMENT-TYPE", "JSON"),
    (
        "sglang@0.5.23",
        "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 24",
        "FitsWithWarnings",
        "TDM-DRAFT-TOKENS",
        "24",
    ),
    (
        "sglang@0.5.23",
        "--speculative-num-steps=3 --speculative-eagle-topk=1 --speculative-num-draft-tokens=4",
        "Fits",
        "",
        "",
    ),
    (
        "sglang@0.5.23",
        "--speculative-token-map hot/freq_32768.pt",
        "FitsWithWarnings",
        "TDM-TOKEN-MAP",
        "freq_32768.pt",
    ),
    ("sglang@0.5.23", "--speculative-num-steps many", "DoesNotFit", "TDM-ARGUMENT-TYPE", "many"),
    ("sglang@0.5.23", "--tp 16", "FitsWithWarnings", "TDM-TENSOR-PARALLEL", "8 key-value heads"),
    ("vllm@0.33.0", "-tp 64", "DoesNotFit", "TDM-TENSOR-PARALLEL", "32 heads"),
    ("vllm@0.33.0", "--tensor-parallel-size 8", "Fits", "", ""),
    ("sglang@0.5.23", "--pp-size 2", "DoesNotFit", "TDM-PIPELINE-PARALLEL", "pipeline"),
    ("vllm@0.33.0", "--pipeline-parallel-size 2", "FitsWithWarnings", "TDM-PIPELINE-PARALLEL", "embed_tokens"),
    ("any", "--pp 2", "FitsWithWarnings", "TDM-PIPELINE-PARALLEL", "embed_tokens"),
    ("sglang@0.5.23", "--quantization modelopt_fp4", "FitsWithWarnings", "TDM-QUANTISATION-INHERITED", "unquant"),
    ("sglang@0.5.23", "--quantization fp8 --speculative-draft-model-quantization unquant", "Fits", "", ""),
    ("sglang@0.5.23", "--speculative-accept-threshold-single 0.8", "FitsWithWarnings", "TDM-LOSSY-ACCEPTANCE", "0.8"),
]


@pytest.mark.parametrize(("engine", "arguments", "verdict", "code", "says"), CASES)
def test_arguments(tmp_path: Path, engine: str, arguments: str, verdict: str, code: str, says: str) -> None:
    seen = judged(tmp_path, targets.llama_8b(), named(), "--engine", engine, "--engine-args", arguments)
    assert seen.codes == ({code} if code else set())
    assert seen.verdict == verdict
    assert says in seen.text


@pytest.mark.parametrize(("gpus", "refused"), [(8, False), (16, True)])
def test_the_builtin_engine_shares_the_targets_heads(tmp_path: Path, gpus: int, refused: bool) -> None:
    options = "--engine", "builtin", "--engine-args", f"--tensor-parallel {gpus}"
    seen = judged(tmp_path, targets.llama_8b(), named(), *options)
    assert ("TDM-TENSOR-PARALLEL" in seen.codes) == refused
    assert ("it has 8 key-value heads, which does not divide by 16; choose 2 or 4 or 8" in seen.text) == refused


def test_a_drafter_with_an_embedding_of_its_own_may_run_in_stages(tmp_path: Path) -> None:
    drafter = named()
    drafter.put("embed_tokens.weight", [128256, 4096])
    options = ("--engine", "vllm@0.33.0", "--engine-args", "--pipeline-parallel-size 2")
    assert judged(tmp_path, targets.llama_8b(), drafter, *options).verdict == "Fits"


def test_a_draft_tensor_parallel_size_is_told_to_have_no_effect(tmp_path: Path) -> None:
    drafter = qwen3_drafter(2048, 32, 12288, num_key_value_heads=4)
    for name in ("k", "v"):
        drafter.put(f"midlayer.self_attn.{name}_proj.weight", [512, 4096])
    speculative = """{"method": "eagle3", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}"""
    options = ("--engine", "vllm@0.33.0", "--engine-args", f"-tp 8 --speculative-config '{speculative}'")
    seen = judged(tmp_path, targets.qwen3_30b(), drafter, *options)
    assert seen.codes == {"TDM-TENSOR-PARALLEL"}
    assert "4 key-value heads" in seen.text
    assert "has no effect" in seen.text


def test_an_environment_that_fakes_acceptance(tmp_path: Path) -> None:
    options = ("--engine", "sglang@0.5.23", "--env", "SGLANG_SIMULATE_ACC_LEN=3")
    seen = judged(tmp_path, targets.kimi_k25(), kimi_drafter(), *options)
    assert seen.errors == ["TDM-ACCEPTANCE-FAKED"]
