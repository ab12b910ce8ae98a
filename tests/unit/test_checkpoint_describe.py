"""What a config says, as the builtin engine reads it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem_worker.checkpoint import CheckpointError, Drafter, Target, open_checkpoint, read_drafter, read_target
from tandem_worker.contract import Verdict
from unit.pairs import LAYERS, TINY_PAIR, drafter_files, target_files

IDS = "eagle_aux_hidden_state_layer_ids"


def read_pair(folder: Path, target: dict[str, Any] | None = None, **drafter: Any) -> tuple[Target, Drafter]:
    """Described with some fields of the configs replaced; None removes a field."""
    ours, theirs = target_files(), drafter_files()
    ours.config |= target or {}
    theirs.config |= drafter
    for files in (ours, theirs):
        files.config = {name: value for name, value in files.config.items() if value is not None}
    described = read_target(open_checkpoint(ours.write(folder / "target")))
    return described, read_drafter(open_checkpoint(theirs.write(folder / "drafter")), described)


def refusal(folder: Path, target: dict[str, Any] | None = None, **drafter: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_pair(folder, target, **drafter)
    return caught.value


# --- layer ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "captured", "declared_at"),
    [
        ({IDS: [2, 4, 5]}, (2, 4, 5), IDS),
        ({IDS: [5, 2, 4]}, (5, 2, 4), IDS),
        ({IDS: [0, 4, LAYERS]}, (0, 4, 8), IDS),
        ({IDS: None, "eagle_config": {IDS: [1, 3, 4]}}, (2, 4, 5), f"eagle_config.{IDS}"),
        ({IDS: None, "eagle_config": {IDS: [-1, 3, LAYERS - 1]}}, (0, 4, 8), f"eagle_config.{IDS}"),
        ({IDS: [2, 4, 5], "eagle_config": {IDS: [1, 3, 4]}}, (2, 4, 5), IDS),
        ({IDS: None}, (2, LAYERS // 2, LAYERS - 3), "default"),
        ({IDS: None, "eagle_config": None}, (2, 4, 5), "default"),
        ({IDS: None, "eagle_config": {}}, (2, 4, 5), "default"),
        ({IDS: None, "eagle_config": {IDS: None}}, (2, 4, 5), "default"),
    ],
)
def test_top_level_ids_are_capture_indexes_and_nested_ones_layer_outputs(
    tmp_path: Path, fields: dict[str, Any], captured: tuple[int, ...], declared_at: str
) -> None:
    _, drafter = read_pair(tmp_path, **fields)
    assert drafter.capture_indexes == captured
    assert drafter.declared_at == declared_at


def test_the_tiny_pair_captures_what_it_was_trained_on() -> None:
    target = read_target(open_checkpoint(TINY_PAIR / "target"))
    for name in ("drafter", "drafter-foreign"):
        assert read_drafter(open_checkpoint(TINY_PAIR / name), target).capture_indexes == (2, 4, 5)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({IDS: []}, "TDM-LAYER-IDS-COUNT"),
        ({IDS: [2, 4]}, "TDM-LAYER-IDS-COUNT"),
        ({IDS: [1, 2, 4, 5]}, "TDM-LAYER-IDS-COUNT"),
        ({IDS: [-1, 2, 4]}, "TDM-LAYER-IDS-OUT-OF-RANGE"),
        ({IDS: [2, 4, LAYERS + 1]}, "TDM-LAYER-IDS-OUT-OF-RANGE"),
        ({IDS: None, "eagle_config": {IDS: [-2, 2, 4]}}, "TDM-LAYER-IDS-OUT-OF-RANGE"),
        ({IDS: None, "eagle_config": {IDS: [2, 4, LAYERS]}}, "TDM-LAYER-IDS-OUT-OF-RANGE"),
        ({IDS: [True, 2, 4]}, "TDM-LAYER-IDS-MALFORMED"),
        ({IDS: [2.0, 4, 5]}, "TDM-LAYER-IDS-MALFORMED"),
        ({IDS: ["2", 4, 5]}, "TDM-LAYER-IDS-MALFORMED"),
        ({IDS: "2,4,5"}, "TDM-LAYER-IDS-MALFORMED"),
        ({IDS: {"0": 2}}, "TDM-LAYER-IDS-MALFORMED"),
        ({IDS: [2, 4, 5], "eagle_config": {IDS: [2, 4, 5]}}, "TDM-LAYER-IDS-DISAGREE"),
    ],
)
def test_layer_ids_that_no_engine_could_mean_do_not_fit(tmp_path: Path, fields: dict[str, Any], code: str) -> None:
    failure = refusal(tmp_path, **fields)
    assert failure.finding.code == code
    assert failure.verdict is Verdict.DOES_NOT_FIT


def test_the_default_needs_a_target_that_is_deep_enough(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"num_hidden_layers": 2}, **{IDS: None}).finding.code == "TDM-LAYER-IDS-OUT-OF-RANGE"


# --- the rest of the configs -----------------------------------------------------------------------------------------


def test_fields_that_may_be_absent(tmp_path: Path) -> None:
    target, drafter = read_pair(
        tmp_path,
        {"head_dim": None, "num_key_value_heads": None, "rope_theta": None, "torch_dtype": None, "eos_token_id": None},
        norm_before_residual=None,
        draft_vocab_size=None,
        target_hidden_size=None,
    )
    assert (target.head_dim, target.kv_heads, target.rope_theta, target.eos_token_ids) == (4, 4, 10000.0, ())
    assert target.dtype == "float32"  # as its embedding is stored
    assert drafter.norm_before_residual is False
    assert drafter.draft_vocab_size == drafter.vocab_size == 64
    assert drafter.target_hidden_size == target.hidden_size


@pytest.mark.parametrize(
    ("fields", "theta"),
    [
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}}, 1000000.0),
        ({"rope_theta": 1000000}, 1000000.0),
        ({"rope_theta": 1000000, "rope_parameters": {"rope_theta": 1000000}}, 1000000.0),
        ({"rope_theta": 500000.0, "rope_scaling": {"type": "default"}}, 500000.0),
    ],
)
def test_theta_is_found_where_old_and_new_configs_write_it(
    tmp_path: Path, fields: dict[str, Any], theta: float
) -> None:
    assert read_pair(tmp_path, fields)[0].rope_theta == theta


def test_what_ends_a_text_comes_from_the_generation_config(tmp_path: Path) -> None:
    target = target_files()
    folder = target.write(tmp_path / "target")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    assert read_target(open_checkpoint(folder)).eos_token_ids == (1, 7)


@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Llama4ForConditionalGeneration", ""])
def test_a_target_of_an_unknown_architecture_is_not_judged(tmp_path: Path, architecture: str) -> None:
    failure = refusal(tmp_path, {"architectures": [architecture]})
    assert failure.verdict is Verdict.COULD_NOT_CHECK
    assert failure.finding.code == "TDM-ARCHITECTURE-NOT-SUPPORTED"
    assert "LlamaForCausalLM, MistralForCausalLM" in failure.finding.expected


def test_a_mistral_target_is_read_unless_it_slides_its_window(tmp_path: Path) -> None:
    mistral: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "sliding_window": None}
    assert read_pair(tmp_path, mistral)[0].architecture == "MistralForCausalLM"
    assert refusal(tmp_path, mistral | {"sliding_window": 64}).finding.where == "sliding_window"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope_scaling", {"rope_type": "longrope", "factor": 8.0}),
        ("rope_scaling", {"factor": 8.0}),
        ("rope_parameters", {"rope_type": "dynamic", "rope_theta": 10000.0}),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
    ],
)
def test_a_setting_that_the_engine_would_ignore_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    of_target = refusal(tmp_path / "a", {field: value})
    assert (of_target.finding.where, of_target.verdict) == (field, Verdict.COULD_NOT_CHECK)
    of_drafter = refusal(tmp_path / "b", **{field: value})
    assert (of_drafter.finding.where, of_drafter.verdict) == (field, Verdict.DOES_NOT_FIT)


@pytest.mark.parametrize(
    "fields",
    [
        {"parallel_drafting": True},
        {"quantization_config": {"quant_method": "fp8"}},
        {"eagle_config": {"use_aux_hidden_state": False}},
        {"architectures": ["PEagleDraftModel"]},
    ],
)
def test_a_drafter_of_another_kind_does_not_fit(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert refusal(tmp_path, **fields).verdict is Verdict.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("hidden_size", None, "TDM-CONFIG-FIELD-MISSING"),
        ("hidden_size", "16", "TDM-CONFIG-FIELD-INVALID"),
        ("hidden_size", True, "TDM-CONFIG-FIELD-INVALID"),
        ("hidden_size", 0, "TDM-CONFIG-FIELD-INVALID"),
        ("hidden_size", 10**400, "TDM-CONFIG-FIELD-INVALID"),
        ("rope_theta", 10**400, "TDM-CONFIG-FIELD-INVALID"),
        ("rms_norm_eps", float("nan"), "TDM-CONFIG-FIELD-INVALID"),
        ("architectures", "LlamaForCausalLM", "TDM-CONFIG-FIELD-INVALID"),
        ("num_key_value_heads", 3, "TDM-HEADS-IMPOSSIBLE"),
        ("head_dim", 5, "TDM-HEADS-IMPOSSIBLE"),
    ],
)
def test_a_broken_field_is_named(tmp_path: Path, field: str, value: object, code: str) -> None:
    finding = refusal(tmp_path, {field: value}).finding
    assert finding.code == code
    assert finding.file.endswith("target/config.json")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 100) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([IDS, "rope_theta", "x"]), inner),
    max_leaves=6,
)
FIELDS = sorted({*target_files().config, *drafter_files().config, "eagle_config", "rope_parameters", "rope_scaling"})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.dictionaries(st.sampled_from(FIELDS), ANY_JSON, min_size=1, max_size=3), st.booleans())
def test_any_value_in_any_field_gives_a_description_or_a_refusal(
    tmp_path: Path, fields: dict[str, Any], of_target: bool
) -> None:
    try:
        target, drafter = read_pair(tmp_path, fields) if of_target else read_pair(tmp_path, **fields)
    except CheckpointError as failure:
        json.dumps(asdict(failure.finding))
    else:
        assert all(0 <= i <= target.layers for i in drafter.capture_indexes)
