"""Validation of a pair: static checks, then, in mode Probe, a run of both models. Always ends in a report.

Static mode never imports torch: it starts in a fraction of a second and needs no GPU image.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tandem_worker.checkpoint import CheckpointError, fingerprint, read_drafter, read_target
from tandem_worker.checkpoint.declared import DeclaredDrafter
from tandem_worker.checkpoint.errors import error
from tandem_worker.checks import EngineResolution, Origin, Pair, Pairing, Use
from tandem_worker.checks.catalogue import verdict_of
from tandem_worker.checks.deployment import Deployment
from tandem_worker.checks.judge import Judgement, errors_of, first_of, judge, open_pairing, refused, unexpected
from tandem_worker.contract import CaptureIndexes, Fingerprints, ProbeResult, Resolution, ValidationReport
from tandem_worker.engines import Engine, load
from tandem_worker.finding import Finding, Verdict

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
    engine: Engine = field(default_factory=lambda: load("builtin"))
    deployment: Deployment = field(default_factory=Deployment)


def validate(request: Request) -> ValidationReport:
    """Raises nothing: whatever goes wrong is a finding."""
    try:
        return _validate(request)
    except CheckpointError as failure:
        return _report(request, refused(failure))
    except Exception as failure:
        return _report(request, refused(CheckpointError(unexpected(failure))))


def _validate(request: Request) -> ValidationReport:
    pairing = open_pairing(request.target, request.drafter, request.engine, request.trained_on, request.deployment)
    judged = judge(pairing)
    findings, verdict, summary = judged.findings, judged.verdict, judged.summary
    probe: ProbeResult | None = None
    runs = verdict is not Verdict.COULD_NOT_CHECK and all(f.code in PROBE_GOES_ON for f in errors_of(findings))
    if request.mode is Mode.PROBE and runs:
        probe, seen, probe_verdict = _probe(pairing, request)
        findings += seen
        verdict = verdict if probe_verdict is Verdict.FITS or not _fits(verdict) else probe_verdict
        summary = _probed(pairing, findings, probe) or summary
    judged = Judgement(verdict, summary, findings, judged.pairing)
    return _report(request, judged, probe)


def _report(request: Request, judged: Judgement, probe: ProbeResult | None = None) -> ValidationReport:
    pairing = judged.pairing
    if pairing is None:
        return ValidationReport(
            verdict=judged.verdict, mode=request.mode, summary=judged.summary, findings=judged.findings
        )
    resolution, drafter = pairing.resolution, pairing.drafter
    return ValidationReport(
        verdict=judged.verdict,
        mode=request.mode,
        summary=judged.summary,
        findings=judged.findings,
        capture_indexes=_capture_indexes(drafter, resolution, request.trained_on),
        resolution=_reported(resolution) if resolution.captured is not None else None,
        probe=probe,
        fingerprints=Fingerprints(
            target=fingerprint(pairing.target.checkpoint), drafter=fingerprint(drafter.checkpoint)
        ),
    )


def _capture_indexes(
    drafter: DeclaredDrafter, resolution: EngineResolution, trained_on: tuple[int, ...] | None
) -> CaptureIndexes:
    where, declared = resolution.ids_where, resolution.ids
    if declared is None and drafter.ids:
        where, declared = next(iter(drafter.ids.items()))
    return CaptureIndexes(
        declared=declared, declared_at=where or "default", engine=resolution.captured or (), trained_on=trained_on
    )


def _reported(resolution: EngineResolution) -> Resolution:
    """What the engine will do, in the words that its worker reports what it did."""
    origins, uses = resolution.parameters, resolution.tensors
    return Resolution(
        capture_indexes=resolution.captured or (),
        fc_input_width=(resolution.states or 0) * (resolution.target_width or 0),
        fc_applied=resolution.fc_applied,
        norm_before_residual=resolution.flags["norm_before_residual"].value,
        loaded=_names(name for use, name in uses.values() if use is Use.LOADED and name in origins),
        shared=_names(name for name, origin in origins.items() if origin is Origin.TARGET),
        missing=_names(name for name, origin in origins.items() if origin is Origin.RANDOM),
        dropped=_names(key for key, (use, _) in uses.items() if use is not Use.LOADED),
    )


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _probe(pairing: Pairing, request: Request) -> tuple[ProbeResult | None, tuple[Finding, ...], Verdict]:
    if request.engine.name != "builtin":
        finding = error(
            "TDM-PROBE-ENGINE",
            f"The probe runs the builtin engine; {request.engine.title} can be checked statically.",
            where="engine",
            found=request.engine.name,
            expected="builtin",
            action="Use the mode Static.",
        )
        return None, (finding,), Verdict.COULD_NOT_CHECK
    from tandem_worker.probe import probe  # brings torch

    target = read_target(pairing.target.checkpoint)
    drafter = read_drafter(pairing.drafter.checkpoint, target)
    pair = Pair(target, drafter, pairing.target.checkpoint, pairing.drafter.checkpoint, request.trained_on)
    try:
        result, findings = probe(pair, request.draft_length, request.min_accept_length, request.prompts)
    except CheckpointError as failure:
        return None, failure.findings, failure.verdict
    return result, findings, verdict_of(findings, unknown=False)


def _probed(pairing: Pairing, findings: tuple[Finding, ...], probe: ProbeResult | None) -> str:
    errors = errors_of(findings)
    if errors or probe is None:
        return first_of(errors) if errors else ""
    return (
        f"The drafter predicts the target: accept length {probe.accept_length:.2f} at draft length "
        f"{probe.draft_length}, position-0 acceptance {probe.position0:.2f} over {probe.drafts} drafts; "
        f"the builtin engine captures {list(pairing.resolution.captured or ())}."
    )


def _fits(verdict: Verdict) -> bool:
    return verdict in (Verdict.FITS, Verdict.FITS_WITH_WARNINGS)
