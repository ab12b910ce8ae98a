"""Which revision is to serve, and how far its way there has come.

`goal` picks the revision; `advance` moves one canary towards being stable:

    start -> its pods ready -> for each step: analysis Healthy -> weight 100 -> all ready -> stable

Three ways lead straight to weight 100: nothing serves yet (a first install is gated by validation and self-test), a
return to an earlier healthy revision, and a rollout without steps. A canary that collapses, sees no life in its
self-test, or misses its deadline is quarantined: the next pass finds its revision blocked and picks the stable one
again, without touching `spec`. Everything is derived from status and from what is observed, so a pass may be repeated,
or lost, at any point.
"""

from __future__ import annotations

from datetime import timedelta

from tandem_operator.api import Status
from tandem_operator.api.spec import OnCollapse
from tandem_operator.api.status import Measurement, Outcome, Progress, Quarantine
from tandem_operator.plan import guard
from tandem_operator.plan.conditions import Seen
from tandem_operator.plan.decision import Notes
from tandem_operator.plan.observed import Context
from tandem_operator.plan.revisions import spec_hash
from tandem_operator.plan.scale import shares
from tandem_operator.plan.validation import retry_of

QUARANTINE_KEPT = 10
NOT_SPECULATING = {
    "outcome": Outcome.HEALTHY,
    "reason": "NotSpeculating",
    "message": "this revision does not speculate; its workers are ready",
}


def blocked(context: Context, status: Status, revision: str) -> Quarantine | None:
    resource = context.observed.resource
    return status.quarantine_of(revision, spec_hash(resource.spec, retry_of(resource)))


def retry_of_workers(context: Context, status: Status, revision: str) -> str:
    """The retry annotation that workers of the revision are started under: empty unless it was ever quarantined."""
    once = any(entry.revision == revision for entry in status.quarantined)
    return retry_of(context.observed.resource) if once else ""


def goal(context: Context, status: Status, wanted: str) -> str:
    """The revision that should serve; empty: none may. `wanted` is the spec's, empty while it may not be rolled out."""
    stable = status.stable_revision
    if not wanted:
        return stable
    if not blocked(context, status, wanted):
        return wanted
    if stable != wanted:
        return stable
    if context.observed.resource.spec.guard.on_collapse == OnCollapse.ROLLBACK:
        return _earlier_healthy(context, status) or stable
    return stable


def _earlier_healthy(context: Context, status: Status) -> str:
    """The newest other revision that once was stable and is in no quarantine, of this spec or an earlier one."""
    bad = {entry.revision for entry in status.quarantined} | {status.stable_revision}
    return next((h.revision for h in reversed(context.observed.history) if h.served and h.revision not in bad), "")


def quarantine(context: Context, status: Status, revision: str, reason: str, message: str, notes: Notes) -> Status:
    resource = context.observed.resource
    entry = Quarantine(
        revision=revision,
        reason=reason,
        message=message,
        at=context.now,
        spec=spec_hash(resource.spec, retry_of(resource)),
    )
    others = [q for q in status.quarantined if (q.revision, q.spec) != (entry.revision, entry.spec)]
    notes.say("Warning", "Quarantined", f"Revision {revision} quarantined ({reason}): {message}")
    status = status.model_copy(update={"quarantined": [*others, entry][-QUARANTINE_KEPT:]})
    return _without_canary(status) if revision == status.canary_revision else status


def _without_canary(status: Status) -> Status:
    return status.model_copy(update={"canary_revision": "", "weight": 0, "progress": None})


def advance(context: Context, status: Status, target: str, wanted: str, notes: Notes) -> Status:
    """One pass of the canary on its way to being stable. `target`: what `goal` picked."""
    if not target or target == status.stable_revision:
        if status.canary_revision:
            notes.say("Normal", "CanaryWithdrawn", f"Canary {status.canary_revision} withdrawn")
        return _without_canary(status)
    if status.canary_revision != target or status.progress is None:
        return _start(context, status, target, wanted, notes)
    if (judged := _self_test_verdict(context, status, target, notes)) is not None:
        return judged
    if not _ready(context, status, target):
        return _not_ready(context, status, target, notes)
    if status.weight == 100:
        return _promoted(status, target, notes)
    return _analyse(context, status, target, notes)


def _start(context: Context, status: Status, target: str, wanted: str, notes: Notes) -> Status:
    steps = context.observed.resource.spec.rollout.steps
    direct = not status.stable_revision or target != wanted or not steps
    weight = 100 if direct else steps[0].weight
    notes.say("Normal", "CanaryStarted", f"Canary {target} starts at weight {weight}")
    if status.stable_revision and target == wanted:
        notes.seen.append(Seen("CanaryHealthy", "Unknown", "Starting", f"canary {target} is starting"))
    progress = Progress(step=0, step_started_at=context.now, started_at=context.now)
    return status.model_copy(update={"canary_revision": target, "weight": weight, "progress": progress})


def _self_test_verdict(context: Context, status: Status, target: str, notes: Notes) -> Status | None:
    message = guard.self_test_failed(context, target, retry_of_workers(context, status, target))
    if not message or blocked(context, status, target):
        return None
    status = quarantine(context, status, target, "SelfTestFailed", message, notes)
    if status.stable_revision:
        notes.seen.append(Seen("CanaryHealthy", "False", "SelfTestFailed", message))
        return status
    # Nothing to go back to: the target keeps serving, with speculation off.
    return _promoted(status, target, notes)


