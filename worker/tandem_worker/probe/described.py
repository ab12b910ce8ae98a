"""The drafter's description for the models, from a config of any dialect.

The builtin engine's own reading refuses what it would not serve: ids counted in a way that it does not know, a state
taken without fc. The probe looks at such drafters as the engine that will run sees them, so everything that a wiring
says is taken out of the config first and read from the wiring.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tandem_worker.checkpoint import Drafter, Target, read_drafter
from tandem_worker.checkpoint.config import Config
from tandem_worker.checkpoint.declared import IDS
from tandem_worker.checks.pairing import Pairing

LAYERS = ("transformer_layer_config", "text_config", "model")
WIRED = (IDS, "num_aux_hidden_states", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output", "speculators_config")


def describe_drafter(pairing: Pairing, target: Target, states: int) -> Drafter:
    """`states`: fc's slots. Raises CheckpointError for settings that the models do not compute."""
    checkpoint, vocabulary = pairing.drafter.checkpoint, pairing.drafter.vocabulary
    values = _flat(checkpoint.config)
    values["draft_vocab_size"] = vocabulary
    config = Config(values, checkpoint.config.file)
    described = read_drafter(replace(checkpoint, config=config), target)
    width = pairing.resolution.target_width or target.hidden_size
    return replace(described, capture_indexes=tuple(range(max(states, 1))), target_hidden_size=width)


def _flat(config: Config) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for level in (config, *(config.nested(name) for name in LAYERS if config.has(name))):
        values |= {name: level.raw(name) for name in level.names() if name not in WIRED}
    values["architectures"] = config.raw("architectures")
    for name in (*LAYERS, "eagle_config"):
        values.pop(name, None)
    return values
