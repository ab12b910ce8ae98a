"""Watching acceptance and speed: what the analysis is told of the stable and of the canary revision, and when.

A revision is looked at once an interval. A window that was judged Healthy ends and the next begins, so that its figures
are of now; one of the stable revision that comes to nothing in a day ends too. A pod that could not be read gives no
evidence; what else gives none is in `windows`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from tandem_operator.api import Status
from tandem_operator.api.status import Counts, Measurement, Outcome, Window
from tandem_operator.engines.formulas import same_version
from tandem_operator.plan.analysis import evidence, judge
from tandem_operator.plan.analysis.evidence import Reading
from tandem_operator.plan.analysis.hypotheses import NO_BASELINE, Baseline, Origin
from tandem_operator.plan.analysis.judge import Limits, Seen
from tandem_operator.plan.analysis.speed import Speed, compare
from tandem_operator.plan.conditions import Seen as Condition
from tandem_operator.plan.conditions import count
from tandem_operator.plan.decision import Notes
from tandem_operator.plan.observed import Context, Pod
from tandem_operator.plan.quarantine import retry_of_workers
from tandem_operator.plan.validation import retry_of
from tandem_operator.plan.windows import begun_anew, total_beside, window_of, with_window
from tandem_worker.contract import SELF_TEST_DRAFTS, SelfTestOutcome

MEASUREMENTS_KEPT = 10
STALE = timedelta(days=1)
SETTLED_DRAFTS, SETTLED_REQUESTS = 1000, 50


def look_at_canary(context: Context, status: Status, revision: str) -> tuple[Status, Window, Measurement | None]:
    """Sample the canary when its interval has passed, and judge its step. None: not yet due."""
    status, window, added = _sampled(context, status, revision)
    if added is None:
        return with_window(status, window), window, None
    if problem := _unreadable(context, window):
        measured = judge.unavailable(window, "Gate", problem, context.now)
    else:
        seen = _seen(context, status, window, _baseline_of_canary(context, status, window))
        measured = judge.gate(seen, context.now)
    return _noted(with_window(status, window), measured), window, measured


def look_at_stable(context: Context, status: Status, revision: str) -> tuple[Status, Window, Measurement | None]:
    """As `look_at_canary`, of the revision that serves."""
    status, window, added = _sampled(context, status, revision)
    if added is None:
        return with_window(status, window), window, None
    if problem := _unreadable(context, window):
        measured = judge.unavailable(window, "Steady", problem, context.now)
    else:
        window = _settled(window)
        seen = _seen(context, status, window, _baseline_of_stable(context, status, window))
        window, measured = judge.steady(seen, added, context.now)
    if measured.outcome == Outcome.INCONCLUSIVE and context.now - window.started_at > STALE:
        window = evidence.fresh(window, context.now)
    return _noted(with_window(status, window), measured), window, measured


def sample_only(context: Context, status: Status, revision: str) -> Status:
    """For a revision that is switched off: only whether its counters move."""
    status, window, _ = _sampled(context, status, revision)
    return with_window(status, window)


def warm_up(context: Context, status: Status, revision: str) -> Status:
    """For a canary that is not judged yet: what its pods count meanwhile is passed over."""
    return sample_only(context, begun_anew(context, status, [revision]), revision)


def _sampled(context: Context, status: Status, revision: str) -> tuple[Status, Window, Counts | None]:
    """The increment since the last look; None: not yet due. A worker in `status.unread` adds nothing and leaves it.

    A worker that a retry is about to replace adds nothing: it was started before, and may draft as it did then.
    """
    window = window_of(context, status, revision)
    interval = timedelta(seconds=context.observed.resource.spec.rollout.analysis.interval_seconds)
    if context.now - window.sampled_at < interval:
        return status, window, None
    replaceable = context.observed.recipe(revision) is not None
    readings, retry, unread = [], retry_of_workers(context, status, revision), frozenset(status.unread)
    for pod in context.observed.of(revision):
        worker = context.observed.worker(pod)
        if worker.counts is not None and worker.speculating is not None:
            replaced = replaceable and pod.retry != retry
            drafting = worker.speculating and not replaced and pod.uid not in unread
            readings.append(Reading(pod.uid, worker.counts, drafting, worker.running))
    window, added = evidence.sample(window, readings, context.now)
    read = {reading.source for reading in readings}
    status = status.model_copy(update={"unread": [uid for uid in status.unread if uid not in read]})
    return status, evidence.forget(window, frozenset(pod.uid for pod in context.observed.pods)), added


def _unreadable(context: Context, window: Window) -> str:
    """Why nothing can be known of the revision now: no worker that is ready gives figures."""
    ready, frozen = ready_pods(context, window.revision), evidence.frozen(window)
    problems = [f"{pod.name}: {problem}" for pod in ready if (problem := _problem(context, pod, frozen))]
    return "; ".join(problems[:5]) if ready and len(problems) == len(ready) else ""


def _problem(context: Context, pod: Pod, frozen: frozenset[str]) -> str:
    worker = context.observed.worker(pod)
    if worker.counts is None:
        return worker.problem or "not read yet"
    return "requests run and no counter moves" if pod.uid in frozen else ""


def _seen(context: Context, status: Status, window: Window, baseline: Baseline) -> Seen:
    spec = context.observed.resource.spec
    limits = Limits(
        min_accept_length=spec.guard.min_accept_length,
        tolerated_drop=spec.guard.tolerated_drop,
        collapse_drop=spec.guard.collapse_drop,
        min_speedup=spec.guard.min_speedup,
        minimum_drafts=spec.rollout.analysis.minimum_drafts,
        minimum_requests=spec.rollout.analysis.minimum_requests,
    )
    neighbours = tuple(w.total for w in status.windows if w.revision != window.revision)
    return Seen(window, limits, baseline, neighbours, speed_of(context, window))


def _baseline_of_canary(context: Context, status: Status, window: Window) -> Baseline:
    """The stable revision's part in the same window, if it has one."""
    total = total_beside(status)
    if total is not None:
        part = evidence.increment(window.beside_from or Counts(), total)
        if part.drafts and part.requests:
            return Baseline(Origin.STABLE, evidence.position0(part), part.drafts, part)
    return _validated(context, status, window)


