"""Static checks of a pair, and what an engine will do with it."""

from tandem_worker.checks.catalogue import run_checks, same_checkpoint
from tandem_worker.checks.engine_resolution import EngineResolution, Origin, Use, resolve_for
from tandem_worker.checks.pair import Pair
from tandem_worker.checks.pairing import Pairing
from tandem_worker.checks.resolution import (
    drafter_parameters,
    dropped_tensors,
    optional_parameters,
    parameter_name,
    resolve,
    shared_parameters,
)

__all__ = [
    "EngineResolution",
    "Origin",
    "Pair",
    "Pairing",
    "Use",
    "drafter_parameters",
    "dropped_tensors",
    "optional_parameters",
    "parameter_name",
    "resolve",
    "resolve_for",
    "run_checks",
    "same_checkpoint",
    "shared_parameters",
]
