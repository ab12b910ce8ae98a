"""Static checks of a pair, and what the builtin engine will do with it."""

from tandem_worker.checks.catalogue import run_checks, same_checkpoint
from tandem_worker.checks.pair import Pair
from tandem_worker.checks.resolution import drafter_parameters, parameter_name, resolve, shared_parameters

__all__ = [
    "Pair",
    "drafter_parameters",
    "parameter_name",
    "resolve",
    "run_checks",
    "same_checkpoint",
    "shared_parameters",
]