def _ready(context: Context, status: Status, target: str) -> bool:
    """The weight is in force: enough ready workers of this very revision, and no more of the stable one than its share.

    Workers of another revision never count as the canary's (dynamo #3567).
    """
    for_stable, for_canary = _shares(context, status)
    stable = context.observed.deployment(status.stable_revision) if status.weight < 100 else None
    return len(guard.ready_pods(context, target)) >= for_canary and (stable is None or stable.desired <= for_stable)


def _shares(context: Context, status: Status) -> tuple[int, int]:
    spec = context.observed.resource.spec
    return shares(spec.replicas, status.weight, spec.rollout.max_surge)


def _not_ready(context: Context, status: Status, target: str, notes: Notes) -> Status:
    assert status.progress is not None
    deadline = timedelta(seconds=context.observed.resource.spec.rollout.progress_deadline_seconds)
    left = (status.progress.step_started_at + deadline - context.now).total_seconds()
    trouble = next((f"{pod.name}: {pod.trouble}" for pod in context.observed.of(target) if pod.trouble), "")
    ready, needed = len(guard.ready_pods(context, target)), _shares(context, status)[1]
    if left > 0:
        notes.wakes.append(left)
        message = f"canary {target}: {ready} of {needed} workers ready" + (f"; {trouble}" if trouble else "")
        notes.seen.append(Seen("Progressing", "True", "WaitingForWorkers", message))
        return status
    seconds = deadline.total_seconds()
    message = f"{ready} of {needed} workers became ready in {seconds:.0f} s; {trouble or 'no reason is known'}"
    if status.stable_revision:
        notes.seen.append(Seen("CanaryHealthy", "False", "ProgressDeadlineExceeded", message))
    return quarantine(context, status, target, "ProgressDeadlineExceeded", message, notes)


def _analyse(context: Context, status: Status, target: str, notes: Notes) -> Status:
    """At a step: hold until there is evidence, then go on or take the canary back."""
    recipe = context.observed.recipe(target)
    spec = context.observed.resource.spec
    before = guard.window_of(context, status, target)
    status, window, verdict = guard.look_at_canary(context, status, target)
    notes.wakes.append(spec.rollout.analysis.interval_seconds)
    if verdict is None:
        notes.seen.append(_step_condition(status, target, "the next look at acceptance is still to come"))
        return status
    if recipe is not None and not recipe.speculates:
        verdict = verdict.model_copy(update=NOT_SPECULATING)
    notes.seen.append(_step_condition(status, target, verdict.message))
    notes.seen.append(_canary_condition(target, verdict))
    if verdict.outcome.bad and spec.guard.on_collapse != OnCollapse.ALERT:
        message = f"Canary {target} rolled back: {verdict.message}{_stable_figure(status)}"
        notes.say("Warning", "RolledBack", message)
        return quarantine(context, status, target, verdict.reason, verdict.message + _stable_figure(status), notes)
    if verdict.outcome == Outcome.HEALTHY:
        status = guard.next_window(context, status, window)
        return _next_step(context, status, target, verdict, notes)
    unread = verdict.outcome == Outcome.METRICS_UNAVAILABLE
    unused = window.counts.user_requests == before.counts.user_requests
    if unused and not unread and recipe is not None and recipe.speculates:
        notes.calibrate += [pod.uid for pod in guard.ready_pods(context, target)]
    return status


def _next_step(context: Context, status: Status, target: str, verdict: Measurement, notes: Notes) -> Status:
    assert status.progress is not None
    steps = context.observed.resource.spec.rollout.steps
    step = status.progress.step + 1
    weight = steps[step].weight if step < len(steps) else 100
    notes.say("Normal", "CanaryAdvanced", f"Canary {target} goes to weight {weight}: {verdict.message}")
    progress = status.progress.model_copy(update={"step": step, "step_started_at": context.now})
    return status.model_copy(update={"weight": weight, "progress": progress})


def _promoted(status: Status, target: str, notes: Notes) -> Status:
    before = status.stable_revision
    replaced = f" in place of {before}" if before else ""
    notes.say("Normal", "Promoted", f"Revision {target} is stable{replaced}")
    return _without_canary(status.model_copy(update={"stable_revision": target}))


def _stable_figure(status: Status) -> str:
    stable = status.acceptance
    return f"; stable {stable.accept_length:.2f}" if stable and stable.revision == status.stable_revision else ""


def _step_condition(status: Status, target: str, message: str) -> Seen:
    return Seen("Progressing", "True", "CanaryStep", f"canary {target} at weight {status.weight}: {message}")


def _canary_condition(target: str, verdict: Measurement) -> Seen:
    message = f"canary {target}: {verdict.message}"
    if verdict.outcome.bad:
        return Seen("CanaryHealthy", "False", verdict.reason, message)
    healthy = verdict.outcome == Outcome.HEALTHY
    return Seen("CanaryHealthy", "True" if healthy else "Unknown", verdict.reason, message)
