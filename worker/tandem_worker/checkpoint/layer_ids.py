"""Which residual streams the builtin engine captures for a drafter.

Public drafters write the same three streams in two ways (SGLang and SpecForge count the layer a stream *leaves*; vLLM
counts the layer it *enters*). The builtin engine tells them apart by where the list stands:

- `eagle_aux_hidden_state_layer_ids` at top level holds capture indexes: i is the stream that enters layer i, 0 the
  embedding, n the stream after the last of n layers;
- the same key inside `eagle_config` holds layers whose output is captured: capture index = id + 1, and -1 is the
  embedding;
- without either the capture indexes are [2, n // 2, n - 3].

The order is kept: it is the order of the slots of `fc`. Two lists that mean different streams are an error.
"""

from __future__ import annotations

from typing import NamedTuple

from tandem_worker.checkpoint.config import Config
from tandem_worker.checkpoint.errors import CheckpointError, error
from tandem_worker.finding import Finding, Verdict

FIELD = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
STATES = 3


class LayerIds(NamedTuple):
    declared: tuple[int, ...] | None
    declared_at: str
    capture_indexes: tuple[int, ...]


def read_layer_ids(config: Config, target_layers: int) -> LayerIds:
    """Raises CheckpointError (DoesNotFit) for a list that is malformed, out of range or at odds with the other one."""
    top, nested = config.layer_ids(FIELD), config.nested(NESTED).layer_ids(FIELD)
    readings: list[LayerIds] = []
    if top is not None:
        readings.append(LayerIds(top, FIELD, top))
    if nested is not None:
        readings.append(LayerIds(nested, f"{NESTED}.{FIELD}", tuple(i + 1 for i in nested)))
    if not readings:
        default = (2, target_layers // 2, target_layers - 3)
        readings.append(LayerIds(None, "default", default))
    for reading in readings:
        _check(reading, config, target_layers)
    if len({reading.capture_indexes for reading in readings}) > 1:
        raise CheckpointError(_disagree(config, *readings), verdict=Verdict.DOES_NOT_FIT)
    return readings[0]


def as_outputs(capture_indexes: tuple[int, ...]) -> list[int]:
    """The list to write inside `eagle_config` for these capture indexes."""
    return [i - 1 for i in capture_indexes]


def _check(ids: LayerIds, config: Config, layers: int) -> None:
    lowest = -1 if ids.declared_at.startswith(NESTED) else 0
    allowed = f"{lowest} to {layers + lowest} for a target of {layers} layers"
    shown = list(ids.declared if ids.declared is not None else ids.capture_indexes)
    if len(shown) != STATES:
        problem = f"has {len(shown)} layer ids, {shown}; the builtin engine fuses {STATES} states"
        expected = f"{STATES} ids"
    elif not all(0 <= i <= layers for i in ids.capture_indexes):
        problem = f"has layer ids out of range, {shown}; allowed are {allowed}"
        expected = allowed
    else:
        return
    action = f"Write the three capture indexes of the training run as {FIELD} at top level of config.json."
    finding = error(
        "TDM-LAYER-IDS-OUT-OF-RANGE" if len(shown) == STATES else "TDM-LAYER-IDS-COUNT",
        f"{ids.declared_at} {problem}.",
        file=config.file,
        where=ids.declared_at,
        found=shown,
        expected=expected,
        action=action,
    )
    raise CheckpointError(finding, verdict=Verdict.DOES_NOT_FIT)


def _disagree(config: Config, top: LayerIds, nested: LayerIds) -> Finding:
    return error(
        "TDM-LAYER-IDS-DISAGREE",
        f"The two lists of layer ids name different streams: {list(top.capture_indexes)} at top level, "
        f"{list(nested.capture_indexes)} inside {NESTED} (written {list(nested.declared or ())}, layer outputs).",
        file=config.file,
        where=FIELD,
        found=f"{list(top.declared or ())} and {list(nested.declared or ())}",
        expected=f"{list(top.declared or ())} and {as_outputs(top.capture_indexes)}, or one list only",
        action="Keep the list that says what the training run captured; remove the other.",
    )
