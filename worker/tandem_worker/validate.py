"""Validation of a pair: static checks, then, in mode Probe, a run of both models. Always ends in a report.

Static mode never imports torch: it starts in a fraction of a second and needs no GPU image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from tandem_worker.checkpoint import CheckpointError, fingerprint
from tandem_worker.checkpoint.declared import DeclaredDrafter
from tandem_worker.checks import EngineResolution, Origin, Pairing, Use
from tandem_worker.checks.catalogue import verdict_of
from tandem_worker.checks.deployment import Deployment
from tandem_worker.checks.judge import Judgement, errors_of, first_of, judge, open_pairing, refused, unexpected
from tandem_worker.contract import CaptureIndexes, Fingerprints, ProbeResult, Resolution, ValidationReport
from tandem_worker.engines import Engine, load
from tandem_worker.finding import Finding, Verdict
from tandem_worker.probe.merge import can_run, joined

if TYPE_CHECKING:  # they bring torch
    from tandem_worker.probe.run import Probed
    from tandem_worker.probe.stream import Progress


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
    prompts: Path | None = None  # JSON lines in place of the texts that come with the worker
    continuation: int = 0  # tokens of the target's own greedy continuation that are judged; 0: the texts themselves
    engine: Engine = field(default_factory=lambda: load("builtin"))
    deployment: Deployment = field(default_factory=Deployment)
    stated: Resolution | None = None  # what a worker says that it did with the pair (probe)
    other_drafter: Path | None = None  # another one for the same target and engine (probe)
    on_progress: Callable[[Progress], None] = lambda progress: None  # of the probe's pass over the target
    resume: Path | None = None  # folder that keeps what that pass has reached, for the next run of the same request


def validate(request: Request) -> ValidationReport:
    """Raises nothing: whatever goes wrong is a finding."""
    return examine(request)[0]


def examine(request: Request) -> tuple[ValidationReport, Probed | None]:
    """The report, and all that was measured for it. Raises nothing, as `validate`."""
    try:
        return _examine(request)
    except CheckpointError as failure:
        return _report(request, refused(failure)), None
    except Exception as failure:
        return _report(request, refused(CheckpointError(unexpected(failure)))), None


def _examine(request: Request) -> tuple[ValidationReport, Probed | None]:
    pairing = open_pairing(request.target, request.drafter, request.engine, request.trained_on, request.deployment)
    judged = judge(pairing)
    findings, verdict, summary = judged.findings, judged.verdict, judged.summary
    probe: ProbeResult | None = None
    probed: Probed | None = None
    if request.mode is Mode.PROBE and can_run(pairing, judged):
        probed, probe, findings, verdict = _probe(pairing, request, judged)
        summary = _summary(pairing, findings, probe) or summary
    judged = Judgement(verdict, summary, findings, judged.pairing)
    return _report(request, judged, probe), probed


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
        weight_bytes=sum(s.size_bytes for c in (pairing.target.checkpoint, drafter.checkpoint) for s in c.shards),
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


def _probe(
    pairing: Pairing, request: Request, judged: Judgement
) -> tuple[Probed | None, ProbeResult | None, tuple[Finding, ...], Verdict]:
    from tandem_worker.probe.result import result_of  # brings torch
    from tandem_worker.probe.run import Options, probe

    options = Options(
        request.draft_length,
        request.min_accept_length,
        request.prompts,
        request.continuation,
        on_progress=request.on_progress,
        resume=request.resume,
        stated=request.stated,
    )
    try:
        if request.other_drafter:
            other = open_pairing(request.target, request.other_drafter, request.engine, None, request.deployment)
            options = replace(options, other=other)
        probed = probe(pairing, options)
    except CheckpointError as failure:
        verdict = judged.verdict if errors_of(judged.findings) else failure.verdict
        return None, None, judged.findings + failure.findings, verdict
    result = result_of(probed)
    findings = joined(pairing, judged.findings, result)
    return probed, result, findings, verdict_of(findings, unknown=False)


def _summary(pairing: Pairing, findings: tuple[Finding, ...], probe: ProbeResult | None) -> str:
    errors = errors_of(findings)
    if errors or probe is None:
        return first_of(errors) if errors else ""
    if probe.diagnosis:
        return f"Accept length {probe.accept_length:.2f} is enough, and could be more. {probe.diagnosis}"
    return (
        f"The drafter predicts the target: accept length {probe.accept_length:.2f} at draft length "
        f"{probe.draft_length}, position-0 acceptance {probe.position0:.2f} over {probe.drafts} drafts; "
        f"{pairing.engine.title} captures {list(pairing.resolution.captured or ())}."
    )
