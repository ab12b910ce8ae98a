"""Public drafters and targets in their natural pairs: no error, and a warning only where it is deserved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from static import targets
from static.build import Model, drafter, eagle3_8b, llama_8b
from static.judging import judged
from static.makers import gpt_oss_v3, kimi_drafter, mla_drafter, speculators

SHORT, THETA, MROPE = "TDM-MAX-POSITION-SHORTER", "TDM-ROPE-THETA-DIFFERS", "TDM-MROPE-MISSING"
CLASS, IDS = "LlamaForCausalLMEagle3", "eagle_aux_hidden_state_layer_ids"
Maker = Callable[[], Model]


class Published(NamedTuple):
    name: str
    target: Maker
    drafter: Maker
    warnings: set[str] = set()
    engines: tuple[str, ...] = ("any",)


def specforge(
    hidden: int,
    wide: int,
    heads: int,
    kv: int,
    head_dim: int | None,
    vocabulary: int,
    draft: int,
    theta: float | None,
    positions: int,
    **more: Any,
) -> Maker:
    """A draft config of sgl-project/SpecForge configs/."""
    fields: dict[str, Any] = {
        "architectures": [CLASS],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "num_hidden_layers": 1,
        "vocab_size": vocabulary,
        "draft_vocab_size": draft,
        "max_position_embeddings": positions,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    if head_dim is not None:
        fields["head_dim"] = head_dim
    if theta is not None:
        fields |= {"rope_theta": theta, "rope_scaling": None}
    return lambda: drafter(**(fields | more))


def with_norms(make: Maker) -> Maker:
    """EAGLE-3.1: one norm for each state."""

    def made() -> Model:
        model = make()
        for i in range(3):
            model.put(f"fc_norm.{i}.weight", [model.config["hidden_size"]])
        return model

    return made


def outputs(ids: list[int]) -> dict[str, Any]:
    return {"eagle_config": {IDS: ids, "use_aux_hidden_state": True}}


SGLANG, BOTH = ("any", "sglang@0.5.23"), ("any", "sglang@0.5.23", "vllm@0.33.0")
YARN_40 = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
SPECFORGE = [
    Published(
        "deepseek-v2-lite",
        targets.deepseek_v2_lite,
        specforge(2048, 10944, 16, 16, 128, 102400, 32000, 10000, 163840, rope_scaling=YARN_40),
        set(),
        BOTH,
    ),
    Published(
        "deepseek-v3-671b",
        targets.deepseek_v3,
        specforge(7168, 40960, 56, 8, None, 129280, 32000, None, 163840, torch_dtype="float16", **outputs([1, 29, 57])),
        set(),
        BOTH,
    ),
    Published(
        "gemma3-1b",
        targets.gemma3_1b,
        specforge(1152, 6912, 4, 1, 256, 262144, 32000, 1e6, 32768, target_model_type="gemma3_text"),
        set(),
        SGLANG,
    ),
    Published(
        "ling-flash-2.0",
        targets.ling_flash,
        specforge(4096, 14336, 32, 8, None, 157184, 32000, None, 32768),
        set(),
        SGLANG,
    ),
    Published(
        "llama3-70B",
        targets.llama_70b,
        specforge(
            8192,
            28672,
            64,
            8,
            128,
            128256,
            32000,
            500000,
            4096,
            torch_dtype="float16",
            rope_scaling={"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 4096},
        ),
        {SHORT},
        BOTH,
    ),
    Published(
        "llama3-8B",
        llama_8b,
        specforge(4096, 14336, 32, 8, None, 128256, 32000, None, 2048, torch_dtype="float16"),
        {SHORT},
        BOTH,
    ),
    Published(
        "llama4-scout-17B-16E",
        targets.llama4_scout,
        specforge(5120, 32768, 40, 8, None, 202048, 32000, None, 2048),
        {SHORT},
        BOTH,
    ),
    Published(
        "longcat-flash",
        targets.longcat_flash,
        specforge(6144, 12288, 64, 16, 128, 131072, 131072, 1e7, 131072),
        set(),
        SGLANG,
    ),
    Published(
        "phi4",
        targets.phi4,
        specforge(5120, 17920, 40, 10, None, 100352, 32000, 250000, 16384, model_type="phi3"),
        set(),
        BOTH,
    ),
    Published(
        "qwen2-5-vl-7b",
        targets.qwen25_vl_7b,
        specforge(
            3584,
            18944,
            28,
            4,
            128,
            152064,
            32000,
            1e6,
            8192,
            rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        ),
        {SHORT},
        BOTH,
    ),
    Published(
        "qwen2.5-0.5b", targets.qwen25_05b, specforge(896, 4864, 14, 2, None, 151936, 16000, 1e6, 32768), set(), BOTH
    ),
    Published(
        "qwen2.5-7b", targets.qwen25_7b, specforge(3584, 18944, 28, 4, None, 152064, 16000, 1e6, 32768), {SHORT}, BOTH
    ),
    Published(
        "qwen2.5-vl-32b",
        targets.qwen25_vl_32b,
        specforge(
            5120,
            18944,
            28,
            4,
            128,
            152064,
            32000,
            1e6,
            8192,
            rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        ),
        {SHORT},
        BOTH,
    ),
    Published(
        "qwen3-235B-A22B",
        targets.qwen3_235b,
        specforge(4096, 24576, 64, 4, 128, 151936, 32000, 1e6, 40960, **outputs([1, 46, 90])),
        set(),
        BOTH,
    ),
    Published(
        "qwen3-30B-A3B 3.1",
        targets.qwen3_30b,
        with_norms(specforge(2048, 12288, 32, 4, 128, 151936, 32000, 1e6, 2048, fc_norm=True, norm_output=True)),
        {SHORT},
        BOTH,
    ),
    Published(
        "qwen3-30B-A3B", targets.qwen3_30b, specforge(2048, 12288, 32, 4, 128, 151936, 32000, 1e6, 2048), {SHORT}, BOTH
    ),
    Published(
        "qwen3-32b", targets.qwen3_32b, specforge(5120, 25600, 64, 8, 128, 151936, 32000, 1e6, 40960), set(), BOTH
    ),
    Published("qwen3-4b", targets.qwen3_4b, specforge(2560, 9728, 32, 8, 128, 151936, 32000, 1e6, 40960), set(), BOTH),
    Published(
        "qwen3-8b",
        targets.qwen3_8b,
        specforge(4096, 12288, 32, 8, 128, 151936, 32000, 1e6, 40960, max_window_layers=36, sliding_window=None),
        set(),
        BOTH,
    ),
    Published(
        "qwen3-8b-peagle",
        targets.qwen3_8b,
        specforge(
            4096, 12288, 32, 8, 128, 151936, 32000, 1e6, 40960, architectures=["PEagleDraftModel"], num_hidden_layers=4
        ),
        {"TDM-MASK-HIDDEN-MISSING"},
        ("any", "vllm@0.33.0"),
    ),
    Published(
        "qwen3-coder-30B",
        targets.qwen3_30b,
        specforge(2048, 12288, 32, 4, 128, 151936, 32000, 1e6, 2048),
        {SHORT},
        BOTH,
    ),
    Published(
        "qwen3-coder-480B",
        targets.qwen3_coder_480b,
        specforge(6144, 16384, 96, 8, 128, 151936, 32000, 1e6, 262144),
        {THETA},
        BOTH,
    ),
    Published(
        "qwen3-coder-next",
        targets.qwen3_next,
        specforge(2048, 8192, 16, 4, 128, 151936, 32000, 1e6, 4096),
        {SHORT, THETA},
        BOTH,
    ),
    Published(
        "qwen3-next-80b",
        targets.qwen3_next,
        specforge(2048, 16384, 16, 2, 256, 151936, 32000, 1e7, 262144),
        set(),
        BOTH,
    ),
    Published(
        "qwen3.5-35b", targets.qwen35_35b, specforge(2048, 16384, 16, 2, 256, 248320, 32000, 1e7, 262144), {MROPE}, BOTH
    ),
    Published(
        "qwq-32B",
        targets.qwq_32b,
        specforge(5120, 27648, 40, 8, None, 152064, 32000, 1e6, 40960, model_type="qwen2"),
        set(),
        BOTH,
    ),
    Published(
        "gpt-oss-120B",
        targets.gpt_oss_120b,
        specforge(2880, 17280, 64, 8, 64, 201088, 32000, 150000, 131072, **outputs([1, 17, 33])),
        set(),
        BOTH[:2],
    ),
    Published(
        "gpt-oss-20B",
        targets.gpt_oss_20b,
        specforge(2880, 17280, 64, 8, 64, 201088, 32000, 150000, 131072, **outputs([1, 11, 21])),
        set(),
        BOTH[:2],
    ),
    Published("eagle traineagle3", llama_8b, eagle3_8b, {SHORT}, ("any", "vllm@0.33.0")),
]


def gpt_oss_speculator() -> Model:
    layer = {
        "model_type": "llama",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_hidden_layers": 1,
        "vocab_size": 201088,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
    }
    model = drafter(
        "layers.0.",
        architectures=["Eagle3DraftModel"],
        speculators_model_type="eagle3",
        draft_vocab_size=64000,
        norm_before_fc=True,
        norm_before_residual=True,
        transformer_layer_config=layer,
    )
    model.put("input_norm.weight", [8640])
    model.put("embed_tokens.weight", [201088, 2880])
    return model


def speculator(
    hidden: int, wide: int, heads: int, kv: int, head_dim: int, vocabulary: int, positions: int, **more: Any
) -> Maker:
    layer = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "num_hidden_layers": 1,
        "vocab_size": vocabulary,
        "rope_theta": 1000000.0,
        "max_position_embeddings": positions,
    }
    fields: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 32000,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "target_hidden_size": None,
        "transformer_layer_config": layer,
    }
    return lambda: drafter("layers.0.", **(fields | more))


def without_aux(ids: list[int] | None = None) -> Model:
    model = gpt_oss_v3([1, 17, 32])
    model.config.pop("norm_before_fc")
    model.drop("input_norm.weight")
    if ids is None:
        model.set(eagle_config={"use_aux_hidden_state": False})
        model.drop("fc.weight")
    return model


def nebius() -> Model:
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
    return drafter(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=2880,
        intermediate_size=11520,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=201088,
        draft_vocab_size=64000,
        truncated_vocab_size=64000,
        rope_theta=150000,
        rope_scaling=yarn,
        max_position_embeddings=131072,
    )


def kimi_k2_thinking() -> Model:
    return mla_drafter(eagle_config={IDS: [1, 29, 57]})


VLLM = ("any", "vllm@0.33.0")
HUB = [
    Published("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", llama_8b, eagle3_8b, {SHORT}, VLLM),
    Published("lmsys/EAGLE3-LLaMA3.1 repack", llama_8b, lambda: eagle3_8b(architectures=[CLASS]), {SHORT}, BOTH),
    Published(
        "lightseekorg/kimi-k2.5-eagle3",
        targets.kimi_k25,
        lambda: kimi_drafter(
            rope_theta=1e6, rope_scaling=None, max_window_layers=36, mlp_bias=False, attention_bias=False
        ),
        {THETA},
        SGLANG,
    ),
    Published(
        "RedHatAI/Qwen3-8B-speculator.eagle3", targets.qwen3_8b, lambda: speculators("llama", False), set(), VLLM
    ),
    Published(
        "RedHatAI/Qwen3-32B-speculator.eagle3",
        targets.qwen3_32b,
        speculator(5120, 25600, 64, 8, 128, 151936, 40960),
        set(),
        VLLM,
    ),
    Published("RedHatAI/gpt-oss-20b-speculator.eagle3", targets.gpt_oss_20b, gpt_oss_speculator, {THETA}, VLLM),
    Published(
        "RedHatAI/gemma-4-31B-it-speculator.eagle3",
        targets.gemma4_31b,
        speculator(
            5376, 21504, 32, 16, 256, 262144, 262144, dtype="bfloat16", tie_word_embeddings=False, **{IDS: [2, 30, 57]}
        ),
        set(),
        VLLM,
    ),
    Published("nebius/EAGLE3-gpt-oss-20b", targets.gpt_oss_20b, nebius, set(), VLLM),
    Published(
        "nvidia/gpt-oss-120b-Eagle3-long-context", targets.gpt_oss_120b, lambda: without_aux([1, 17, 32]), set(), BOTH
    ),
    Published("nvidia/gpt-oss-120b-Eagle3-v2", targets.gpt_oss_120b, without_aux, set(), BOTH),
    Published(
        "nvidia/gpt-oss-120b-Eagle3-v3",
        targets.gpt_oss_120b,
        lambda: gpt_oss_v3([24, 30, 36]),
        {"TDM-LAYER-ID-LAST"},
        ("any",),
    ),
    Published(
        "nvidia/gpt-oss-120b-Eagle3-v3",
        targets.gpt_oss_120b,
        lambda: gpt_oss_v3([24, 30, 36]),
        set(),
        ("sglang@0.5.23",),
    ),
    Published(
        "AngelSlim/Qwen3-4B_eagle3",
        targets.qwen3_4b,
        specforge(2560, 9728, 32, 8, 128, 151936, 32000, 1e6, 40960, architectures=["Eagle3LlamaForCausalLM"]),
        set(),
        VLLM,
    ),
    Published(
        "AngelSlim/Qwen3-8B_eagle3",
        targets.qwen3_8b,
        specforge(4096, 12288, 32, 8, 128, 151936, 32000, None, 40960, architectures=["Eagle3LlamaForCausalLM"]),
        set(),
        VLLM,
    ),
    Published(
        "Qwen3-14B-EAGLE3",
        targets.qwen3_14b,
        specforge(5120, 17408, 40, 8, 128, 151936, 32000, 1e6, 40960, architectures=["Qwen3ForCausalLM"]),
        {"TDM-ARCHITECTURE-NAME"},
        ("any",),
    ),
    Published(
        "nvidia/Llama-4-Maverick-17B-128E-Eagle3",
        targets.llama4_maverick,
        specforge(5120, 32768, 40, 8, 128, 202048, 202048, 500000.0, 1048576, **outputs([1, 23, 44])),
        set(),
        BOTH,
    ),
    Published("nvidia/Kimi-K2.6-Eagle3 with its head", targets.kimi_k25, kimi_k2_thinking, set(), BOTH),
    Published(
        "EAGLE3 for Qwen3.5-9B",
        targets.qwen35_9b,
        specforge(4096, 12288, 32, 8, 128, 248320, 32000, None, 262144, rope_theta=None),
        {MROPE},
        BOTH,
    ),
    Published(
        "gpt-oss-120b full vocabulary",
        targets.gpt_oss_120b,
        specforge(
            2880,
            17280,
            64,
            8,
            64,
            201088,
            201088,
            500000,
            65536,
            architectures=["LlamaForCausalLM"],
            rope_scaling={"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 8192},
            **{IDS: [1, 17, 32]},
        ),
        {SHORT, THETA, "TDM-LAYER-IDS-CONVENTION"},
        ("any",),
    ),
    Published(
        "thoughtworks/Qwen3-Coder-Next-Eagle3",
        targets.qwen3_next,
        specforge(2048, 8192, 16, 4, 128, 151936, 32000, 1e6, 4096, **outputs([3, 23, 43])),
        {SHORT, THETA},
        ("any", "sglang@0.5.23"),
    ),
    Published(
        "AQ-MedAI/Kimi-K2-Instruct-eagle3",
        targets.kimi_k2,
        specforge(7168, 18432, 64, 64, 128, 163840, 32000, 1e6, 131072, **outputs([2, 30, 58])),
        {THETA},
        ("sglang@0.5.23",),
    ),
    Published(
        "k-l-lambda/Kimi-K2.5-Eagle3",
        targets.kimi_k25,
        lambda: mla_drafter(eagle_config={IDS: [2, 30, 58]}),
        set(),
        ("sglang@0.5.23",),
    ),
]

CASES = [(each, engine) for each in [*SPECFORGE, *HUB] for engine in each.engines]


@pytest.mark.parametrize(("published", "engine"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_public_pair_is_not_flagged(tmp_path: Path, published: Published, engine: str) -> None:
    seen = judged(tmp_path, published.target(), published.drafter(), "--engine", engine)
    assert seen.errors == [], seen.text
    assert seen.codes == published.warnings, seen.text


def test_a_target_that_leaves_sizes_to_its_class_is_not_compared_with_nothing(tmp_path: Path) -> None:
    head = specforge(5376, 21504, 32, 16, 128, 262208, 32000, 1e6, 131072)()
    seen = judged(tmp_path, targets.gemma3_27b(), head, "--engine", "any")
    assert seen.verdict == "Fits"
    assert "default of gemma3_text" in seen.text
    assert "262208" in seen.text


@pytest.mark.parametrize("level", ["top", "vision_config"])
def test_the_text_config_wins_over_a_decoy(tmp_path: Path, level: str) -> None:
    target = targets.llama4_maverick()
    (target.config if level == "top" else target.config["vision_config"])["vocab_size"] = 32000
    head = specforge(5120, 32768, 40, 8, 128, 202048, 32000, 500000.0, 1048576)()
    assert judged(tmp_path / "a", target, head).verdict == "Fits"
    other = specforge(5120, 32768, 40, 8, 128, 32000, 16000, 500000.0, 1048576)()
    seen = judged(tmp_path / "b", target, other)
    assert seen.errors == ["TDM-VOCABULARY-SIZE"]
    assert "text_config.vocab_size" in seen.text


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in dir(targets)
        if name[0].islower() and name.startswith(("llama", "qwen", "gpt", "deep", "kimi", "gemma", "mistral"))
    ],
)
def test_a_target_given_as_its_own_drafter(tmp_path: Path, name: str) -> None:
    make = getattr(targets, name)
    if make.__code__.co_argcount:
        return
    folder = make().write(tmp_path / "target")
    from static.judging import run

    seen = run(folder, folder)
    assert (seen.verdict, seen.errors) == ("DoesNotFit", ["TDM-DRAFTER-IS-TARGET"])
