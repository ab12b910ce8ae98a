"""Is the pair that the spec names proven to fit?

A Job is named by the hash of what it validates, so the same pair is not validated twice and a changed one is. Its
report lands in status and outlives the Job. A pair that could not be checked (a file that was not there yet) is tried
again with growing pauses; a pair that does not fit is not, until what is validated changes. A worker that finds other
files than were validated does not start and says what it found: then the pair is validated anew.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from tandem_operator import names
from tandem_operator.api import SpeculativeDeployment
from tandem_operator.api.spec import Enforcement, EngineType, Source, Spec, ValidationMode
from tandem_operator.api.status import CaptureIndexes, Finding, Fingerprints, Probe, Validation
from tandem_operator.plan.conditions import Seen
from tandem_operator.plan.observed import Context, Manifest, ValidationJob
from tandem_operator.plan.revisions import short_hash
from tandem_operator.plan.validation_job import probe_floor, validation_job
from tandem_worker.contract import Finding as Reported
from tandem_worker.contract import ProbeResult, Severity, ValidationReport, Verdict

RETRY_SECONDS, RETRY_MOST_SECONDS = 30, 900
CHANGED_AGAIN_SECONDS = 10
MOST_TOLD = 5  # errors of one report that become events; the others are in status


@dataclass(frozen=True)
class Checked:
    """What validation says in this pass. `allowed`: the pair may be rolled out; `refused`: its last verdict is that it
    may not; `errors`: of a report that has just come, what is to be told.
    """

    allowed: bool
    condition: Seen
    validation: Validation | None
    job: Manifest | None = None
    wake_after_seconds: float | None = None
    errors: tuple[Reported, ...] = ()
    refused: bool = False


def retry_of(resource: SpeculativeDeployment) -> str:
    return resource.metadata.annotations.get(names.RETRY, "")


def key_of(resource: SpeculativeDeployment) -> str:
    """Of everything that the validation Job looks at. The floor counts only where the probe is judged by it."""
    spec = resource.spec
    probe = (spec.speculation.fixed_draft_length, probe_floor(spec), *_prompts(spec))
    probed = probe if spec.validation.mode == ValidationMode.PROBE else ()
    engine = spec.engine.model_copy(update={"image": None})
    told = () if engine.type == EngineType.BUILTIN else (spec.speculation.fixed_draft_length, *spec.pod.env)
    return short_hash(spec.target, spec.drafter, engine, told, spec.validation.mode, probed, retry_of(resource))


def _prompts(spec: Spec) -> tuple[object, ...]:
    probe = spec.validation.probe
    return (probe.prompts, probe.continuation_tokens) if probe else ()


def check(context: Context) -> Checked:
    resource = context.observed.resource
    spec, last = resource.spec, resource.status.validation
    if refused := _refused_source(context):
        return Checked(False, Seen("Validated", "False", "HostPathNotAllowed", refused), last)
    if not spec.speculates:
        message = "speculation is off: there is no pair to validate"
        return Checked(True, Seen("Validated", "Unknown", "SpeculationDisabled", message), None)
    key = key_of(resource)
    known = last if last and last.key == key else None
    # Without a status the newest Job counts: it was made because of what the older ones found.
    attempt = known.attempt if known else max((j.attempt for j in context.observed.jobs if j.key == key), default=0)
    wait = _seconds_to_next_attempt(context, known)
    if known:
        attempt += 1
    job = next((j for j in context.observed.jobs if j.key == key and j.attempt == attempt), None)
    # A Job that is under way was made for a reason, and the worker that gave it may be gone meanwhile.
    if known and not job and (wait is None or wait > 0):
        return _concluded(spec.validation.enforcement, known, wait)
    if job and job.finished:
        fresh = _from_job(job, key, attempt, context.now)
        concluded = _concluded(spec.validation.enforcement, fresh, _pause(fresh, context.now, fresh.at))
        return replace(concluded, errors=_to_tell(job.report, known))
    job_name = names.validation_job(resource.metadata.name, key, attempt)
    message = f"validating the pair ({spec.validation.mode}) in Job {job_name}"
    changed = known is not None and (known.verdict != Verdict.COULD_NOT_CHECK or bool(_changed_files(context, known)))
    if changed:
        message = f"a worker found other files than were validated, so it did not start; {message}"
    if job and job.problem:
        message += f"; it waits: {job.problem}"
    manifest = None if job else validation_job(resource, context.settings, key, attempt)
    reason = "Waiting" if job and job.problem else "CheckpointChanged" if changed else "Validating"
    may_run = known is not None and _may_run(spec.validation.enforcement, known)
    turned_down = known is not None and not may_run
    # What may run goes on while it is tried again, or its canary would begin anew with every attempt and never end.
    seen = Seen("Validated", "Unknown", reason, message)
    return Checked(may_run and not changed, seen, last, manifest, refused=turned_down)


def _refused_source(context: Context) -> str:
    spec = context.observed.resource.spec
    sources: list[tuple[str, Source | None]] = [("target", spec.target.source)]
    sources.append(("drafter", spec.drafter.source if spec.drafter else None))
    for part, source in sources:
        if source is None or source.host_path is None:
            continue
        path = PurePosixPath(source.host_path.path)
        allowed = context.settings.allowed_host_paths
        if ".." not in path.parts and any(path.is_relative_to(prefix) for prefix in allowed):
            continue
        listed = ", ".join(allowed) or "none"
        return (
            f"spec.{part}.source.hostPath.path {path} is outside what the operator allows ({listed}): "
            "use a pvc source, or start the operator with --allowed-host-path"
        )
    return ""


def _seconds_to_next_attempt(context: Context, known: Validation | None) -> float | None:
    """None: the verdict stands. Otherwise how long until the pair is validated again (0 or less: now)."""
    if known is None:
        return None
    if _changed_files(context, known):
        pause = timedelta(seconds=CHANGED_AGAIN_SECONDS * known.attempt)  # files that keep changing are let settle
        return (known.at + pause - context.now).total_seconds()
    return _pause(known, context.now, known.at)


def _changed_files(context: Context, known: Validation) -> Fingerprints | None:
    """Fingerprints that a worker of the validated revision found at start, when they are not the validated ones."""
    for pod in context.observed.pods:
        failure = pod.failure
        if failure is None or failure.found is None or known.fingerprints is None:
            continue
        if pod.runs_again:
            continue  # Kubernetes keeps the last word of an earlier start for as long as the pod lives
        recipe = context.observed.recipe(pod.revision)
        if recipe is None or recipe.fingerprints != known.fingerprints:
            continue  # an older revision: its files are not what the spec's validation is about
        found = Fingerprints(target=failure.found.target, drafter=failure.found.drafter)
        if found != known.fingerprints:
            return found
    return None


def _pause(validation: Validation, now: datetime, since: datetime) -> float | None:
    if validation.verdict != Verdict.COULD_NOT_CHECK:
        return None
    pause = min(RETRY_MOST_SECONDS, RETRY_SECONDS * 2 ** min(validation.attempt, 10))
    return (since + timedelta(seconds=pause) - now).total_seconds()


def _concluded(enforcement: Enforcement, validation: Validation, wait: float | None) -> Checked:
    fits, allowed = _fits(validation), _may_run(enforcement, validation)
    message = validation.summary
    if not fits and allowed:
        message += " (validation.enforcement is Warn: rolled out all the same)"
    condition = Seen("Validated", "True" if fits else "False", validation.verdict, message)
    return Checked(allowed, condition, validation, wake_after_seconds=wait, refused=not allowed)


def _fits(validation: Validation) -> bool:
    return validation.verdict in (Verdict.FITS, Verdict.FITS_WITH_WARNINGS)


def _may_run(enforcement: Enforcement, validation: Validation) -> bool:
    return _fits(validation) or enforcement == Enforcement.WARN


def _to_tell(report: ValidationReport | None, known: Validation | None) -> tuple[Reported, ...]:
    """The first errors of a report; when the same pair was tried before, those that it did not have then."""
    before = {(finding.code, finding.message) for finding in known.findings} if known else set()
    errors = [finding for finding in report.findings if finding.severity == Severity.ERROR] if report else []
    return tuple(finding for finding in errors if (finding.code, finding.message) not in before)[:MOST_TOLD]


def _from_job(job: ValidationJob, key: str, attempt: int, now: datetime) -> Validation:
    if job.report is None:
        summary = f"Job {job.name} ended without a report: {job.problem or 'its pod left no termination message'}"
        return Validation(key=key, attempt=attempt, verdict=Verdict.COULD_NOT_CHECK, summary=summary, at=now)
    return _from_report(job.report, key, attempt, now, f"pod/{job.pod}" if job.pod else "")


def _from_report(report: ValidationReport, key: str, attempt: int, now: datetime, log: str) -> Validation:
    indexes, probe, prints = report.capture_indexes, report.probe, report.fingerprints
    return Validation(
        key=key,
        attempt=attempt,
        verdict=report.verdict,
        summary=report.summary,
        findings=[Finding(**asdict(finding)) for finding in report.findings],
        capture_indexes=CaptureIndexes(**indexes.model_dump(mode="json")) if indexes else None,
        probe=_rounded(probe) if probe else None,
        fingerprints=Fingerprints(**prints.model_dump()) if prints else None,
        weight_bytes=report.weight_bytes,
        report=log,
        at=now,
    )


def _rounded(probe: ProbeResult) -> Probe:
    """Digits beyond what so many drafts can tell only make a status hard to read."""
    figures = {"accept_length": round(probe.accept_length, 2), "position0": round(probe.position0, 3)}
    return Probe(**{**probe.model_dump(include=set(Probe.model_fields)), **figures})
