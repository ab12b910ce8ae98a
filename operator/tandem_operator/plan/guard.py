"""Watching acceptance and speed: what the analysis is told of the stable and of the canary revision, and when.

A revision is looked at once an interval. A window that was judged Healthy ends and the next begins, so that its figures
are of now; one of the stable revision that comes to nothing in a day ends too. A pod that could not be read, and a
revision whose speculation the operator itself switched off, give no evidence.
"""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from typing import NamedTuple

from tandem_operator.api import Status
from tandem_operator.api.status import MOST_UNREAD, Counts, Measurement, Outcome, Window
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
from tandem_worker.contract import SELF_TEST_DRAFTS, SelfTestOutcome

MEASUREMENTS_KEPT = 10
STALE = timedelta(days=1)
SETTLED_DRAFTS, SETTLED_REQUESTS = 1000, 50


def window_of(context: Context, status: Status, revision: str) -> Window:
    return _known(status, revision) or evidence.fresh(
        Window(revision=revision, started_at=context.now, sampled_at=context.now), context.now, _total_beside(status)
    )


def _known(status: Status, revision: str) -> Window | None:
    return next((w for w in status.windows if w.revision == revision), None)


def _total_beside(status: Status) -> Counts | None:
    stable = _known(status, status.stable_revision)
    return stable.total if stable else None


def keep_windows(status: Status, *revisions: str) -> Status:
    """Only the windows of these revisions: state does not grow with history."""
    return status.model_copy(update={"windows": [w for w in status.windows if w.revision in revisions]})


def with_window(status: Status, window: Window) -> Status:
    others = [w for w in status.windows if w.revision != window.revision]
    return status.model_copy(update={"windows": [*others, window][-2:]})


def next_window(context: Context, status: Status, window: Window) -> Status:
    """The window has said what it had to say."""
    beside = _total_beside(status) if window.revision != status.stable_revision else None
    return with_window(status, evidence.fresh(window, context.now, beside))


def judged_anew(context: Context, status: Status, revision: str) -> Status:
    """What comes from here on counts, and nothing before."""
    return with_window(status, evidence.restart(window_of(context, status, revision), context.now))


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
    """For a revision that is switched off: what its pods count meanwhile is passed over."""
    status, window, added = _sampled(context, status, revision, passed_over=True)
    return with_window(status, window if added is None else evidence.restart(window, context.now))


def warm_up(context: Context, status: Status, revision: str) -> Status:
    """For a canary that is not judged yet: what its pods count meanwhile is passed over."""
    status, window, added = _sampled(context, status, revision, passed_over=True)
    return with_window(status, window) if added is None else next_window(context, status, window)


def unread_since_retry(context: Context, status: Status) -> Status:
    """A retry: what the workers that are there drafted before it is no evidence after it, whoever of them can be read
    now and whatever was lost of windows and records. A worker that starts later counts from its first draft."""
    there = [pod.uid for pod in context.observed.pods if not pod.terminating]
    return status.model_copy(update={"unread": there[:MOST_UNREAD]})


def _sampled(
    context: Context, status: Status, revision: str, *, passed_over: bool = False
) -> tuple[Status, Window, Counts | None]:
    """Of a worker in `status.unread` this reading is where its evidence begins. `passed_over`: those that can't be read
    now become such ones.

    A worker that a retry is about to replace adds nothing: it was started before, and may draft as it did then.
    """
    window = window_of(context, status, revision)
    interval = timedelta(seconds=context.observed.resource.spec.rollout.analysis.interval_seconds)
    if context.now - window.sampled_at < interval:
        return status, window, None
    replaceable, pods = context.observed.recipe(revision) is not None, context.observed.of(revision)
    unread = dict.fromkeys([*status.unread, *(pod.uid for pod in pods if passed_over and pod.ready)])
    readings, retry = [], retry_of_workers(context, status, revision)
    for pod in pods:
        worker = context.observed.worker(pod)
        if worker.counts is not None and worker.speculating is not None:
            replaced = replaceable and pod.retry != retry
            drafting = worker.speculating and not replaced and pod.uid not in status.unread
            readings.append(Reading(pod.uid, worker.counts, drafting, worker.running))
    window, added = evidence.sample(window, readings, context.now)
    alive = frozenset(pod.uid for pod in context.observed.pods)
    left = alive - {reading.source for reading in readings}
    status = status.model_copy(update={"unread": [uid for uid in unread if uid in left][:MOST_UNREAD]})
    return status, evidence.forget(window, alive), added


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
    return Seen(window, limits, baseline, neighbours, speed_of(context, window.revision))


def _baseline_of_canary(context: Context, status: Status, window: Window) -> Baseline:
    """The stable revision's part in the same window, if it has one."""
    total = _total_beside(status)
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


def speed_of(context: Context, revision: str) -> Speed | None:
    """From the step times of its pods; plain steps of other revisions count when target, engine and hardware are the
    same, for their target is as fast."""
    recipe = context.observed.recipe(revision)
    mine = [context.observed.worker(pod) for pod in context.observed.of(revision)]
    counts = reduce(evidence.plus, (worker.counts for worker in mine if worker.counts), Counts())
    if recipe is None or not counts.drafts:
        return None
    times = [time for worker in mine for time in worker.steps]
    for pod in context.observed.pods:
        other = context.observed.recipe(pod.revision)
        if other is None or pod.revision == revision:
            continue
        if (other.target, other.engine, other.resources) == (recipe.target, recipe.engine, recipe.resources):
            times += [time for time in context.observed.worker(pod).steps if time.phase == "plain"]
    return compare(times, evidence.accept_length(counts))


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


def refused_at_start(context: Context, revision: str, retry: str) -> Refused | None:
    """What a ready worker of the revision says against it, before any evidence.

    Workers that were started before the present `retry`, or without their drafter, are about to be replaced or have
    been; what they saw is known.
    """
    recipe = context.observed.recipe(revision)
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
            return Refused("SelfTestFailed", message)
        if recipe and worker.version and not same_version(worker.version, recipe.engine.version or ""):
            message = (
                f"{pod.name} runs {recipe.engine.type} {worker.version}, and the pair was validated for "
                f"{recipe.engine.version}: set engine.version to what the image holds"
            )
            return Refused("EngineVersionDiffers", message)
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