def _baseline_of_stable(context: Context, status: Status, window: Window) -> Baseline:
    """Figures of given texts say too little: a drafter predicts what its target writes, as it does in service."""
    validated, probe = _validated(context, status, window), status.validation.probe if status.validation else None
    if not window.settled:
        return NO_BASELINE
    as_in_service = probe is not None and probe.text == "continuation"
    if validated.drafts and (window.settled < validated.position0 or not as_in_service):
        return Baseline(Origin.START, window.settled, SETTLED_DRAFTS)
    return validated


def _settled(window: Window) -> Window:
    total = window.total
    if window.settled or total.drafts < SETTLED_DRAFTS or total.requests < SETTLED_REQUESTS:
        return window
    return window.model_copy(update={"settled": round(evidence.position0(total), 4)})


def _validated(context: Context, status: Status, window: Window) -> Baseline:
    """What the probe measured on the very files that the revision runs."""
    recipe, validation = context.observed.recipe(window.revision), status.validation
    if recipe is None or validation is None or validation.probe is None or not validation.probe.drafts:
        return NO_BASELINE
    if recipe.fingerprints is None or recipe.fingerprints != validation.fingerprints:
        return NO_BASELINE
    return Baseline(Origin.PROBE, validation.probe.position0, validation.probe.drafts)


def speed_of(context: Context, window: Window) -> Speed | None:
    """From the step times of its pods' whole lives, which say nothing of acceptance, and the accept length of what it
    is judged by. Plain steps of other revisions count when target, engine and hardware are the same, for their target
    is as fast."""
    revision, judged = window.revision, window.judged
    recipe = context.observed.recipe(revision)
    if recipe is None or not judged.drafts:
        return None
    mine = [context.observed.worker(pod) for pod in context.observed.of(revision)]
    times = [time for worker in mine for time in worker.steps]
    for pod in context.observed.pods:
        other = context.observed.recipe(pod.revision)
        if other is None or pod.revision == revision:
            continue
        if (other.target, other.engine, other.resources) == (recipe.target, recipe.engine, recipe.resources):
            times += [time for time in context.observed.worker(pod).steps if time.phase == "plain"]
    return compare(times, evidence.accept_length(judged), judged.drafts)


