"""Validation of a pair: static checks, then, in mode Probe, a run of both models. Always ends in a report.

Static mode never imports torch: it starts in a fraction of a second and needs no GPU image.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tandem_worker.checkpoint import (
    Checkpoint,
    CheckpointError,
    fingerprint,
    open_checkpoint,
    read_drafter,
    read_target,
)
from tandem_worker.checkpoint.errors import error, printable
from tandem_worker.checks import Pair, run_checks, same_checkpoint
from tandem_worker.contract import (
    CaptureIndexes,
    Fingerprints,
    ProbeResult,
    ValidationReport,
)
from tandem_worker.finding import Finding, Severity, Verdict

PROBE_GOES_ON = frozenset({"TDM-CAPTURE-INDEX-MISMATCH"})
"""Errors that do not keep the pair from running: the probe then adds its own figures to what was said on paper."""


class Mode(StrEnum):
    STATIC = "Static"
    PROBE = "Probe"


@dataclass(frozen=True)
class Request:
    target: Path
    drafter: Path
    mode: Mode
    draft_length: int
    min_accept_length: float  # tokens per round, bonus token included
    trained_on: tuple[int, ...] | None = None  # capture indexes
    prompts: Path | None = None  # JSON lines with "prompt", beside the prompts that come with the worker


def validate(request: Request) -> ValidationReport:
    """Raises nothing: whatever goes wrong is a finding."""
    try:
        return _validate(request)
    except CheckpointError as failure:
        return _refusal(request.mode, failure)
    except Exception as failure:
        return _refusal(request.mode, CheckpointError(_unexpected(failure)))


def _validate(request: Request) -> ValidationReport:
    target_checkpoint, drafter_checkpoint = _open_both(request)
    same = same_checkpoint(target_checkpoint, drafter_checkpoint)
    if same:
        raise CheckpointError(same, verdict=Verdict.DOES_NOT_FIT)
    target = read_target(target_checkpoint)
    drafter = read_drafter(drafter_checkpoint, target)
    pair = Pair(target, drafter, target_checkpoint, drafter_checkpoint, request.trained_on)
    findings = run_checks(pair)
    verdict = _verdict(findings)
    probe: ProbeResult | None = None
    if request.mode is Mode.PROBE and all(finding.code in PROBE_GOES_ON for finding in _errors(findings)):
        probe, seen, probe_verdict = _probe(pair, request)
        findings += seen
        verdict = probe_verdict if verdict is Verdict.FITS else verdict
    return ValidationReport(
        verdict=verdict,
        mode=request.mode,
        summary=_summary(pair, findings, probe),
        findings=findings,
        capture_indexes=CaptureIndexes(
            declared=drafter.declared_layer_ids,
            declared_at=drafter.declared_at,
            engine=drafter.capture_indexes,
            trained_on=request.trained_on,
        ),
        resolution=pair.resolution,
        probe=probe,
        fingerprints=Fingerprints(target=fingerprint(target_checkpoint), drafter=fingerprint(drafter_checkpoint)),
    )


def _open_both(request: Request) -> tuple[Checkpoint, Checkpoint]:
    """Looks at both before raising, so that one run tells of all damage."""
    opened: list[Checkpoint] = []
    damage: list[Finding] = []
    for path in (request.target, request.drafter):
        try:
            opened.append(open_checkpoint(path))
        except CheckpointError as failure:
            damage.extend(failure.findings)
    if damage:
        raise CheckpointError(*damage)
    target, drafter = opened
    return target, drafter


def _probe(pair: Pair, request: Request) -> tuple[ProbeResult | None, tuple[Finding, ...], Verdict]:
    from tandem_worker.probe import probe  # brings torch

    try:
        result, findings = probe(pair, request.draft_length, request.min_accept_length, request.prompts)
    except CheckpointError as failure:
        return None, failure.findings, failure.verdict
    return result, findings, _verdict(findings)


def _verdict(findings: Iterable[Finding]) -> Verdict:
    return Verdict.DOES_NOT_FIT if _errors(findings) else Verdict.FITS


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def _summary(pair: Pair, findings: tuple[Finding, ...], probe: ProbeResult | None) -> str:
    errors = _errors(findings)
    if errors:
        return _first_of(errors)
    captured = f"the builtin engine captures {list(pair.resolution.capture_indexes)}"
    if probe is None:
        loaded, shared = len(pair.resolution.loaded), len(pair.resolution.shared)
        return f"The drafter fits the target on paper: {captured}, loads {loaded} parameters and shares {shared}."
    return (
        f"The drafter predicts the target: accept length {probe.accept_length:.2f} at draft length "
        f"{probe.draft_length}, position-0 acceptance {probe.position0:.2f} over {probe.drafts} drafts; {captured}."
    )


def _first_of(errors: list[Finding]) -> str:
    more = len(errors) - 1
    return errors[0].message + (f" And {more} more error{'s' * (more > 1)}." if more else "")


def _refusal(mode: Mode, failure: CheckpointError) -> ValidationReport:
    return ValidationReport(
        verdict=failure.verdict, mode=mode, summary=_first_of(list(failure.findings)), findings=failure.findings
    )


def _unexpected(failure: Exception) -> Finding:
    """Last resort: a fault of ours, named with its place so that it can be reported, and no traceback."""
    frame = traceback.extract_tb(failure.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    reason = printable(f"{type(failure).__name__}: {failure}", 200)
    return error(
        "TDM-VALIDATOR-FAILED",
        f"The validation itself failed with {reason} at {place}.",
        where=place,
        found=reason,
        action="Report this with the config.json of both checkpoints.",
    )
