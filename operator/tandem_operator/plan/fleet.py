"""What the API server is to hold, and what workers are to do, once it is decided which revisions serve.

Children without a controller, left by `kubectl delete --cascade=orphan`, are taken over as a ReplicaSet takes over
pods: they go on serving if they are what the spec asks for, and go like any other revision if not.
"""

from __future__ import annotations

from typing import Literal

from tandem_operator import names
from tandem_operator.api import Status
from tandem_operator.api.recipe import Recipe
from tandem_operator.plan import children, traffic
from tandem_operator.plan.decision import Command, Deletion, Notes
from tandem_operator.plan.observed import Context
from tandem_operator.plan.pods import Start
from tandem_operator.plan.quarantine import blocked, retry_of_workers
from tandem_operator.plan.scale import Present, next_counts, shares

KINDS_OF_REVISION: tuple[Literal["Deployment", "Service", "ControllerRevision"], ...]
KINDS_OF_REVISION = ("Deployment", "Service", "ControllerRevision")  # the record last: it names what is left to clean


def counts(context: Context, status: Status) -> dict[str, int]:
    spec = context.observed.resource.spec
    present = {d.revision: Present(d.desired, d.ready) for d in context.observed.deployments}
    stable, canary = status.stable_revision, status.canary_revision
    for_stable, for_canary = shares(spec.replicas, status.weight, spec.rollout.max_surge)
    wanted = {canary: for_canary, stable: for_stable} if canary else {stable: spec.replicas}
    wanted.pop("", None)
    return next_counts(wanted, present, spec.replicas, spec.rollout.max_surge, spec.rollout.max_unavailable)


def note_children(
    context: Context, status: Status, recipes: dict[str, Recipe], counts: dict[str, int], notes: Notes
) -> None:
    resource = context.observed.resource
    notes.apply += [
        children.service(resource),
        children.operator_key(resource, context.settings),
        children.disruption_budget(resource),
    ]
    if traffic.split(context, status):
        for revision in (status.stable_revision, status.canary_revision):
            notes.apply.append(children.service(resource, revision))
    if route := traffic.manifest(context, status):  # before workers go, behind the Services that it names
        notes.apply.append(route)
    notes.apply += _records(context, status, recipes)
    desired = {revision: context.observed.deployment(revision).desired for revision in counts}
    # What shrinks is applied first: it makes room for what grows, and at no moment is there a worker too many.
    for revision in sorted(counts, key=lambda r: counts[r] > desired[r]):
        idle = counts[revision] == 0 and desired[revision] == 0
        at_work = revision in (status.stable_revision, status.canary_revision)
        if idle and not at_work and context.observed.deployment(revision).owned:
            continue  # a retired revision is left as it is
        if revision not in recipes:  # its record was deleted: it can't be built anew, but it can make room
            if counts[revision] < desired[revision]:
                notes.apply.append(children.fewer(resource, revision, counts[revision]))
            continue
        start = Start(
            retry=retry_of_workers(context, status, revision),
            target_alone=blocked(context, status, revision) is not None,
        )
        workers = children.deployment(resource, revision, recipes[revision], counts[revision], start)
        notes.apply.append(workers)
    notes.delete += _outdated(context, status, counts)


def _records(context: Context, status: Status, recipes: dict[str, Recipe]) -> list[dict[str, object]]:
    """ControllerRevisions that are missing, that are to be adopted, or that do not yet say that their revision served,
    and as the last one."""
    history = {h.revision: h for h in context.observed.history}
    number = max((h.number for h in history.values()), default=0) + 1
    last_served = max((h.number for h in history.values() if h.served), default=0)
    records = []
    adopted = [h.revision for h in history.values() if not h.owned]
    for revision in dict.fromkeys((*adopted, status.canary_revision, status.stable_revision)):
        known, stable = history.get(revision), revision == status.stable_revision
        served = stable or bool(known and known.served)
        outdated = known is None or known.served != served or (stable and known.number < last_served)
        outdated = outdated or (known is not None and not known.owned)
        if revision not in recipes or not outdated:
            continue
        at = number if known is None or (stable and known.number < last_served) else known.number
        records.append(children.controller_revision(context.observed.resource, revision, at, recipes[revision], served))
        number += at == number
    return records


def _outdated(context: Context, status: Status, counts: dict[str, int]) -> list[Deletion]:
    """Revisions beyond the history limit, oldest first, and Deployments whose record is lost; never one that still has
    workers or a part in the rollout."""
    name = context.observed.resource.metadata.name
    retired = [
        h.revision
        for h in context.observed.history
        if h.revision not in (status.stable_revision, status.canary_revision) and not counts.get(h.revision)
    ]
    excess = len(retired) - context.observed.resource.spec.revision_history_limit
    recorded = {h.revision for h in context.observed.history} | {status.stable_revision, status.canary_revision}
    lost = [d.revision for d in context.observed.deployments if d.revision not in recorded and d.desired == 0]
    return [Deletion("Deployment", names.child(name, revision)) for revision in lost] + [
        Deletion(kind, names.child(name, revision))
        for revision in retired[: max(0, excess)]
        for kind in KINDS_OF_REVISION
    ]


def note_commands(context: Context, status: Status, notes: Notes) -> None:
    """A worker that restarted, or missed a command, is told again. One that neither status nor a record knows is left
    as it is: why it was switched off is lost with them."""
    known = {status.stable_revision, status.canary_revision, *(h.revision for h in context.observed.history)}
    for pod in context.observed.pods:
        reported = context.observed.worker(pod).status
        if not pod.ready or pod.terminating or reported is None or not context.observed.speculates(pod.revision):
            continue
        entry = blocked(context, status, pod.revision)
        if reported.speculation_enabled == (entry is None) or not (entry or pod.revision in known):
            continue
        notes.commands.append(Command(pod.uid, entry is None, entry.reason if entry else "Healthy"))
        notes.wakes.append(1.0)  # see it done