def _noted(status: Status, measured: Measurement) -> Status:
    """The last measurements; one that says the same as the last of its revision takes its place."""
    kept = list(status.measurements)
    last = next((m for m in reversed(kept) if m.revision == measured.revision), None)
    if last and (last.test, last.outcome, last.reason) == (measured.test, measured.outcome, measured.reason):
        kept.remove(last)
    return status.model_copy(update={"measurements": [*kept, measured][-MEASUREMENTS_KEPT:]})


class Refused(NamedTuple):
    reason: str
    message: str
    before_retry: bool  # by a worker that was there when the present retry was asked for


def refused_at_start(context: Context, status: Status, revision: str) -> Refused | None:
    """What a ready worker of the revision says against it, before any evidence.

    Workers that were started before the present retry, or without their drafter, are about to be replaced or have
    been; what they saw is known. Those of a revision that never was in quarantine are not replaced by a retry.
    """
    recipe, retry = context.observed.recipe(revision), retry_of_workers(context, status, revision)

    def before_retry(pod: Pod) -> bool:
        return pod.uid in status.unread and pod.retry != retry_of(context.observed.resource)

    for pod in context.observed.of(revision):
        worker = context.observed.worker(pod)
        if not pod.ready or pod.retry != retry or pod.target_alone:
            continue
        if worker.status and worker.status.self_test.outcome == SelfTestOutcome.NO_LIFE:
            drafts = worker.status.self_test.drafts
            message = (
                f"self-test of {pod.name}: none of {drafts} drafts was accepted; the drafter does not predict this "
                "target as this engine wires it"
            )
            return Refused("SelfTestFailed", message, before_retry(pod))
        if recipe and worker.version and not same_version(worker.version, recipe.engine.version or ""):
            message = (
                f"{pod.name} runs {recipe.engine.type} {worker.version}, and the pair was validated for "
                f"{recipe.engine.version}: set engine.version to what the image holds"
            )
            return Refused("EngineVersionDiffers", message, before_retry(pod))
    return None


def unproven(context: Context, *revisions: str) -> list[str]:
    """Pods (uids) of engines without a self-test that have drafted too little to say whether their drafter lives.

    Calibration prompts make up for it. A pod that served requests and drafted nothing is judged by that.
    """
    found = []
    for revision in filter(None, revisions):
        for pod in ready_pods(context, revision):
            worker = context.observed.worker(pod)
            if worker.status or not worker.speculating or worker.counts is None:
                continue
            if worker.counts.drafts < SELF_TEST_DRAFTS and (worker.counts.drafts or not worker.counts.requests):
                found.append(pod.uid)
    return found


def note_metrics(context: Context, status: Status, notes: Notes) -> None:
    """Workers that give no figures: no evidence, neither good nor bad, and no reason to think that all is well."""
    ready = [pod for pod in context.observed.pods if pod.ready and not pod.terminating]
    frozen = frozenset(uid for window in status.windows for uid in evidence.frozen(window))
    problems = [(pod.name, problem) for pod in ready if (problem := _problem(context, pod, frozen))]
    if not ready:
        notes.seen.append(Condition("MetricsAvailable", "Unknown", "NoReadyWorker", "no worker is ready"))
    elif problems:
        listed = "; ".join(f"{name}: {problem}" for name, problem in problems[:5])
        silent = any(context.observed.worker(pod).counts is None for pod in ready)
        reason = "ScrapeFailed" if silent else "CountersFrozen"
        message = f"no usable /metrics from {listed}: counts as no evidence, neither good nor bad"
        notes.seen.append(Condition("MetricsAvailable", "False", reason, message))
    else:
        notes.seen.append(
            Condition("MetricsAvailable", "True", "Scraped", f"figures come from {count(len(ready), 'worker')}")
        )


def ready_pods(context: Context, revision: str) -> list[Pod]:
    return [pod for pod in context.observed.of(revision) if pod.ready]
