"""Config values of the wrong type are findings with their path, in target and drafter, at every level of nesting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from static import targets
from static.build import eagle3_8b, llama_8b
from static.judging import judged
from static.makers import speculators

WRONG: list[Any] = ["4096", 4096.5, True, -1, 0, [4096], {"a": 1}, 10**30]


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "num_attention_heads", "max_position_embeddings"])
def test_a_wrong_value_in_the_drafter(tmp_path: Path, field: str, value: Any) -> None:
    drafter = eagle3_8b()
    drafter.set(**{field: value})
    seen = judged(tmp_path, llama_8b(), drafter)
    assert seen.verdict == "DoesNotFit"
    assert "TDM-CONFIG-FIELD-INVALID" in seen.errors
    assert f'"where": "{field}"' in seen.text


@pytest.mark.parametrize("value", ["61", 61.0, True, None], ids=repr)
def test_a_wrong_value_in_a_nested_target(tmp_path: Path, value: Any) -> None:
    target = targets.llama4_maverick()
    target.config["text_config"]["num_hidden_layers"] = value
    seen = judged(tmp_path, target, eagle3_8b(hidden_size=5120, vocab_size=202048))
    assert seen.verdict == "DoesNotFit"
    assert "num_hidden_layers" in seen.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tie_word_embeddings", "false"),
        ("tie_word_embeddings", 0),
        ("rope_theta", "500000"),
        ("rope_scaling", "llama3"),
        ("torch_dtype", 16),
        ("architectures", "LlamaForCausalLM"),
        ("architectures", [1]),
        ("eagle_config", []),
        ("draft_vocab_size", "32000"),
        ("draft_vocab_size", 32000.0),
        ("quantization_config", "fp8"),
        ("norm_before_residual", "true"),
        ("eagle_config", {"use_aux_hidden_state": "yes"}),
    ],
)
def test_other_wrong_types(tmp_path: Path, field: str, value: Any) -> None:
    drafter = eagle3_8b()
    drafter.set(**{field: value})
    seen = judged(tmp_path, llama_8b(), drafter)
    assert seen.verdict == "DoesNotFit"
    assert "TDM-CONFIG-FIELD-INVALID" in seen.errors
    assert field in seen.text


def test_a_wrong_value_inside_a_speculators_config(tmp_path: Path) -> None:
    drafter = speculators("llama", False)
    drafter.config["transformer_layer_config"]["vocab_size"] = "151936"
    seen = judged(tmp_path, targets.qwen3_8b(), drafter)
    assert "transformer_layer_config.vocab_size" in seen.text
    assert seen.verdict == "DoesNotFit"


@pytest.mark.parametrize("field", ["head_dim", "rope_theta", "draft_vocab_size", "eagle_config", "rope_scaling"])
def test_null_is_absent(tmp_path: Path, field: str) -> None:
    drafter = eagle3_8b(max_position_embeddings=131072)
    drafter.set(draft_vocab_size=32000)
    if field == "draft_vocab_size":
        drafter = eagle3_8b(max_position_embeddings=131072, draft_vocab_size=None)
    drafter.set(**{field: None})
    assert judged(tmp_path, llama_8b(), drafter).verdict == "Fits"
