"""Any value in any field, for every engine: a verdict or a refusal, never a fault of the checks."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_worker.checkpoint import CheckpointError
from tandem_worker.checks.judge import judge, open_pairing
from tandem_worker.engines import NEUTRAL, load
from unit.pairs import drafter_files, target_files

IDS = "eagle_aux_hidden_state_layer_ids"
ENGINES = [load(name) for name in (NEUTRAL, "builtin", "sglang@0.5.11", "sglang@0.5.23", "vllm@0.33.0", "vllm@9")]
NAMES = (
    IDS, "rope_theta", "rope_type", "type", "factor", "mrope_section", "quant_method", "use_aux_hidden_state",
    "norm_before_fc", "hidden_size", "vocab_size", "num_hidden_layers", "model_type", "architectures",
)  # fmt: skip
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 100) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted(
    {
        *target_files().config, *drafter_files().config, *NAMES, "eagle_config", "rope_parameters", "rope_scaling",
        "text_config", "transformer_layer_config", "model", "speculators_model_type", "target_hidden_size",
        "num_aux_hidden_states", "fc_norm", "norm_output", "parallel_drafting", "quantization_config", "layer_types",
        "full_attention_interval", "q_lora_rank", "num_nextn_predict_layers", "attention_bias", "bias",
    }
)  # fmt: skip
CONFIGS = st.dictionaries(st.sampled_from(FIELDS), ANY_JSON, max_size=3)
NAMES_OF_TENSORS = st.sampled_from(sorted(drafter_files().tensors))


@settings(max_examples=150)
@given(CONFIGS, CONFIGS, st.sets(NAMES_OF_TENSORS, max_size=3), st.sampled_from(["", "model.", "layers.0.", "x."]))
def test_any_pair_gets_a_verdict(
    of_target: dict[str, Any], of_drafter: dict[str, Any], without: set[str], prefix: str
) -> None:
    target, drafter = target_files(), drafter_files()
    target.config |= of_target
    drafter.config |= of_drafter
    drafter.tensors = {prefix + name: values for name, values in drafter.tensors.items() if name not in without}
    with tempfile.TemporaryDirectory() as folder:
        try:
            pairing = open_pairing(
                target.write(Path(folder) / "target"), drafter.write(Path(folder) / "drafter"), ENGINES[0]
            )
        except CheckpointError:
            return
        for engine in ENGINES:
            judged = judge(replace(pairing, engine=engine))
            failed = [finding.message for finding in judged.findings if finding.code == "TDM-VALIDATOR-FAILED"]
            assert not failed, (engine.title, failed)
            assert judged.summary
