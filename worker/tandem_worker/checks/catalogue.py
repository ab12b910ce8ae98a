"""The static checks, in the order in which a person wants to hear of them."""

from __future__ import annotations

from collections.abc import Iterable

from tandem_worker.checkpoint import Checkpoint, CheckpointError, fingerprint
from tandem_worker.checkpoint.errors import error
from tandem_worker.checks import (
    builtin,
    capture,
    classes,
    hot_tokens,
    parallel,
    parameters,
    settings,
    shapes,
    vocabulary,
    weights,
)
from tandem_worker.checks.pairing import Check, Pairing
from tandem_worker.finding import Finding, Severity, Verdict

CHECKS: tuple[Check, ...] = (
    classes.config_problems,
    capture.trained_on,
    classes.target_class,
    classes.drafter_class,
    capture.layer_ids_range,
    capture.layer_ids_count,
    capture.states_captured,
    capture.ignored_ids,
    settings.target_hidden_size,
    shapes.fc_width,
    parameters.missing_parameters,
    parameters.dropped_tensors,
    parameters.colliding_tensors,
    classes.layer_count,
    classes.flags_ignored,
    classes.aux_ignored,
    classes.truncated_vocabulary,
    classes.draft_vocab_size_stated,
    vocabulary.vocabulary_sizes,
    vocabulary.draft_vocabulary,
    vocabulary.d2t_form,
    vocabulary.d2t_values,
    vocabulary.t2d_form,
    vocabulary.t2d_count,
    shapes.drafter_shapes,
    parameters.tied,
    parameters.mask_hidden,
    parameters.fc_unused,
    builtin.narrow_reading,
    weights.weight_values,
    parallel.arguments,
    hot_tokens.token_map,
    parallel.tensor_parallel,
    parallel.pipeline_parallel,
    parallel.inherited_quantisation,
    parallel.attention_backend,
    capture.capture_order,
    capture.convention,
    capture.linear_layers,
    shapes.states_from_top_level,
    classes.traps,
    parameters.quantised_head,
    weights.overwritten_embedding,
    settings.weight_dtypes,
    settings.rope_theta,
    settings.mrope,
    settings.max_positions,
    parameters.told,
    vocabulary.full_vocabulary,
    vocabulary.header_only,
    settings.defaults_of_target,
    capture.defaults_told,
)


def run_checks(pairing: Pairing) -> tuple[tuple[Finding, ...], Verdict]:
    """Raises CheckpointError when a file changes or can not be read on the way."""
    findings = list(classes.not_a_drafter(pairing))
    if findings:
        return tuple(findings), verdict_of(findings, unknown=False)
    unknown = [_unknown(pairing)] if pairing.resolution.unknown else []
    for check in CHECKS:
        try:
            findings += check(pairing)
        except CheckpointError as failure:
            if failure.verdict is not Verdict.COULD_NOT_CHECK or check is not builtin.narrow_reading:
                raise
            unknown += failure.findings
    findings += [*pairing.target.checkpoint.findings, *pairing.drafter.checkpoint.findings]
    findings = _distinct(findings)
    return (*findings, *_distinct(unknown, findings)), verdict_of(findings, bool(unknown))


def verdict_of(findings: Iterable[Finding], unknown: bool) -> Verdict:
    """An error outweighs what could not be told; what could not be told outweighs a warning."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return Verdict.DOES_NOT_FIT
    if unknown:
        return Verdict.COULD_NOT_CHECK
    return Verdict.FITS_WITH_WARNINGS if Severity.WARNING in severities else Verdict.FITS


def _distinct(findings: Iterable[Finding], told: Iterable[Finding] = ()) -> list[Finding]:
    """Two readings of one config find the same mistake: the first is kept of each code and place."""
    seen = {(finding.code, finding.file, finding.where) for finding in told}
    kept = []
    for finding in findings:
        key = (finding.code, finding.file, finding.where)
        if key not in seen:
            seen.add(key)
            kept.append(finding)
    return kept


def _unknown(pairing: Pairing) -> Finding:
    engine, resolution = pairing.engine, pairing.resolution
    versions = engine.table.versions
    why = "" if engine.read else f" Version {engine.version} was not read; {', '.join(versions)} were."
    return error(
        "TDM-ENGINE-UNKNOWN",
        f"Tandem's table of {engine.table.title} does not tell {', '.join(resolution.unknown)}.{why} All else was "
        "checked.",
        where="engine",
        found=engine.version,
        expected=f"one of {', '.join(versions)}",
        action="Name a version that was read, or a target class that the engine's table knows.",
    )


def same_checkpoint(target: Checkpoint, drafter: Checkpoint) -> Finding | None:
    """A drafter that is the target, by path or by content; asked before the drafter's config is read as one."""
    if target.path.resolve() != drafter.path.resolve():
        headers = [[(shard.size_bytes, shard.header_sha256) for shard in each.shards] for each in (target, drafter)]
        if headers[0] != headers[1] or fingerprint(target) != fingerprint(drafter):
            return None
    return error(
        "TDM-DRAFTER-IS-TARGET",
        f"The drafter ({drafter.path}) is the same checkpoint as the target ({target.path}).",
        file=drafter.path,
        where="drafter",
        expected="an EAGLE-3 drafter",
        action="Give the drafter's own path.",
    )
