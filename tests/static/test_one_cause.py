"""Families around the public reports. A cause is told once, and an engine is held to what its own version does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from static import targets
from static.build import Change, Model
from static.cases import FAILS, FITS, WARNS, Case, Maker, hold, name_of
from static.makers import (
    IDS,
    both,
    config,
    drop,
    eagle1,
    full_vocabulary,
    gpt_oss_v3,
    kimi_drafter,
    mla_drafter,
    named,
    nested,
    nothing,
    put,
    small_vocabulary,
)

SGLANG, VLLM, OLD_VLLM = "sglang@0.5.23", "vllm@0.33.0", "vllm@0.26.0"


def states(count: int) -> Change:
    return both(
        config(num_aux_hidden_states=count, **{IDS: list(range(2, 2 + count))}),
        config(eagle_config={IDS: list(range(1, 1 + count))}),
        put("fc.weight", [4096, 4096 * count]),
    )


def a_model() -> Model:
    """Four layers of a plain Llama."""
    model = targets.llama_8b()
    model.set(num_hidden_layers=4)
    for layer in range(4):
        model.put(f"model.layers.{layer}.self_attn.q_proj.weight", [4096, 4096])
        model.put(f"model.layers.{layer}.input_layernorm.weight", [4096])
    return model


def fused_projections(t: Model, d: Model) -> None:
    d.drop(*(f"midlayer.self_attn.{name}_proj.weight" for name in "qkv"))
    d.put("midlayer.self_attn.qkv_proj.weight", [6144, 8192], "F16")


def truncated_only(t: Model, d: Model) -> None:
    d.drop("draft_vocab_size")
    d.set(truncated_vocab_size=32000)


def case(
    report: str,
    change: Change,
    verdict: str,
    codes: set[str],
    engine: str = SGLANG,
    drafter: Maker = named,
    **more: Any,
) -> Case:
    return Case(report, change, verdict, codes, engine=engine, drafter=drafter, **more)


def asked(*options: str) -> dict[str, Any]:
    return {"options": options}


CASES = [
    # one state: only SGLang tells by the width whether to apply fc
    case("one state", states(1), FAILS, {"TDM-FC-UNUSED"}),
    case("one state", states(1), FITS, set(), VLLM),
    case("one state", states(1), WARNS, {"TDM-FC-UNUSED"}, "any"),
    *(case(f"{count} states said everywhere", states(count), FITS, set(), engine) for count in (2, 4, 5)
      for engine in (SGLANG, VLLM, "any")),
    # a list and an fc that disagree are one mistake, whatever the engine reads
    *(case("three ids and five states", both(config(**{IDS: [2, 16, 29]}), put("fc.weight", [4096, 20480])), FAILS,
           {"TDM-LAYER-IDS-COUNT"}, engine) for engine in (SGLANG, VLLM, "any")),
    case("EAGLE-1 under SGLang", eagle1, FAILS, {"TDM-EAGLE1-LAYOUT"}),
    # flags where no engine reads them
    *(case("use_aux_hidden_state at top level", both(config(use_aux_hidden_state=False), drop("fc.weight")), verdict,
           {"TDM-FLAG-IGNORED"}, engine) for engine, verdict in ((SGLANG, FAILS), (VLLM, FAILS), ("any", WARNS))),
    # a value of the wrong type is one mistake, and what was meant is used to go on
    *(case(f"{field}={value!r}", config(**{field: value}), FAILS, {"TDM-CONFIG-FIELD-INVALID"}) for field, value in (
        ("draft_vocab_size", "32000"), ("draft_vocab_size", 32000.0), ("draft_vocab_size", 0),
        ("num_key_value_heads", "8"), ("hidden_size", 4096.0), ("norm_output", "false"), ("architectures", []),
        ("architectures", "LlamaForCausalLMEagle3"))),
    case("use_aux_hidden_state as text", both(nested(use_aux_hidden_state="false"), drop("fc.weight")), FAILS,
         {"TDM-CONFIG-FIELD-INVALID"}),
    case("a draft vocabulary beyond the target's", config(draft_vocab_size=200000), FAILS,
         {"TDM-DRAFT-VOCABULARY-TOO-LARGE"}),
    case("no draft_vocab_size", drop("draft_vocab_size"), FAILS, {"TDM-DRAFT-VOCABULARY-SIZE"}, VLLM),
    case("all of 32000", small_vocabulary, FAILS, {"TDM-T2D-COUNT", "TDM-D2T-OF-FULL-VOCABULARY"}, VLLM),
    case("heads of another width", config(head_dim=64), FAILS, {"TDM-DRAFTER-SHAPE"}),
    *(case("truncated_vocab_size alone", truncated_only, verdict, {"TDM-DRAFT-VOCABULARY-UNSTATED"}, engine)
      for engine, verdict in ((SGLANG, FAILS), (VLLM, FAILS), ("any", WARNS))),
    # names
    *(case("fused projections", fused_projections, FAILS, {"TDM-TENSORS-DROPPED"}, engine)
      for engine in (SGLANG, VLLM, "any")),
    case("the second layer's name", lambda t, d: d.rename("midlayer.", "layers.1."), FAILS, {"TDM-PARAMETERS-MISSING"}),
    *(case("a whole model", nothing, FAILS, {"TDM-NOT-A-DRAFTER"}, engine, drafter=a_model)
      for engine in (SGLANG, VLLM, "any", "builtin")),
    case("MLA under a Llama class", config(architectures=["LlamaForCausalLMEagle3"]), FAILS,
         {"TDM-DRAFTER-CLASS-TENSORS"}, "any", target=targets.kimi_k25, drafter=mla_drafter),
    case("Llama under an MLA class", config(architectures=["Eagle3DeepseekV2ForCausalLM"]), FAILS,
         {"TDM-DRAFTER-CLASS-TENSORS"}, "any", target=targets.kimi_k25, drafter=kimi_drafter),
    # vLLM has two runners, and they read layer ids at different places
    case("gpt-oss v3", nothing, FAILS, {"TDM-LAYER-IDS-IGNORED"}, VLLM, target=targets.gpt_oss_120b,
         drafter=lambda: gpt_oss_v3([24, 30, 36])),
    case("gpt-oss v3 on the first runner", nothing, FITS, set(), OLD_VLLM, target=targets.gpt_oss_120b,
         drafter=lambda: gpt_oss_v3([24, 30, 36])),
    case("the first runner by order", nested(**{IDS: [1, 15, 28]}), WARNS, {"TDM-LAYER-IDS-CONVENTION"}, VLLM,
         **asked("--env", "VLLM_USE_V2_MODEL_RUNNER=0")),
    case("a dense target on the second runner", nested(**{IDS: [1, 15, 28]}), FITS, set(), OLD_VLLM),
    # deployment
    *(case(f"--{flag} 0", nothing, FAILS, {"TDM-ARGUMENT-TYPE"}, **asked("--engine-args", f"--{flag} 0"))
      for flag in ("tp", "speculative-num-steps", "context-length")),
    case("no tokens", nothing, FAILS, {"TDM-ARGUMENT-TYPE"}, VLLM,
         **asked("--engine-args", """--speculative-config '{"num_speculative_tokens": 0}'""")),
    case("a method in capitals", nothing, FAILS, {"TDM-ALGORITHM"}, VLLM,
         **asked("--engine-args", """--speculative-config '{"method": "EAGLE3"}'""")),
    case("a made-up accept length", nothing, FAILS, {"TDM-ACCEPTANCE-FAKED"}, VLLM,
         **asked("--engine-args", """--speculative-config '{"rejection_sample_method": "synthetic"}'""")),
    case("a switch that is off", nothing, FITS, set(), **asked("--env", "SGLANG_SIMULATE_ACC_LEN=0")),
    case("a backend for MLA alone", nothing, FAILS, {"TDM-ATTENTION-BACKEND"}, target=targets.kimi_k25,
         drafter=kimi_drafter, **asked("--engine-args", "--attention-backend trtllm_mla")),
    case("a backend of its own", nothing, FITS, set(), target=targets.kimi_k25, drafter=kimi_drafter,
         **asked("--engine-args", "--attention-backend trtllm_mla --speculative-draft-attention-backend fa3")),
    case("MLA on a backend for MLA", nothing, FITS, set(), target=targets.kimi_k25, drafter=mla_drafter,
         **asked("--engine-args", "--attention-backend trtllm_mla")),
    case("weights of whole numbers", put("fc.weight", [4096, 12288], "U8"), WARNS, {"TDM-QUANTISATION-UNSTATED"}),
    case("a full head", full_vocabulary, FITS, set(), VLLM),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_one_cause_is_told_once(tmp_path: Path, case: Case) -> None:
    hold(case, tmp_path)
