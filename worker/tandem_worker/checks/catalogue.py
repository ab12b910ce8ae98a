"""The static checks, in the order in which a person wants to hear of them."""

from __future__ import annotations

from tandem_worker.checkpoint import Checkpoint, fingerprint
from tandem_worker.checkpoint.errors import error
from tandem_worker.checks import capture, parameters, settings, shapes, vocabulary, weights
from tandem_worker.checks.pair import Check, Pair
from tandem_worker.finding import Finding

CHECKS: tuple[Check, ...] = (
    capture.trained_on,
    shapes.target_hidden_size,
    shapes.fc_width,
    parameters.missing_parameters,
    parameters.dropped_tensors,
    parameters.colliding_tensors,
    vocabulary.vocabulary_sizes,
    vocabulary.d2t_form,
    vocabulary.d2t_values,
    vocabulary.t2d_form,
    vocabulary.t2d_count,
    shapes.head_dim_guess,
    shapes.drafter_shapes,
    shapes.target_shapes,
    settings.tied_reduced_vocabulary,
    settings.weight_dtypes,
    weights.weight_values,
    capture.capture_order,
    settings.rope_theta,
    settings.max_positions,
    settings.architecture_name,
    parameters.shared_parameters_told,
    vocabulary.full_vocabulary,
    capture.defaults_told,
)


def run_checks(pair: Pair) -> tuple[Finding, ...]:
    """Raises CheckpointError when a file changes or can not be read on the way."""
    odd = pair.target_checkpoint.findings + pair.drafter_checkpoint.findings
    return tuple(finding for check in CHECKS for finding in check(pair)) + odd


def same_checkpoint(target: Checkpoint, drafter: Checkpoint) -> Finding | None:
    """A drafter that is the target, by path or by content; asked before the drafter's config is read as one."""
    if target.path.resolve() != drafter.path.resolve() and fingerprint(target) != fingerprint(drafter):
        return None
    return error(
        "TDM-DRAFTER-IS-TARGET",
        f"The drafter ({drafter.path}) is the same checkpoint as the target ({target.path}).",
        file=drafter.path,
        where="drafter",
        expected="an EAGLE-3 drafter",
        action="Give the drafter's own path.",
    )
