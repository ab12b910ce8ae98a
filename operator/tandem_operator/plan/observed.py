"""What the cluster looks like, as plain frozen data: the input of `plan`. Made by `observe`, free of I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from tandem_operator import names
from tandem_operator.api import SpeculativeDeployment
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.route import HttpRoute
from tandem_operator.api.status import Counts
from tandem_operator.engines.reading import StepTimes
from tandem_operator.plan.revisions import spec_hash
from tandem_worker.contract import ValidationReport, WorkerFailure, WorkerStatus


@dataclass(frozen=True)
class Pod:
    name: str
    uid: str
    revision: str
    ready: bool
    terminating: bool
    trouble: str = ""  # why it does not become ready, in words: ImagePullBackOff, CrashLoopBackOff, Unschedulable ...
    failure: WorkerFailure | None = None  # what the worker said when it last refused to start
    retry: str = ""  # the retry annotation that it was started under
    restarts: int = 0  # of its containers
    image: str = ""  # the digest that its engine really runs
    target_alone: bool = False  # started without its drafter: how an engine that takes no commands is switched off
    runs_again: bool = False  # who refused to start was started again since: what it said need not hold any more


@dataclass(frozen=True)
class Worker:
    """What a ready pod said over HTTP. None: it could not be read, which is no evidence of anything."""

    status: WorkerStatus | None = None  # of Tandem's own worker; other engines have none
    started_speculating: bool | None = None  # of an engine without a status
    version: str = ""  # of an engine without a status, as it says itself
    counts: Counts | None = None
    running: int = 0  # requests in flight
    steps: tuple[StepTimes, ...] = ()
    problem: str = ""  # why there are no counts, in words

    @property
    def speculating(self) -> bool | None:
        """None: it could not be asked."""
        return self.status.speculation_enabled if self.status else self.started_speculating

    @property
    def has_drafter(self) -> bool | None:
        """None: it could not be asked."""
        return self.status.resolution is not None if self.status else self.started_speculating


@dataclass(frozen=True)
class Deployment:
    revision: str
    desired: int
    ready: int
    problem: str = ""  # why its pods can't be made, in words: a quota, an admission policy
    owned: bool = True  # False: it has no controller


@dataclass(frozen=True)
class ValidationJob:
    """`report` is set once the Job ended with one; `problem` says why it ended without one or cannot start."""

    name: str
    key: str
    attempt: int
    finished: bool
    report: ValidationReport | None = None
    problem: str = ""
    pod: str = ""  # whose last word the report is


@dataclass(frozen=True)
class History:
    """One ControllerRevision."""

    revision: str
    number: int
    recipe: Recipe
    served: bool = False  # it once was stable
    owned: bool = True  # False: it has no controller


@dataclass(frozen=True)
class Observed:
    resource: SpeculativeDeployment
    pods: tuple[Pod, ...] = ()
    workers: tuple[tuple[str, Worker], ...] = ()  # by pod uid
    deployments: tuple[Deployment, ...] = ()
    jobs: tuple[ValidationJob, ...] = ()
    history: tuple[History, ...] = ()  # ascending by number
    config: tuple[tuple[str, str, str], ...] = ()  # name, key and value of the ConfigMap keys that the spec refers to

    route: HttpRoute | None = None  # the one that the spec names, if it exists

    def worker(self, pod: Pod) -> Worker:
        return dict(self.workers).get(pod.uid, Worker())

    def deployment(self, revision: str) -> Deployment:
        return next((d for d in self.deployments if d.revision == revision), Deployment(revision, 0, 0))

    def of(self, revision: str) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if pod.revision == revision and not pod.terminating)

    def config_value(self, name: str, key: str) -> str | None:
        return next((value for *where, value in self.config if where == [name, key]), None)

    def recipe(self, revision: str) -> Recipe | None:
        return next((h.recipe for h in self.history if h.revision == revision), None)

    def speculates(self, revision: str) -> bool:
        """Whether its workers have a drafter. When its record was deleted, they are asked; as long as none answers, it
        may be so."""
        if recipe := self.recipe(revision):
            return recipe.speculates
        return all(self.worker(pod).has_drafter is not False for pod in self.of(revision))


@dataclass(frozen=True)
class Settings:
    """What the operator was started with, as far as `plan` needs it."""

    worker_image: str
    allowed_host_paths: tuple[str, ...]
    public_key_pem: str


@dataclass(frozen=True)
class Context:
    """One pass: what was seen, the settings, and the only clock that `plan` knows.

    `clock_set`: by how much it was set, forward or back, since the times in status were written.
    """

    observed: Observed
    settings: Settings
    now: datetime
    clock_set: timedelta = timedelta()

    @cached_property
    def spec_hash(self) -> str:
        """Of the spec and the retry annotation: what a quarantine hangs on. Asked for many times in a pass."""
        resource = self.observed.resource
        return spec_hash(resource.spec, resource.metadata.annotations.get(names.RETRY, ""))


Manifest = dict[str, Any]
