"""Static checks of a pair, and what the builtin engine will do with it."""

from tandem_worker.checks.resolution import drafter_parameters, parameter_name, resolve, shared_parameters

__all__ = ["drafter_parameters", "parameter_name", "resolve", "shared_parameters"]
