"""Public reports, rebuilt. Architectures and tensor names."""

from __future__ import annotations

from pathlib import Path

import pytest

from static import targets
from static.cases import FAILS, FITS, WARNS, Case, hold, name_of
from static.makers import (
    IDS,
    both,
    config,
    drop,
    gpt_oss_v3,
    mla_drafter,
    named,
    nested,
    nothing,
    put,
    qwen3_drafter,
    speculators,
)

CASES = [
    Case(
        "sglang #9135",
        config(architectures=["Qwen3ForCausalLM"]),
        FITS,
        set(),
        ("q_norm",),
        "vllm@0.33.0",
        targets.qwen3_14b,
        lambda: qwen3_drafter(5120, 40, 17408),
    ),
    # names, architectures, files
    Case(
        "sglang #9135",
        config(architectures=["Qwen3ForCausalLM"]),
        WARNS,
        {"TDM-ARCHITECTURE-NAME"},
        ("wrong class",),
        target=targets.qwen3_14b,
        drafter=lambda: qwen3_drafter(5120, 40, 17408),
    ),
    Case(
        "sglang #9135",
        config(architectures=["Qwen3ForCausalLM"]),
        FAILS,
        {"TDM-DRAFTER-CLASS-PLAIN"},
        ("Qwen3ForCausalLM",),
        "sglang@0.5.23",
        targets.qwen3_14b,
        lambda: qwen3_drafter(5120, 40, 17408),
    ),
    Case(
        "plain name on vLLM", config(architectures=["LlamaForCausalLM"]), FITS, set(), (), "vllm@0.33.0", drafter=named
    ),
    Case(
        "plain name on SGLang",
        nothing,
        FAILS,
        {"TDM-DRAFTER-CLASS-PLAIN"},
        ("LlamaForCausalLM", "wrong class"),
        "sglang@0.5.23",
    ),
    Case("vllm #44322", nothing, FITS, set(), target=targets.qwen3_8b, drafter=lambda: speculators("qwen3", True)),
    Case("vllm #44322", nothing, FITS, set(), (), "vllm@0.33.0", targets.qwen3_8b, lambda: speculators("qwen3", True)),
    Case(
        "vllm #44322 twin",
        nothing,
        FAILS,
        {"TDM-TENSORS-DROPPED"},
        ("q_norm",),
        target=targets.qwen3_8b,
        drafter=lambda: speculators("llama", True),
    ),
    Case("DeepSpec #44", nothing, FITS, set(), target=targets.qwen3_4b, drafter=lambda: qwen3_drafter(2560, 32, 9728)),
    Case(
        "SpecForge #129",
        config(num_hidden_layers=48),
        FAILS,
        {"TDM-LAYER-COUNT"},
        ("48", "1 decoder layer"),
        target=targets.qwen3_8b,
        drafter=lambda: qwen3_drafter(4096, 32, 12288),
    ),
    Case(
        "SpecForge #129",
        config(num_hidden_layers=48),
        FAILS,
        {"TDM-LAYER-COUNT"},
        ("48",),
        "sglang@0.5.11",
        targets.qwen3_8b,
        lambda: qwen3_drafter(4096, 32, 12288),
    ),
    Case("vllm #11126", put("fc.bias", [4096]), FAILS, {"TDM-TENSORS-DROPPED"}, ("fc.bias", "bias")),
    Case("vllm #11126 flagged", both(put("fc.bias", [4096]), config(eagle_fc_bias=True)), FITS, set()),
    Case("vllm #8849", put("fc.weight", [4096]), FAILS, {"TDM-FC-WIDTH"}, ("[4096]",)),
    Case(
        "Model-Optimizer #398",
        drop("head_dim"),
        FAILS,
        {"TDM-HEAD-DIM-GUESSED"},
        ("45", "64"),
        target=targets.gpt_oss_120b,
        drafter=lambda: gpt_oss_v3([1, 17, 32]),
    ),
    Case("MLA heads", nothing, FITS, set(), target=targets.kimi_k25, drafter=mla_drafter),
    Case("MLA heads", nested(**{IDS: [1, 29, 57]}), FITS, set(), (), "sglang@0.5.12", targets.kimi_k25, mla_drafter),
    Case("MLA heads", nothing, FITS, set(), (), "vllm@0.33.0", targets.kimi_k25, mla_drafter),
    Case(
        "sglang #25673",
        nothing,
        FAILS,
        {"TDM-DRAFTER-CLASS"},
        ("Eagle3DeepseekV2ForCausalLM", "0.5.11"),
        "sglang@0.5.11",
        targets.kimi_k25,
        mla_drafter,
    ),
    Case(
        "sglang #26726",
        config(num_nextn_predict_layers=0),
        WARNS,
        {"TDM-ENGINE-TRAP"},
        ("num_nextn_predict_layers",),
        "sglang@0.5.12",
        targets.kimi_k25,
        mla_drafter,
    ),
    Case(
        "sglang #26726",
        config(num_nextn_predict_layers=0),
        FITS,
        set(),
        (),
        "sglang@0.5.13",
        targets.kimi_k25,
        mla_drafter,
    ),
    Case(
        "layers.0 before 0.5.12",
        lambda t, d: d.rename("midlayer.", "layers.0."),
        FAILS,
        {"TDM-TENSORS-DROPPED"},
        ("layers.0.",),
        "sglang@0.5.11",
        drafter=named,
    ),
    Case(
        "layers.0 from 0.5.12 on",
        lambda t, d: d.rename("midlayer.", "layers.0."),
        FITS,
        set(),
        (),
        "sglang@0.5.12",
        drafter=named,
    ),
    Case(
        "model. on vLLM",
        lambda t, d: d.rename("midlayer.", "model.midlayer."),
        FAILS,
        {"TDM-TENSORS-DROPPED"},
        ("model.midlayer.",),
        "vllm@0.33.0",
        drafter=named,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_reported_failure(tmp_path: Path, case: Case) -> None:
    hold(case, tmp_path)
