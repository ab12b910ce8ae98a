"""A small world for the pure plan: it carries plans out, lets pods start and serve, and keeps a clock.

It holds what an API server would hold and nothing else, so a plan that is lost half-way (a crash) is simply a plan of
which only a part was carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from simulator.engine import USUAL_RESOLUTION
from tandem_operator import names
from tandem_operator.api import Metadata, Spec, SpeculativeDeployment, Status
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.route import HttpRoute
from tandem_operator.api.status import Counts
from tandem_operator.plan import Context, Observed, Plan, Settings, plan
from tandem_operator.plan.analysis.evidence import plus
from tandem_operator.plan.decision import Command, Deletion
from tandem_operator.plan.observed import Deployment, History, Manifest, Pod, ValidationJob, Worker
from tandem_worker.contract import (
    Fingerprints,
    SelfTest,
    SelfTestOutcome,
    ValidationReport,
    Verdict,
    WorkerFailure,
    WorkerStatus,
)

SETTINGS = Settings(worker_image="worker:1", allowed_host_paths=("/models",), public_key_pem="PEM")
FILES = Fingerprints(target="sha256:target", drafter="sha256:drafter")
HEALTHY, WEAK, DEAD = 0.7, 0.05, 0.0


def spec(drafter: str = "a", **fields: object) -> Spec:
    """A valid spec whose drafter lies in /models/<drafter>; fields by their YAML names override."""
    base = {
        "target": {"source": {"hostPath": {"path": "/models/target"}}},
        "drafter": {"source": {"hostPath": {"path": f"/models/{drafter}"}}},
        "rollout": {"steps": [{"weight": 50}], "analysis": {"intervalSeconds": 10}},
    }
    return Spec.model_validate({**base, **fields})


def fits(_: Spec) -> ValidationReport:
    return ValidationReport(verdict=Verdict.FITS, mode="Static", summary="fits", fingerprints=FILES)


@dataclass
class Life:
    """What a pod does, by the drafter it was made with."""

    rate: float = HEALTHY  # share of drafts whose first token is accepted; as many tokens are accepted in all
    starts: bool = True
    self_test: SelfTestOutcome = SelfTestOutcome.ALIVE
    refuses: str = ""  # reason of the worker that does not start
    degraded: str = ""


@dataclass
class World:
    spec: Spec
    settings: Settings = SETTINGS
    generation: int = 1
    annotations: dict[str, str] = field(default_factory=dict)
    status: Status = field(default_factory=Status)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    validate: Callable[[Spec], ValidationReport | None] = fits
    lives: dict[str, Life] = field(default_factory=dict)  # by drafter name
    files: Fingerprints = FILES  # what workers find at start
    requests_per_step: int = 10
    deployments: dict[str, Deployment] = field(default_factory=dict)
    recipes: dict[str, Recipe] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    history: dict[str, History] = field(default_factory=dict)
    jobs: dict[str, ValidationJob] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    config: dict[tuple[str, str], str] = field(default_factory=dict)  # ConfigMap and key -> value
    route: HttpRoute | None = None
    retries: dict[str, str] = field(default_factory=dict)  # of the pod template, by revision
    made: int = 0
    last: Plan | None = None

    def edit(self, new: Spec) -> None:
        if new != self.spec:
            self.spec, self.generation = new, self.generation + 1

    def observed(self) -> Observed:
        metadata = Metadata(
            name="pair", namespace="ns", uid="uid", generation=self.generation, annotations=self.annotations
        )
        return Observed(
            resource=SpeculativeDeployment(metadata=metadata, spec=self.spec, status=self.status),
            pods=tuple(self.pods.values()),
            workers=tuple(self.workers.items()),
            deployments=tuple(self.deployments.values()),
            jobs=tuple(self.jobs.values()),
            history=tuple(sorted(self.history.values(), key=lambda h: h.number)),
            route=self.route,
            config=tuple((name, key, value) for (name, key), value in self.config.items()),
        )

    def plan(self) -> Plan:
        return plan(Context(self.observed(), self.settings, self.now))

    def step(self, seconds: int = 11, crash_after: int | None = None) -> Plan:
        """Time passes and traffic flows, a pass is planned and carried out; then the cluster does its part."""
        self.now += timedelta(seconds=seconds)
        self._serve()
        self.last = self.plan()
        self.carry_out(self.last, crash_after)
        self._settle()
        return self.last

    def run(self, steps: int = 20) -> World:
        for _ in range(steps):
            self.step()
        return self

    def carry_out(self, decided: Plan, crash_after: int | None = None) -> None:
        """`crash_after`: the operator dies after so many writes; status is the last one."""
        for write in self.writes(decided)[:crash_after]:
            write()

    def writes(self, decided: Plan) -> list[Callable[[], None]]:
        """What the operator does to carry a plan out, one by one and in its order."""
        return [
            *(partial(self._apply, manifest) for manifest in decided.apply),
            *(partial(self._delete, deletion) for deletion in decided.delete),
            *(partial(self._switch, command) for command in decided.commands),
            partial(self._write_status, decided),
        ]

    def _delete(self, deletion: Deletion) -> None:
        if deletion.kind == "Service":
            return  # of one revision, behind which nobody stands any more
        kept: dict[str, Any] = self.deployments if deletion.kind == "Deployment" else self.history
        revision = deletion.name.removeprefix("pair-")
        kept.pop(revision, None)
        if deletion.kind == "Deployment":  # in the background its pods follow
            for pod in [pod for pod in self.pods.values() if pod.revision == revision]:
                del self.pods[pod.uid]
                self.workers.pop(pod.uid, None)

    def _switch(self, command: Command) -> None:
        worker = self.workers.get(command.pod_uid)
        if worker is not None and worker.status is not None:  # else it went away meanwhile
            update = {"speculation_enabled": command.enabled, "speculation_reason": command.reason}
            self.workers[command.pod_uid] = replace(worker, status=worker.status.model_copy(update=update))

    def _write_status(self, decided: Plan) -> None:
        if decided.status != self.status:
            self.status = Status.model_validate_json(decided.status.model_dump_json())
        self.events += [f"{event.reason}: {event.message}" for event in decided.events]

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(c for c in self.status.conditions if c.type == kind)
        return found.status, found.reason, found.message

    def serving(self) -> dict[str, int]:
        """Ready pods by drafter name (`-` without one)."""
        found: dict[str, int] = {}
        for pod in self.pods.values():
            if pod.ready:
                found[self._drafter(pod.revision)] = found.get(self._drafter(pod.revision), 0) + 1
        return found

    def speculating(self) -> set[bool]:
        return {w.status.speculation_enabled for uid, w in self.workers.items() if w.status and uid in self.pods}

    def _drafter(self, revision: str) -> str:
        source = self.recipes[revision].drafter
        return source.host_path.path.rsplit("/", 1)[1] if source and source.host_path else "-"

    def _apply(self, manifest: Manifest) -> None:
        labels = manifest["metadata"].get("labels", {})
        if manifest["kind"] == "Deployment":
            revision, desired = labels[names.REVISION], manifest["spec"]["replicas"]
            before = self.deployments.get(revision)
            annotations = manifest["spec"]["template"]["metadata"]["annotations"]
            self.retries[revision] = annotations.get(names.RETRY, "")
            self.deployments[revision] = Deployment(revision, desired, before.ready if before else 0)
        elif manifest["kind"] == "Scale":
            revision = labels[names.REVISION]
            if before := self.deployments.get(revision):
                self.deployments[revision] = replace(before, desired=manifest["spec"]["replicas"])
        elif manifest["kind"] == "HTTPRoute":
            assert self.route is not None
            assert manifest["metadata"]["resourceVersion"] == self.route.metadata.resource_version
            stored = self.route.model_dump(by_alias=True, exclude_unset=True)
            self.route = HttpRoute.model_validate(stored | {"spec": stored["spec"] | manifest["spec"]})
        elif manifest["kind"] == "ControllerRevision":
            revision, recipe = labels[names.REVISION], Recipe.model_validate(manifest["data"])
            served = manifest["metadata"]["annotations"][names.SERVED] == "true"
            self.recipes[revision] = recipe
            self.history[revision] = History(revision, manifest["revision"], recipe, served)
        elif manifest["kind"] == "Job":
            name, key = manifest["metadata"]["name"], labels[names.VALIDATION_KEY]
            self.jobs.setdefault(name, ValidationJob(name, key, int(labels[names.ATTEMPT]), finished=False))

    def _settle(self) -> None:
        for name, job in self.jobs.items():
            if not job.finished:
                report = self.validate(self.spec)
                spoke = f"{name}-x7k2p" if report else ""
                self.jobs[name] = replace(job, finished=report is not None, report=report, pod=spoke)
        for revision, deployment in list(self.deployments.items()):
            for stuck in [p for p in self.pods.values() if p.revision == revision and not p.ready]:
                del self.pods[stuck.uid]  # its container restarts, and may start this time
            for old in [p for p in self.pods.values() if p.revision == revision and p.retry != self.retries[revision]]:
                del self.pods[old.uid]  # a changed template replaces its pods
                self.workers.pop(old.uid, None)
            self._remove_surplus(revision)
            for _ in range(deployment.desired - sum(pod.revision == revision for pod in self.pods.values())):
                self._start(revision)
            ready = sum(pod.ready for pod in self.pods.values() if pod.revision == revision)
            self.deployments[revision] = replace(deployment, ready=ready)

    def _remove_surplus(self, revision: str) -> None:
        mine = [pod for pod in self.pods.values() if pod.revision == revision]
        mine.sort(key=lambda pod: pod.ready)  # a ReplicaSet removes pods that are not ready first
        for pod in mine[: max(0, len(mine) - self.deployments[revision].desired)]:
            del self.pods[pod.uid]
            self.workers.pop(pod.uid, None)

    def _start(self, revision: str) -> None:
        self.made += 1
        uid, recipe = f"pod-{self.made}", self.recipes[revision]
        life = self.lives.get(self._drafter(revision), Life()) if recipe.speculates else Life()
        expected = recipe.fingerprints.model_dump() if recipe.fingerprints else None
        changed = expected is not None and expected != self.files.model_dump()
        failure = (
            WorkerFailure(reason="CheckpointChanged", message="other files", found=self.files) if changed else None
        )
        if life.refuses:
            failure = WorkerFailure(reason=life.refuses, message="told by the worker")
        ready = life.starts and failure is None
        trouble = "" if ready else "CrashLoopBackOff"
        self.pods[uid] = Pod(uid, uid, revision, ready, False, trouble, failure, self.retries[revision])
        if ready:
            alive = life.self_test != SelfTestOutcome.NO_LIFE
            status = WorkerStatus(
                revision=revision,
                model="pair",
                resolution=USUAL_RESOLUTION if recipe.speculates else None,
                fingerprints=self.files,
                self_test=SelfTest(outcome=life.self_test, drafts=64, accepted=40 if alive else 0),
                speculation_enabled=alive and recipe.speculates,
                draft_length=5,
                degraded=life.degraded,
            )
            self.workers[uid] = Worker(status=status, counts=Counts())

    def _serve(self) -> None:
        for uid, worker in list(self.workers.items()):
            pod = self.pods[uid]
            status, counts = worker.status, worker.counts
            if status is None or counts is None:
                continue
            drafts = 30 * self.requests_per_step if status.speculation_enabled else 0
            accepted = round(drafts * self.lives.get(self._drafter(pod.revision), Life()).rate)
            requests, each = self.requests_per_step, accepted / max(1, self.requests_per_step)  # all requests are alike
            more = Counts(
                drafts=drafts,
                accepted=accepted,
                accepted0=accepted,
                requests=requests,
                user_requests=requests,
                generated=60 * requests,
                finished_drafts=drafts,
                finished_accepted0=accepted,
                finished_drafts_squared=30 * drafts,
                finished_accepted0_squared=round(each * accepted),
                finished_drafts_accepted0=30 * accepted,
            )
            self.workers[uid] = replace(worker, counts=plus(counts, more))
