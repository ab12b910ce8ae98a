"""One step of a canary whose weight is in force: when does it go on, stay, or go back?

    initial delay -> looks, one an interval -> Healthy, and its pause is over -> the next step
                                            -> bad -> taken back
                                            -> neither within the timeout -> taken back, or held for a person

A canary that was found healthy is looked at for as long as its pause lasts, and taken back if it collapses then.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tandem_operator.api import Status
from tandem_operator.api.rollout import Analysis, OnCollapse, OnInconclusive, Step
from tandem_operator.api.status import Measurement, Outcome, Progress
from tandem_operator.plan import guard, windows
from tandem_operator.plan.conditions import Seen
from tandem_operator.plan.decision import Notes
from tandem_operator.plan.observed import Context
from tandem_operator.plan.quarantine import quarantine
from tandem_operator.plan.scale import told_share

NOT_SPECULATING = {
    "outcome": Outcome.HEALTHY,
    "reason": "NotSpeculating",
    "message": "this revision does not speculate; its workers are ready",
}


def at_step(context: Context, status: Status, target: str, notes: Notes) -> Status:
    """The canary `target` has its workers: hold it until there is evidence, then go on or take it back."""
    progress = _progress(status)
    assert progress.in_force_at is not None
    judged_from = progress.in_force_at + timedelta(seconds=_analysis(context).initial_delay_seconds)
    if context.now < judged_from:
        notes.wakes.append((judged_from - context.now).total_seconds())
        message = f"what it shows counts from {judged_from:%H:%M:%S} UTC on (rollout.analysis.initialDelaySeconds)"
        notes.seen.append(_at_weight(context, status, target, message))
        return guard.warm_up(context, status, target)
    before = windows.window_of(context, status, target)
    status, window, verdict = guard.look_at_canary(context, status, target)
    notes.wakes.append(_analysis(context).interval_seconds)
    if verdict is None and (known := _alerted(context, status, target)):
        return _bad(context, status, target, known, notes)
    if verdict is not None:
        recipe = context.observed.recipe(target)
        if recipe is not None and not recipe.speculates:
            verdict = verdict.model_copy(update=NOT_SPECULATING)
        if verdict.outcome.bad or verdict.outcome == Outcome.HEALTHY or not progress.passed:
            notes.seen.append(_health(target, verdict))  # a new window that says nothing yet takes nothing back
        if verdict.outcome.bad:
            return _bad(context, status, target, verdict, notes)
        if verdict.outcome == Outcome.HEALTHY:
            status = _judged(context, status, target)
        elif (
            verdict.outcome != Outcome.METRICS_UNAVAILABLE
            and window.counts.user_requests == before.counts.user_requests
        ):
            notes.calibrate += [pod.uid for pod in guard.ready_pods(context, target)]
    why = verdict.message if verdict else "the next look at acceptance is still to come"
    if not _progress(status).passed:
        return _not_yet(context, status, target, why, judged_from, notes)
    return _passed(context, status, target, why, notes)


def next_step(context: Context, status: Status, target: str, why: str, notes: Notes, *, last: bool = False) -> Status:
    """`last`: past all that are left."""
    progress, steps = _progress(status), context.observed.resource.spec.rollout.steps
    step = len(steps) if last else progress.step + 1
    weight = steps[step].weight if step < len(steps) else 100
    notes.say("Normal", "CanaryAdvanced", f"Canary {target} goes to weight {weight}: {why}")
    status = windows.next_window(context, status, windows.window_of(context, status, target))
    begun = Progress(step=step, step_started_at=context.now, started_at=progress.started_at)
    return status.model_copy(update={"weight": weight, "progress": begun})


def _alerted(context: Context, status: Status, target: str) -> Measurement | None:
    """What was held against the canary in this step, where that is only told: it holds between two looks, and has no
    end but a person's."""
    spec, since = context.observed.resource.spec, _progress(status).in_force_at
    if spec.rollout.analysis.dry_run or spec.guard.on_collapse != OnCollapse.ALERT or since is None:
        return None
    last = next((m for m in reversed(status.measurements) if m.revision == target and m.at >= since), None)
    return last if last and last.outcome.bad else None


def _bad(context: Context, status: Status, target: str, verdict: Measurement, notes: Notes) -> Status:
    """Collapsed, too slow, or not speculating at all."""
    spec, told = context.observed.resource.spec, verdict.message + _stable_figure(status)
    if spec.rollout.analysis.dry_run:
        if _news(context, "CanaryHealthy", verdict.reason):
            notes.say("Warning", verdict.outcome, f"Canary {target}: {told}; rollout.analysis.dryRun is on")
        status = _judged(context, status, target)
        return _passed(context, status, target, f"{told} (dry run)", notes)
    if spec.guard.on_collapse == OnCollapse.ALERT:
        if _news(context, "CanaryHealthy", verdict.reason):
            notes.say("Warning", verdict.outcome, f"Canary {target}: {told}; guard.onCollapse is Alert")
        held = f"canary {target} stays at weight {status.weight} (guard.onCollapse is Alert): {told}{_by_hand(target)}"
        notes.seen.append(Seen("Progressing", "False", "CanaryUnhealthy", held))
        return status
    notes.say("Warning", "RolledBack", f"Canary {target} rolled back: {told}")
    return quarantine(context, status, target, verdict.reason, told, notes)


