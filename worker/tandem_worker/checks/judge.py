"""From two folders and an engine to a verdict: what `check`, `explain`, `convert` and `validate` have in common."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tandem_worker.checkpoint import Checkpoint, CheckpointError, open_checkpoint
from tandem_worker.checkpoint.declared import read_declared_drafter, read_declared_target
from tandem_worker.checkpoint.errors import error, printable
from tandem_worker.checks.catalogue import run_checks, same_checkpoint
from tandem_worker.checks.deployment import Deployment
from tandem_worker.checks.pairing import Pairing
from tandem_worker.engines import Engine
from tandem_worker.finding import Finding, Severity, Verdict


@dataclass(frozen=True)
class Judgement:
    """`pairing` is None when a checkpoint could not be opened."""

    verdict: Verdict
    summary: str  # one sentence
    findings: tuple[Finding, ...]
    pairing: Pairing | None = None


def open_pairing(
    target: Path,
    drafter: Path,
    engine: Engine,
    trained_on: tuple[int, ...] | None = None,
    deployment: Deployment | None = None,
    weights_expected: bool = True,
) -> Pairing:
    """`weights_expected` False lets the target be its config alone.

    Raises CheckpointError that tells of all damage to both (CouldNotCheck), or that they are one (DoesNotFit).
    """
    target_checkpoint, drafter_checkpoint = _open_both(target, drafter, weights_expected)
    same = same_checkpoint(target_checkpoint, drafter_checkpoint)
    if same:
        raise CheckpointError(same, verdict=Verdict.DOES_NOT_FIT)
    return Pairing(
        read_declared_target(target_checkpoint),
        read_declared_drafter(drafter_checkpoint),
        engine,
        trained_on,
        deployment or Deployment(),
    )


def judge(pairing: Pairing) -> Judgement:
    """Raises nothing: whatever goes wrong is a finding."""
    try:
        findings, verdict = run_checks(pairing)
    except CheckpointError as failure:
        return refused(failure)
    except Exception as failure:
        return refused(CheckpointError(unexpected(failure)))
    return Judgement(verdict, _summary(pairing, findings, verdict), findings, pairing)


def judge_all(pairing: Pairing, engines: Sequence[Engine]) -> list[tuple[Engine, Judgement]]:
    return [(engine, judge(replace(pairing, engine=engine))) for engine in engines]


def refused(failure: CheckpointError) -> Judgement:
    return Judgement(failure.verdict, first_of(failure.findings), failure.findings)


def errors_of(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def first_of(errors: Sequence[Finding]) -> str:
    more = len(errors) - 1
    return errors[0].message + (f" And {more} more error{'s' * (more > 1)}." if more else "")


def unexpected(failure: Exception) -> Finding:
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


def _open_both(target: Path, drafter: Path, weights_expected: bool) -> tuple[Checkpoint, Checkpoint]:
    """Looks at both before raising, so that one run tells of all damage."""
    opened: list[Checkpoint] = []
    damage: list[Finding] = []
    for path, expected in ((target, weights_expected), (drafter, True)):
        try:
            opened.append(open_checkpoint(path, expected))
        except CheckpointError as failure:
            damage.extend(failure.findings)
    if damage:
        raise CheckpointError(*damage)
    return opened[0], opened[1]


def _summary(pairing: Pairing, findings: Sequence[Finding], verdict: Verdict) -> str:
    errors = errors_of(findings)
    if errors:
        return first_of(errors)
    captured = pairing.resolution.captured
    what = (
        f"{pairing.engine.title} captures {list(captured)}" if captured else f"by the rules of {pairing.engine.title}"
    )
    warned = sum(finding.severity is Severity.WARNING for finding in findings)
    more = f", with {warned} warning{'s' * (warned > 1)}" if verdict is Verdict.FITS_WITH_WARNINGS else ""
    return f"The drafter fits the target on paper{more}: {what}."
