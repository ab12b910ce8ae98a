"""The conditions that sum a pass up, and the figures beside them."""

from __future__ import annotations

from tandem_operator import names
from tandem_operator.api import Status
from tandem_operator.plan import guard
from tandem_operator.plan.conditions import Seen, count
from tandem_operator.plan.decision import Notes
from tandem_operator.plan.observed import Context, Pod
from tandem_operator.plan.quarantine import blocked
from tandem_operator.plan.validation import Checked

TOLD_OTHERWISE = ("Progressing", "CanaryHealthy", "RolledBack", "Reconciling", "Stalled")  # have events of their own


def ready(context: Context, status: Status, checked: Checked) -> Seen:
    """Ready is about users: enough workers answer, whatever revision they are of and whatever its canary does."""
    spec = context.observed.resource.spec
    serving = [pod for pod in context.observed.pods if pod.ready and not pod.terminating]
    revisions = ", ".join(sorted({pod.revision for pod in serving}))
    if spec.replicas == 0:
        return Seen("Ready", "True", "ScaledToZero", "spec.replicas is 0")
    enough = max(1, spec.replicas - spec.rollout.max_unavailable)
    if len(serving) >= enough:
        message = f"{count(len(serving), 'worker')} ready (revision {revisions})"
        reports = ((pod.name, context.observed.worker(pod).status) for pod in serving)
        slow = [f"{name}: {status.degraded}" for name, status in reports if status and status.degraded]
        restless = [f"{pod.name} restarted {pod.restarts} times, last {pod.trouble}" for pod in serving if pod.trouble]
        mixed = _mixed_images(serving)
        reason = "Degraded" if slow else "MixedImages" if mixed else "Serving"
        return Seen("Ready", "True", reason, "; ".join([message, *slow[:3], *restless[:3], *mixed]))
    if not status.stable_revision and not checked.allowed:
        return Seen("Ready", "False", "NotValidated", f"nothing serves yet: {checked.condition.message}")
    troubles = [f"{pod.name}: {pod.trouble}" for pod in context.observed.pods if pod.trouble and not pod.terminating]
    troubles += [deployment.problem for deployment in context.observed.deployments if deployment.problem]
    detail = f"; {'; '.join(troubles[:3])}" if troubles else ""
    refusing = (pod for pod in context.observed.pods if pod.failure and not pod.ready and not pod.terminating)
    said = next((pod.failure.reason for pod in refusing if pod.failure), "")
    reason = said or ("TooFewWorkers" if status.stable_revision else "Starting")
    return Seen("Ready", "False", reason, f"{len(serving)} of {spec.replicas} workers ready{detail}")


def _mixed_images(serving: list[Pod]) -> list[str]:
    """Revisions of which not all workers run the image that was judged: a tag was moved in between."""
    images: dict[str, set[str]] = {}
    for pod in serving:
        if pod.image:
            images.setdefault(pod.revision, set()).add(pod.image)
    return [
        f"workers of revision {revision} run different images ({', '.join(sorted(found))}): the tag in engine.image "
        "was moved; name a digest instead"
        for revision, found in images.items()
        if len(found) > 1
    ]


def progressing(context: Context, status: Status, wanted: str, checked: Checked) -> Seen:
    """Used when nothing more telling was noted on the way."""
    if entry := blocked(context, status, wanted):
        returning = status.canary_revision
        if returning:
            return Seen("Progressing", "True", "RollingBack", f"going back to revision {returning}")
        return Seen("Progressing", "False", "Quarantined", f"revision {wanted} is quarantined: {entry.message}")
    if not wanted:
        moving = checked.condition.status == "Unknown"
        return Seen("Progressing", "True" if moving else "False", checked.condition.reason, checked.condition.message)
    if status.canary_revision:
        message = f"canary {status.canary_revision} at weight {status.weight}"
        return Seen("Progressing", "True", "RollingOut", message)
    if wanted != status.stable_revision and context.observed.resource.spec.paused:
        message = f"revision {wanted} is what the spec asks for; it waits, since spec.paused is true"
        return Seen("Progressing", "True", "Paused", message)
    if checked.refused:
        message = f"revision {status.stable_revision} runs the target alone: {checked.condition.message}"
        return Seen("Progressing", "False", checked.condition.reason, message)
    return Seen("Progressing", "False", "Complete", f"revision {status.stable_revision} is what the spec asks for")


def rolled_back(context: Context, status: Status, wanted: str) -> Seen:
    entry = blocked(context, status, wanted)
    if not entry:
        return Seen("RolledBack", "False", "NotRolledBack", "")
    serving = f"revision {status.stable_revision}" if status.stable_revision else "nothing"
    what = f"{serving} serves" if status.stable_revision != wanted else f"{serving} serves with speculation off"
    return Seen("RolledBack", "True", entry.reason, f"Revision {wanted}: {entry.message.rstrip('.')}. Now {what}")


def speculation_active(context: Context, status: Status, checked: Checked) -> Seen:
    """What the stable workers really do, with the reason why when they do not speculate."""
    stable = status.stable_revision
    if not stable:
        return Seen("SpeculationActive", "Unknown", "NotServing", "no stable revision serves yet")
    recipe = context.observed.recipe(stable)
    if recipe and not recipe.speculates:
        reason, why = "DisabledBySpec", ""
        if checked.refused:
            reason, why = "PairRefused", ": the pair was refused, and validation.onInvalid says so"
        return Seen("SpeculationActive", "False", reason, f"revision {stable} runs the target alone{why}")
    entry = blocked(context, status, stable)
    pods = guard.ready_pods(context, stable)
    reported = [(pod, w) for pod in pods if (w := context.observed.worker(pod)).speculating is not None]
    if not reported:
        return Seen("SpeculationActive", "Unknown", "NoReadyWorker", f"no worker of revision {stable} could be asked")
    off = [(pod, w) for pod, w in reported if not w.speculating]
    if not off and not entry:
        return Seen(
            "SpeculationActive", "True", "Speculating", f"speculation is on in {count(len(reported), 'worker')}"
        )
    if entry and len(off) == len(reported):
        message = f"switched off, the target keeps serving: {entry.message}"
        return Seen("SpeculationActive", "False", entry.reason, message)
    late = [(pod, w) for pod, w in reported if bool(w.speculating) == bool(entry)]
    pod, worker = late[0]
    why = (worker.status.speculation_reason if worker.status else "") or "switching"
    done = f"{len(reported) - len(late)} of {count(len(reported), 'worker')}"
    what = f"being switched {'off' if entry else 'on'}: {done} so far ({pod.name}: {why})"
    return Seen("SpeculationActive", "False" if off else "True", "Switching", what)


def note_transitions(before: Status, after: Status, notes: Notes) -> None:
    """An event where a condition changed its status or reason; what has an event of its own is left out."""
    old = {condition.type: condition for condition in before.conditions}
    for condition in after.conditions:
        if condition.type in TOLD_OTHERWISE or not condition.message:
            continue
        if condition.status == "Unknown" and condition.type != "Validated":
            continue  # not looked at, or nobody to ask
        last = old.get(condition.type)
        if last and (last.status, last.reason) == (condition.status, condition.reason):
            continue
        bad = condition.status == "False" and condition.reason not in ("Starting", "DisabledBySpec", "NotValidated")
        notes.say("Warning" if bad else "Normal", f"{condition.type}{condition.reason}"[:120], condition.message)


def selector(name: str) -> str:
    return ",".join(f"{key}={value}" for key, value in names.worker_selector(name).items())
