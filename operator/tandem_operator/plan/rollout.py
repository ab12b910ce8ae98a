"""Which revision is to serve, and how far its way there has come.

`goal` picks the revision; `advance` moves one canary towards being stable:

    start -> its pods ready -> for each step (`steps`): analysis Healthy -> weight 100 -> all ready -> stable

Three ways lead straight to weight 100: nothing serves yet (a first install is gated by validation and self-test), a
return to a revision that was healthy before, and a rollout without steps. A canary that collapses, sees no life in its
self-test, or misses its deadline is quarantined: the next pass finds its revision blocked and picks the stable one
again, without touching `spec`. Everything is derived from status and from what is observed, so a pass may be repeated,
or lost, at any point.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tandem_operator.api import Status
from tandem_operator.api.rollout import OnCollapse
from tandem_operator.api.status import Progress
from tandem_operator.plan import guard, traffic
from tandem_operator.plan.conditions import Seen
from tandem_operator.plan.decision import Notes
from tandem_operator.plan.observed import Context
from tandem_operator.plan.quarantine import blocked, quarantine, quarantined_before_retry, without_canary
from tandem_operator.plan.revisions import deadline_seconds
from tandem_operator.plan.scale import shares
from tandem_operator.plan.steps import at_step

MOST_RESTARTS = 3  # of a canary's workers in one step


def goal(context: Context, status: Status, wanted: str) -> str:
    """The revision that should serve; empty: none may. `wanted` is the spec's, empty while it may not be rolled out."""
    stable = status.stable_revision
    entry = blocked(context, status, wanted)
    if context.observed.resource.spec.paused and not entry:
        return status.canary_revision or stable
    if not wanted:
        return stable
    if not entry:
        return wanted
    if _may_serve(context, status, entry.instead):
        return entry.instead
    if stable != wanted and not blocked(context, status, stable):
        return stable
    if context.observed.resource.spec.guard.on_collapse == OnCollapse.ROLLBACK:
        return _earlier_healthy(context, status) or stable
    return stable


def _may_serve(context: Context, status: Status, revision: str) -> bool:
    return context.observed.recipe(revision) is not None and not blocked(context, status, revision)


def _earlier_healthy(context: Context, status: Status) -> str:
    """The newest other revision that once was stable and is in no quarantine, of this spec or an earlier one."""
    bad = {entry.revision for entry in status.quarantined} | {status.stable_revision}
    return next((h.revision for h in reversed(context.observed.history) if h.served and h.revision not in bad), "")


def advance(context: Context, status: Status, target: str, wanted: str, notes: Notes) -> Status:
    """One pass of the canary on its way to being stable. `target`: what `goal` picked."""
    if not target or target == status.stable_revision:
        if status.canary_revision:
            notes.say("Normal", "CanaryWithdrawn", f"Canary {status.canary_revision} withdrawn")
        return without_canary(status)
    if status.canary_revision != target or status.progress is None:
        return _start(context, status, target, wanted, notes)
    if (judged := _self_test_verdict(context, status, target, notes)) is not None:
        return judged
    if context.observed.resource.spec.replicas == 0:
        notes.seen.append(Seen("Progressing", "False", "ScaledToZero", f"canary {target} waits: spec.replicas is 0"))
        return _clocks(status, None, None)
    if storm := _restarts(context, status, target):
        if status.stable_revision:
            notes.seen.append(Seen("CanaryHealthy", "False", "WorkersRestart", storm))
        return quarantine(context, status, target, "WorkersRestart", storm, notes)
    if not _ready(context, status, target):
        return _not_ready(context, status, target, notes)
    status = _in_force(context, status, target)
    if status.weight < 100:
        return at_step(context, status, target, notes)
    if context.observed.resource.spec.paused and target == wanted:
        notes.seen.append(Seen("Progressing", "True", "Paused", f"canary {target} stays: spec.paused is true"))
        return status
    return promoted(status, target, notes)


def _clocks(status: Status, in_force_at: datetime | None, waiting_since: datetime | None, ready: int = 0) -> Status:
    assert status.progress is not None
    update = {"in_force_at": in_force_at, "waiting_since": waiting_since, "ready": ready}
    return status.model_copy(update={"progress": status.progress.model_copy(update=update)})


def _in_force(context: Context, status: Status, target: str) -> Status:
    assert status.progress is not None
    since = status.progress.in_force_at
    status = _clocks(status, since or context.now, None)
    if since is None and status.progress is not None:
        update = {"restarts": _restarts_of(context, target)}
        status = status.model_copy(update={"progress": status.progress.model_copy(update=update)})
    return status


def _restarts(context: Context, status: Status, target: str) -> str:
    """A sentence when workers that were ready have died again and again since: what they show in between may be good
    (NCCL after 90 s, a liveness probe that is too strict: vllm #7466, dynamo #2124)."""
    progress = status.progress
    if progress is None or progress.in_force_at is None:
        return ""
    restarts = _restarts_of(context, target) - progress.restarts
    if restarts < MOST_RESTARTS:
        return ""
    words = next((f"; {pod.name}: {pod.trouble}" for pod in context.observed.of(target) if pod.trouble), "")
    return f"workers restarted {restarts} times since they were ready{words}"


