"""What the plan promises of every single pass, whatever it saw. Each function raises AssertionError with what it broke.

A pass is judged by what it saw: that a worker dies a moment later is nobody's promise.
"""

from __future__ import annotations

from collections.abc import Iterator

from model.cluster import Cluster, Pass
from tandem_operator import names
from tandem_operator.api import Status
from tandem_operator.api.status import AnswerOutcome, Command, Outcome
from tandem_operator.plan.observed import Deployment, Observed
from tandem_operator.plan.recovery import last_served
from tandem_operator.plan.revisions import spec_hash
from tandem_worker.contract import SelfTestOutcome

KINDS = {
    "Service",
    "ServiceAccount",
    "ConfigMap",
    "PodDisruptionBudget",
    "ControllerRevision",
    "Deployment",
    "Scale",
    "Job",
}


def kept(done: Pass) -> None:
    """All of them."""
    the_spec_is_never_written(done)
    enough_workers_stay_and_never_too_many(done)
    only_stable_and_canary_grow(done)
    nothing_quarantined_gets_a_worker(done)
    weight_grows_by_evidence_alone(done)
    only_a_finished_canary_is_promoted(done)


def come_to_rest(cluster: Cluster, seconds: int, still: int, most: int) -> None:
    """Passes, `seconds` apart, until `still` of them in a row changed nothing; all are judged. Fails after `most`."""
    unchanged, last = 0, cluster.gist()
    for _ in range(most):
        kept(cluster.one_pass(seconds))
        before, last = last, cluster.gist()
        unchanged = unchanged + 1 if last == before else 0
        if unchanged == still:
            return
    raise AssertionError(f"no rest after {most} passes: {set(before) ^ set(last)}")


def the_spec_is_never_written(done: Pass) -> None:
    written = {manifest["kind"] for manifest in done.decided.apply}
    assert written <= KINDS, f"the operator writes {written - KINDS}"
    deleted = {deletion.kind for deletion in done.decided.delete}
    assert deleted <= {"Deployment", "Service", "ControllerRevision"}


def _scalings(done: Pass) -> Iterator[tuple[str, int]]:
    for manifest in done.decided.apply:
        if manifest["kind"] in ("Deployment", "Scale"):
            yield manifest["metadata"]["labels"][names.REVISION], manifest["spec"]["replicas"]


def enough_workers_stay_and_never_too_many(done: Pass) -> None:
    """After every single write, so that a crash behind any of them is safe."""
    spec = done.seen.resource.spec
    seen = {d.revision: d for d in done.seen.deployments}
    desired = {revision: d.desired for revision, d in seen.items()}
    ready, total = _ready(seen, desired), sum(desired.values())
    needed = min(ready, spec.replicas - spec.rollout.max_unavailable)
    most = max(total, spec.replicas + spec.rollout.max_surge)
    for revision, replicas in _scalings(done):
        desired[revision] = replicas
        assert _ready(seen, desired) >= needed, f"{_ready(seen, desired)} ready workers are left, {needed} are promised"
        assert sum(desired.values()) <= most, f"{sum(desired.values())} workers are asked for, {most} are allowed"


def _ready(seen: dict[str, Deployment], desired: dict[str, int]) -> int:
    return sum(min(d.ready, desired[revision]) for revision, d in seen.items())


def _grown(done: Pass) -> set[str]:
    desired = {d.revision: d.desired for d in done.seen.deployments}
    return {revision for revision, replicas in _scalings(done) if replicas > desired.get(revision, 0)}


def only_stable_and_canary_grow(done: Pass) -> None:
    """So there is one canary at most, and what is neither only ever shrinks."""
    status = done.decided.status
    assert _grown(done) <= {status.stable_revision, status.canary_revision}


def nothing_quarantined_gets_a_worker(done: Pass) -> None:
    """But for the stable revision, which then runs the target alone."""
    status = done.decided.status
    quarantined = {revision for revision in _grown(done) if _blocked(done.seen, status, revision)}
    assert quarantined <= {status.stable_revision}, f"quarantined and growing: {quarantined}"
    assert not _blocked(done.seen, status, status.canary_revision)


def _blocked(seen: Observed, status: Status, revision: str) -> bool:
    retry = seen.resource.metadata.annotations.get(names.RETRY, "")
    return status.quarantine_of(revision, spec_hash(seen.resource.spec, retry)) is not None


def weight_grows_by_evidence_alone(done: Pass) -> None:
    """Or because a person says so."""
    before, after = done.seen.resource.status, done.decided.status
    canary, rollout = after.canary_revision, done.seen.resource.spec.rollout
    if not canary:
        assert after.weight == 0
        return
    if canary != before.canary_revision or before.progress is None:
        earlier = any(h.revision == canary and h.served for h in done.seen.history)
        asked_for = any(entry.instead == canary for entry in after.quarantined)
        direct = not _stable_before(done) or not rollout.steps or earlier or asked_for
        first = rollout.steps[0].weight if rollout.steps else 100
        assert after.weight == first or (direct and after.weight == 100)
        return
    recipe = done.seen.recipe(canary)
    of_now = [m.outcome for m in after.measurements if m.revision == canary and m not in before.measurements]
    may_pass = of_now == [Outcome.HEALTHY] or (recipe and not recipe.speculates) or rollout.analysis.dry_run
    if after.progress and after.progress.passed and not before.progress.passed:
        assert may_pass, f"a step is passed on {of_now}"
    if after.weight != before.weight:
        assert may_pass or before.progress.passed or _promoted_by_hand(done), f"weight grows on {of_now}"


def _promoted_by_hand(done: Pass) -> bool:
    known = done.seen.resource.status.answers
    new = [answer for answer in done.decided.status.answers if answer not in known]
    return any((a.command, a.outcome) == (Command.PROMOTE, AnswerOutcome.ACCEPTED) for a in new)


def _stable_before(done: Pass) -> str:
    """As status says; one that was lost is found again in the records."""
    status = done.seen.resource.status
    return status.stable_revision or ("" if status.canary_revision else last_served(done.seen))


def only_a_finished_canary_is_promoted(done: Pass) -> None:
    before, after = done.seen.resource.status, done.decided.status
    if after.stable_revision == _stable_before(done):
        return
    assert after.stable_revision == before.canary_revision, "promoted without having been the canary"
    ready = [pod for pod in done.seen.of(after.stable_revision) if pod.ready]
    lifeless = [
        pod for pod in ready if (s := done.seen.worker(pod).status) and s.self_test.outcome == SelfTestOutcome.NO_LIFE
    ]
    if not _stable_before(done) and lifeless:
        return  # nothing to go back to: the target serves, with speculation off
    at_the_end = before.weight == 100 or _promoted_by_hand(done)
    assert at_the_end, f"promoted at weight {before.weight}"
    assert len(ready) >= done.seen.resource.spec.replicas, "promoted before its workers were ready"
