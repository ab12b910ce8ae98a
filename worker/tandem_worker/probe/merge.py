"""What the static checks said and what the probe measured, told once. No torch: the static verdict needs none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandem_worker.checkpoint.errors import error, warning
from tandem_worker.checks.engine_resolution import Use
from tandem_worker.checks.judge import Judgement, errors_of
from tandem_worker.checks.pairing import Pairing
from tandem_worker.contract import Cause, ProbeResult
from tandem_worker.finding import Finding, Severity, Verdict
from tandem_worker.probe.causes import STATIC

MEASURABLE = frozenset(code for codes in STATIC.values() for code in codes)
"""Errors that do not keep the pair from running: the probe adds its figures to what was said on paper."""

WRONG_BY = 1.5
"""A wiring that the drafter was not made for, and that costs so much, is an error whatever the threshold."""


def can_run(pairing: Pairing, judged: Judgement) -> bool:
    """Whether the engine would serve the pair, rightly or not: what it refuses at start needs no measuring."""
    resolution, layers = pairing.resolution, pairing.target.layers.value or 0
    if judged.verdict is Verdict.COULD_NOT_CHECK or any(f.code not in MEASURABLE for f in errors_of(judged.findings)):
        return False
    refused = any(use is Use.REFUSED for use, _ in resolution.tensors.values()) and any(
        finding.code == "TDM-TENSORS-DROPPED" for finding in errors_of(judged.findings)
    )
    captured = resolution.captured if pairing.drafter.aux else ()
    return not refused and captured is not None and all(0 <= i <= layers for i in captured)


def joined(pairing: Pairing, findings: Sequence[Finding], result: ProbeResult) -> tuple[Finding, ...]:
    """One finding for each cause, with its figures, in front, in the place of static findings that mean the same."""
    rest, told = list(findings), []
    for cause in result.causes:
        same = [f for f in rest if f.code in STATIC.get(cause.code, (cause.code,)) and f.severity is not Severity.NOTE]
        told.append(_told(pairing, cause, same, result))
        rest = [finding for finding in rest if finding not in same]
    if not result.causes:
        rest = [_contradicted(finding, pairing, result) for finding in rest]
    return (*told, *rest)


def _told(pairing: Pairing, cause: Cause, same: Sequence[Finding], result: ProbeResult) -> Finding:
    lost = cause.mended is not None and cause.mended >= WRONG_BY * cause.position0
    below = lost or result.accept_length < result.threshold
    if same:
        worst = Severity.ERROR if below or any(f.severity is Severity.ERROR for f in same) else Severity.WARNING
        return replace(same[0], code=cause.code, message=cause.sentence, severity=worst)
    return (error if below else warning)(
        cause.code,
        cause.sentence,
        file=pairing.config_file,
        found=f"accept length {result.accept_length:.2f}",
        expected=f"at least {result.threshold:.2f}",
        action=_change(cause.sentence) if cause.mended is not None else "",
    )


def _change(sentence: str) -> str:
    """The remedy stands behind the last semicolon."""
    change = sentence.rpartition("; ")[2]
    return change[:1].upper() + change[1:]


def _contradicted(finding: Finding, pairing: Pairing, result: ProbeResult) -> Finding:
    """The training run is said to have captured other streams, and the drafter predicts best from these."""
    if finding.code != "TDM-CAPTURE-INDEX-MISMATCH" or result.accept_length < result.threshold:
        return finding
    message = (
        f"{finding.message} Measured, it predicts with {list(pairing.resolution.captured or ())}: position-0 "
        f"acceptance {result.position0:.2f}, and none of {result.wirings} other wirings is better."
    )
    action = "Correct trainedOn, if nothing else speaks for it."
    return replace(finding, message=message, severity=Severity.WARNING, action=action)