def _restarts_of(context: Context, target: str) -> int:
    return sum(pod.restarts for pod in context.observed.of(target))


def _start(context: Context, status: Status, target: str, wanted: str, notes: Notes) -> Status:
    steps = context.observed.resource.spec.rollout.steps
    direct = not status.stable_revision or target != wanted or not steps or _returns(context, status, target)
    weight = 100 if direct else steps[0].weight
    notes.say("Normal", "CanaryStarted", f"Canary {target} starts at weight {weight}")
    if status.stable_revision and target == wanted:
        notes.seen.append(Seen("CanaryHealthy", "Unknown", "Starting", f"canary {target} is starting"))
    progress = Progress(step=0, step_started_at=context.now, started_at=context.now)
    return status.model_copy(update={"canary_revision": target, "weight": weight, "progress": progress})


def _returns(context: Context, status: Status, target: str) -> bool:
    """It served not long ago, and nothing was ever held against it (argo-rollouts #22, #200)."""
    window = context.observed.resource.spec.rollout.rollback_window_revisions
    served = [
        h.revision for h in reversed(context.observed.history) if h.served and h.revision != status.stable_revision
    ]
    return target in served[:window] and not any(entry.revision == target for entry in status.quarantined)


def _self_test_verdict(context: Context, status: Status, target: str, notes: Notes) -> Status | None:
    refused = guard.refused_at_start(context, status, target)
    if not refused or blocked(context, status, target):
        return None
    if refused.before_retry:
        return quarantined_before_retry(context, status, target, refused.reason, refused.message)
    status = quarantine(context, status, target, refused.reason, refused.message, notes)
    if status.stable_revision:
        notes.seen.append(Seen("CanaryHealthy", "False", refused.reason, refused.message))
        return status
    # Nothing to go back to: the target keeps serving, with speculation off.
    return promoted(status, target, notes)


def _ready(context: Context, status: Status, target: str) -> bool:
    """The weight is in force: enough ready workers of this very revision, and no more of the stable one than its share.

    Workers of another revision never count as the canary's (dynamo #3567).
    """
    for_stable, for_canary = _shares(context, status)
    stable = context.observed.deployment(status.stable_revision) if status.weight < 100 else None
    if status.weight < 100 and traffic.problem(context):
        return False
    return len(guard.ready_pods(context, target)) >= for_canary and (stable is None or stable.desired <= for_stable)


def _shares(context: Context, status: Status) -> tuple[int, int]:
    spec = context.observed.resource.spec
    return shares(spec.replicas, status.weight, spec.rollout.max_surge)


def _not_ready(context: Context, status: Status, target: str, notes: Notes) -> Status:
    assert status.progress is not None
    progress = status.progress
    ready, needed = len(guard.ready_pods(context, target)), _shares(context, status)[1]
    # The clock starts with the step, and anew when workers are lost that were there, when more are asked for, and, as a
    # Deployment's does, with every further worker that is ready: many one after the other may take longer than it.
    lost = progress.waiting_since is None and progress.in_force_at is not None
    anew = lost or ready > progress.ready
    since = context.now if anew else progress.waiting_since or progress.step_started_at
    status = _clocks(status, progress.in_force_at, since, ready if anew else progress.ready)
    deadline = timedelta(seconds=deadline_seconds(context.observed.resource.spec, context.observed.recipe(target)))
    left = (since + deadline - context.now).total_seconds()
    stuck = next((pod for pod in context.observed.of(target) if pod.trouble), None)
    trouble = f"{stuck.name}: {stuck.trouble}" if stuck else context.observed.deployment(target).problem
    trouble = trouble or (traffic.problem(context) if status.weight < 100 else "")
    if left > 0:
        notes.wakes.append(left)
        message = f"canary {target}: {ready} of {needed} workers ready" + (f"; {trouble}" if trouble else "")
        reason = stuck.failure.reason if stuck and stuck.failure else "WaitingForWorkers"
        notes.seen.append(Seen("Progressing", "True", reason, message))
        return status
    seconds = deadline.total_seconds()
    message = f"{ready} of {needed} workers became ready in {seconds:.0f} s; {trouble or 'no reason is known'}"
    if status.stable_revision:
        notes.seen.append(Seen("CanaryHealthy", "False", "ProgressDeadlineExceeded", message))
    return quarantine(context, status, target, "ProgressDeadlineExceeded", message, notes)


def promoted(status: Status, target: str, notes: Notes) -> Status:
    before = status.stable_revision
    replaced = f" in place of {before}" if before else ""
    notes.say("Normal", "Promoted", f"Revision {target} is stable{replaced}")
    return without_canary(status.model_copy(update={"stable_revision": target}))
