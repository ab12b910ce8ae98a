"""Public reports, rebuilt. Draft vocabulary, heads and embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest

from static import targets
from static.build import eagle3_8b
from static.cases import FAILS, FITS, WARNS, Case, hold, name_of
from static.makers import (
    as_i32,
    both,
    config,
    d2t_as_ids,
    drop,
    full_vocabulary,
    ids,
    marks_as,
    mla_drafter,
    named,
    nothing,
    offset_at,
    put,
    qwen3_drafter,
    small_vocabulary,
    speculators,
    tokenizer_sized,
    zero_maps,
)

CASES = [
    # vocabulary, heads, embeddings
    Case("EAGLE #249", drop("draft_vocab_size"), FAILS, {"TDM-DRAFT-VOCABULARY-SIZE"}, ("32000", "128256")),
    Case(
        "EAGLE #249",
        drop("draft_vocab_size"),
        FAILS,
        {"TDM-DRAFT-VOCABULARY-SIZE"},
        ("32000", "128256"),
        "sglang@0.5.23",
        drafter=named,
    ),
    Case(
        "EAGLE #248",
        small_vocabulary,
        FAILS,
        {"TDM-T2D-COUNT"},
        ("1746", "32000"),
        drafter=lambda: eagle3_8b(vocab_size=32000, max_position_embeddings=131072),
    ),
    Case(
        "SpecForge #139",
        nothing,
        FAILS,
        {"TDM-TIED-REDUCED-VOCABULARY"},
        ("32000", "151936"),
        target=targets.qwen3_4b,
        drafter=lambda: qwen3_drafter(2560, 32, 9728, tie_word_embeddings=True),
    ),
    Case(
        "SpecForge #139 twin",
        both(full_vocabulary, config(tie_word_embeddings=True), drop("lm_head.weight")),
        FITS,
        set(),
    ),
    Case(
        "sglang #27829",
        drop("lm_head.weight"),
        WARNS,
        {"TDM-HEAD-BORROWED"},
        ("lm_head.weight", "borrowed"),
        target=targets.kimi_k25,
        drafter=mla_drafter,
    ),
    Case(
        "sglang #27829",
        drop("lm_head.weight"),
        FAILS,
        {"TDM-PARAMETERS-MISSING"},
        ("lm_head.weight", "163840"),
        "sglang@0.5.23",
        targets.kimi_k25,
        mla_drafter,
    ),
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
    Case(
        "theta in rope_parameters",
        config(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
        FITS,
        set(),
    ),
    Case("ids null", ids(None), FITS, set()),
    Case("speculators", nothing, FITS, set(), target=targets.qwen3_8b, drafter=lambda: speculators("llama", False)),
    Case("speculators", nothing, FITS, set(), (), "vllm@0.33.0", targets.qwen3_8b, lambda: speculators("llama", False)),
    Case(
        "speculators on SGLang",
        nothing,
        FAILS,
        {"TDM-DRAFTER-CLASS"},
        ("Eagle3Speculator",),
        "sglang@0.5.23",
        targets.qwen3_8b,
        lambda: speculators("llama", False),
    ),
    Case(
        "padded vocabulary",
        tokenizer_sized,
        WARNS,
        {"TDM-VOCABULARY-PADDED"},
        ("151669", "151936"),
        target=targets.qwen3_8b,
        drafter=lambda: qwen3_drafter(4096, 32, 12288),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_reported_failure(tmp_path: Path, case: Case) -> None:
    hold(case, tmp_path)
