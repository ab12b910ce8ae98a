"""The world of the unit tests made unfriendly: what an operator sees may be old, what it began may stay half-done.

late        the operator sees some kinds of objects as they were after its own last pass: an edit, a death or a
            change by hand since then is not yet known. Its own writes it always sees.
crash       it dies between any two of its writes, and its successor sees everything as it is.
leaving     a pod that is removed answers for a while longer, and is marked as terminating.
deaf        a pod that is ready and can't be read.
timed       workers tell how long their steps took (`Timed`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

from tandem_operator import names
from tandem_operator.api import Spec, Status
from tandem_operator.api.status import Counts
from tandem_operator.engines.reading import StepTimes
from tandem_operator.plan import Context, Observed, Plan, plan
from tandem_operator.plan.clock import with_right_times
from tandem_operator.plan.observed import Pod, Worker
from tandem_operator.plan.revisions import spec_hash
from tandem_worker.contract import Fingerprints, ValidationReport, Verdict
from unit.world import SETTINGS, World

KINDS = ("resource", "pods", "deployments", "jobs", "history")
OTHER_FILES = Fingerprints(target="sha256:target", drafter="sha256:changed")
DEAF = Worker(problem="/metrics does not answer")


class Pass(NamedTuple):
    """One pass of the operator: what it saw, with its times as the clock is now, and what it decided."""

    seen: Observed
    decided: Plan


def drafter_of(spec: Spec) -> str:
    source = spec.drafter.source.host_path if spec.drafter else None
    return source.path.rsplit("/", 1)[1] if source else "-"


@dataclass
class Cluster(World):
    verdicts: dict[str, Verdict | None] = field(default_factory=dict)  # by drafter; None: its Job does not end
    deaf: set[str] = field(default_factory=set)  # uids
    leaving: dict[str, Pod] = field(default_factory=dict)  # by uid
    version: int = 0  # of the object, status included
    clock_set: timedelta = timedelta()  # since the status was written, as the operator knows
    known: Observed | None = None  # as it was after the last pass; None for an operator that has just started

    def __post_init__(self) -> None:
        self.validate = self._validate

    def edit(self, new: Spec) -> None:
        super().edit(new)
        self.version += 1

    def annotate(self, key: str, value: str) -> None:
        self.annotations = {**self.annotations, key: value}
        self.version += 1

    def observed(self) -> Observed:
        seen = super().observed()
        workers = tuple((uid, DEAF if uid in self.deaf else worker) for uid, worker in seen.workers)
        return replace(seen, pods=(*seen.pods, *self.leaving.values()), workers=workers)

    def one_pass(self, seconds: int, late: Iterable[str] = (), crash_after: int | None = None) -> Pass:
        """Time passes and traffic flows, a pass is planned on what is seen and carried out, the cluster does its part.

        `late`: kinds that are seen as they were after the last pass.
        """
        self.now += timedelta(seconds=seconds)
        self._serve()
        now, before = self.observed(), self.known
        seen = replace(now, **{kind: getattr(before, kind) for kind in late}) if before else now
        context = Context(seen, SETTINGS, self.now, self.clock_set)
        decided = plan(context)
        # The status is replaced under the version that was seen: one that is no more is refused.
        refused = seen.resource is not now.resource and self.version != self._version_known
        writes = self.writes(decided)[: -1 if refused else None]
        for write in writes[:crash_after]:
            write()
        crashed = crash_after is not None and crash_after < len(writes)
        if crashed or not refused:  # who starts does not know that it was set
            self.clock_set = timedelta()
        self._version_known = self.version
        self.known = None if crashed else self.observed()
        self._settle()
        return Pass(with_right_times(context).observed, decided)

    def restart_container(self, uid: str) -> None:
        """Its counters begin at zero, and what it was told is forgotten."""
        worker = self.workers[uid]
        if worker.status is None:
            return
        speculates = self.recipes[self.pods[uid].revision].speculates
        status = worker.status.model_copy(update={"speculation_enabled": speculates, "speculation_reason": ""})
        self.workers[uid] = replace(worker, status=status, counts=Counts())

    def remove_pod(self, uid: str) -> None:
        """It goes at once, as with its node."""
        self.pods.pop(uid, None)
        self.workers.pop(uid, None)

    def scale(self, revision: str, replicas: int) -> None:
        """By hand. Surplus pods go at once: nobody waits for the operator to look."""
        self.deployments[revision] = replace(self.deployments[revision], desired=replicas)
        self._remove_surplus(revision)

    def wipe_status(self) -> None:
        self.status, self.version = Status(), self.version + 1

    def set_clock(self, hours: int, while_it_runs: bool) -> None:
        """Else between two lives of the operator, and the next one can't know."""
        self.now += timedelta(hours=hours)
        if while_it_runs:
            self.clock_set += timedelta(hours=hours)
        else:
            self.known, self.clock_set = None, timedelta()

    def quarantined(self, revision: str) -> bool:
        return (
            self.status.quarantine_of(revision, spec_hash(self.spec, self.annotations.get(names.RETRY, ""))) is not None
        )

    def gist(self) -> tuple[object, ...]:
        """What a user would call the state of things: no figures, no times, no words."""
        status = self.status
        return (
            status.stable_revision,
            status.canary_revision,
            status.weight,
            frozenset(entry.revision for entry in status.quarantined),
            tuple((c.type, c.status, c.reason) for c in status.conditions),
            frozenset((d.revision, d.desired, d.ready) for d in self.deployments.values() if d.desired or d.ready),
            frozenset(self.history),
            frozenset(self.speculating()),
        )

    _version_known: int = 0

    def _settle(self) -> None:
        before = {uid: pod for uid, pod in self.pods.items() if pod.ready}
        super()._settle()
        gone = before.keys() - self.pods.keys()
        self.leaving = {uid: replace(before[uid], terminating=True) for uid in gone}
        self.deaf &= self.pods.keys()

    def _validate(self, spec: Spec) -> ValidationReport | None:
        verdict = self.verdicts.get(drafter_of(spec), Verdict.FITS)
        if verdict is None:
            return None
        return ValidationReport(verdict=verdict, mode="Static", summary=verdict.value, fingerprints=self.files)


class Timed(Cluster):
    """With a healthy drafter a revision is 1.2 times as fast as its target alone, with a weak one slower: steps take as
    long whatever is accepted."""

    def _serve(self) -> None:
        super()._serve()
        for uid, worker in self.workers.items():
            if worker.counts is not None and (rounds := worker.counts.drafts):
                plain = rounds // 4
                steps = (
                    StepTimes("verify", 1, rounds, 0.010 * rounds),
                    StepTimes("draft", 1, rounds, 0.004 * rounds),
                    StepTimes("plain", 1, plain, 0.010 * plain),
                )
                self.workers[uid] = replace(worker, steps=steps)