def _judged(context: Context, status: Status, target: str) -> Status:
    """The step has its verdict; what comes now is looked at on its own."""
    status = windows.next_window(context, status, windows.window_of(context, status, target))
    return status.model_copy(update={"progress": _progress(status).model_copy(update={"passed": True})})


def _not_yet(context: Context, status: Status, target: str, why: str, judged_from: datetime, notes: Notes) -> Status:
    """No verdict so far. That has an end."""
    analysis = _analysis(context)
    if context.observed.resource.spec.paused:  # and the time-out counts from its end
        progress = _progress(status)
        update = {"in_force_at": context.now - timedelta(seconds=analysis.initial_delay_seconds)}
        notes.seen.append(_paused(context, status, target, f"stays: spec.paused is true; {why}"))
        return status.model_copy(update={"progress": progress.model_copy(update=update)})
    left = (judged_from + timedelta(seconds=analysis.timeout_seconds) - context.now).total_seconds()
    if left > 0:
        notes.wakes.append(left)
        notes.seen.append(_at_weight(context, status, target, why))
        return status
    message = f"not found healthy in {analysis.timeout_seconds} s (rollout.analysis.timeoutSeconds): {why}"
    if analysis.dry_run:
        return _passed(context, status, target, f"{message} (dry run)", notes)
    if analysis.on_inconclusive == OnInconclusive.ROLLBACK:
        notes.seen.append(Seen("CanaryHealthy", "Unknown", "AnalysisTimedOut", f"canary {target}: {message}"))
        notes.say("Warning", "RolledBack", f"Canary {target} rolled back: {message}")
        return quarantine(context, status, target, "AnalysisTimedOut", message, notes)
    held = f"canary {target} is held at weight {status.weight}: {message}{_by_hand(target)}"
    if _news(context, "Progressing", "AnalysisTimedOut"):
        notes.say("Warning", "AnalysisTimedOut", held)
    notes.seen.append(Seen("Progressing", "False", "AnalysisTimedOut", held))
    return status


def _passed(context: Context, status: Status, target: str, why: str, notes: Notes) -> Status:
    """Found healthy: on to the next step, unless something asks to wait."""
    if waits := _pause(context, status, target, notes):
        notes.seen.append(_paused(context, status, target, waits))
        if _news(context, "Progressing", "Paused"):
            notes.say("Normal", "CanaryPaused", f"Canary {target} at weight {status.weight} {waits}")
        return status
    notes.seen.append(_at_weight(context, status, target, why))
    return next_step(context, status, target, why, notes)


def _pause(context: Context, status: Status, target: str, notes: Notes) -> str:
    """What the canary waits for although it is healthy; empty: nothing."""
    spec, progress = context.observed.resource.spec, _progress(status)
    if spec.paused:
        return "stays: spec.paused is true"
    pause = _step(context, progress).pause
    if pause is None:
        return ""
    if pause.seconds is None:
        return f"is healthy and waits to be promoted by hand{_by_hand(target)}"
    assert progress.in_force_at is not None
    end = progress.in_force_at + timedelta(seconds=pause.seconds)
    if context.now >= end:
        return ""
    notes.wakes.append((end - context.now).total_seconds())
    return f"is healthy and stays until {end:%Y-%m-%d %H:%M:%S} UTC"


def _step(context: Context, progress: Progress) -> Step:
    """The step that the canary is at; the last, if steps were taken out of the spec meanwhile."""
    steps = context.observed.resource.spec.rollout.steps
    return steps[min(progress.step, len(steps) - 1)] if steps else Step(weight=99)


def _by_hand(target: str) -> str:
    return f"; to go on, annotate with tandem.dev/promote={target}, to take it back with tandem.dev/abort={target}"


def _news(context: Context, kind: str, reason: str) -> bool:
    """The condition did not say so before: an event tells a transition, and tells it once."""
    return not any(c.type == kind and c.reason == reason for c in context.observed.resource.status.conditions)


def _progress(status: Status) -> Progress:
    assert status.progress is not None, "a canary has a progress"
    return status.progress


def _analysis(context: Context) -> Analysis:
    return context.observed.resource.spec.rollout.analysis


def _stable_figure(status: Status) -> str:
    stable = status.acceptance
    return f"; stable {stable.accept_length:.2f}" if stable and stable.revision == status.stable_revision else ""


def _at_weight(context: Context, status: Status, target: str, message: str) -> Seen:
    return Seen("Progressing", "True", "CanaryStep", f"{_where(context, status, target)}: {message}")


def _paused(context: Context, status: Status, target: str, message: str) -> Seen:
    return Seen("Progressing", "True", "Paused", f"{_where(context, status, target)} {message}")


def _where(context: Context, status: Status, target: str) -> str:
    spec = context.observed.resource.spec
    route = spec.traffic.http_route
    by_workers = told_share(spec.replicas, status.weight, spec.rollout.max_surge)
    comes_to = f"set in HTTPRoute {route.name}" if route else by_workers
    return f"canary {target} at weight {status.weight} ({comes_to})"


def _health(target: str, verdict: Measurement) -> Seen:
    message = f"canary {target}: {verdict.message}"
    if verdict.outcome.bad:
        return Seen("CanaryHealthy", "False", verdict.reason, message)
    healthy = verdict.outcome == Outcome.HEALTHY
    return Seen("CanaryHealthy", "True" if healthy else "Unknown", verdict.reason, message)
