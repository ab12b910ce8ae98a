"""The operator's own `/metrics`: what it says of each object, and how it fares itself."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.utils import floatToGoString

from tandem_operator.api import SpeculativeDeployment, Status
from tandem_operator.api.status import Measurement, Outcome
from tandem_operator.plan.revisions import spec_hash
from tandem_operator.plan.validation import retry_of
from tandem_operator.queue import Key, WorkQueue
from tandem_worker.contract import OperatorMetric, show_build

RECONCILE_BUCKETS_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
LAG_BUCKETS_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.35, 0.5, 1.0, 5.0)


class Metrics:
    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        show_build("operator", self.registry)
        self._objects: dict[Key, dict[OperatorMetric, str]] = {}
        self.reconcile_seconds = self._histogram(OperatorMetric.RECONCILE_SECONDS, RECONCILE_BUCKETS_SECONDS)
        self.loop_lag = self._histogram(OperatorMetric.LOOP_LAG, LAG_BUCKETS_SECONDS)
        self.errors = self._counter(OperatorMetric.RECONCILE_ERRORS)
        self.invalid = self._counter(OperatorMetric.INVALID)
        self.crd_is_own = self._gauge(OperatorMetric.CRD_MATCHES)
        self._due, self._running = self._gauge(OperatorMetric.QUEUE_DUE), self._gauge(OperatorMetric.QUEUE_RUNNING)
        self._progressing = self._gauge(OperatorMetric.PROGRESSING)

    def look(self, queue: WorkQueue, ailment: str) -> None:
        """Note how things stand; called in the event loop, whenever somebody reads the metrics."""
        self._due.set(queue.due())
        self._running.set(queue.running())
        self._progressing.set(not ailment)

    def show(self, key: Key, resource: SpeculativeDeployment, status: Status) -> None:
        """Its series, in place of those that it had: none outlives its cause."""
        self._objects[key] = _lines(key, resource, status)

    def forget(self, key: Key) -> None:
        """Without the series of an object that is gone."""
        self._objects.pop(key, None)

    def exposition(self) -> bytes:
        """What `/metrics` answers. The series of objects are written when they change, and only put together here: of a
        thousand objects they are 50,000, which would keep the interpreter busy for a second at each scrape."""
        parts = [generate_latest(self.registry).decode()]
        for metric in OperatorMetric:
            if metric.labels[:2] == ("namespace", "specdep"):
                parts.append(f"# HELP {metric} {metric.help}\n# TYPE {metric} gauge\n")
                parts += [lines[metric] for lines in self._objects.values() if metric in lines]
        return "".join(parts).encode()

    def _gauge(self, metric: OperatorMetric) -> Gauge:
        return Gauge(metric, metric.help, metric.labels, registry=self.registry)

    def _counter(self, metric: OperatorMetric) -> Counter:
        return Counter(metric, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: OperatorMetric, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(metric, metric.help, metric.labels, buckets=buckets, registry=self.registry)


Sample = tuple[OperatorMetric, tuple[str, ...], float]
"""Metric, values of the labels that follow namespace and specdep, value."""


def _lines(key: Key, resource: SpeculativeDeployment, status: Status) -> dict[OperatorMetric, str]:
    """The series of an object in the exposition format, by metric. Labels are names: there is nothing to escape."""
    lines: dict[OperatorMetric, str] = {}
    for metric, values, value in _samples(resource, status):
        pairs = sorted(zip(metric.labels, (*key, *values), strict=True))
        labels = ",".join(f'{name}="{said}"' for name, said in pairs)
        lines[metric] = f"{lines.get(metric, '')}{metric}{{{labels}}} {floatToGoString(value)}\n"
    return lines


def _samples(resource: SpeculativeDeployment, status: Status) -> Iterator[Sample]:
    spec = resource.spec
    for condition in status.conditions:
        for state in ("True", "False", "Unknown"):
            yield OperatorMetric.CONDITION, (condition.type, state), float(condition.status == state)
    paused = any(c.type == "Progressing" and c.reason == "Paused" for c in status.conditions)
    yield OperatorMetric.PAUSED, (), float(paused)
    yield OperatorMetric.WEIGHT, (), status.weight / 100
    yield OperatorMetric.QUARANTINED, (), _in_quarantine(resource, status)
    last = max((entry.at.timestamp() for entry in status.quarantined), default=0.0)
    yield OperatorMetric.ROLLED_BACK_AT, (), last
    yield OperatorMetric.WANTED, (), float(spec.speculates)
    yield OperatorMetric.MIN_LENGTH, (), spec.guard.min_accept_length
    yield OperatorMetric.MIN_SPEEDUP, (), spec.guard.min_speedup
    if status.canary_revision and status.progress:
        yield OperatorMetric.STEP_STARTED, (), status.progress.step_started_at.timestamp()
    if status.acceptance:
        yield OperatorMetric.LENGTH, (), status.acceptance.accept_length
        yield OperatorMetric.POSITION0, (), status.acceptance.position0
        if status.acceptance.speedup is not None:
            yield OperatorMetric.SPEEDUP, (), status.acceptance.speedup
    for role, revision in (("stable", status.stable_revision), ("canary", status.canary_revision)):
        if revision:
            yield OperatorMetric.REVISION, (role, revision), 1.0
            yield from _evidence(role, [m for m in status.measurements if m.revision == revision])


def _in_quarantine(resource: SpeculativeDeployment, status: Status) -> int:
    """Revisions that must not run under the spec as it is; status remembers some more."""
    if not status.quarantined:
        return 0
    present = spec_hash(resource.spec, retry_of(resource))
    return len({entry.revision for entry in status.quarantined if entry.spec == present})


def _evidence(role: str, measurements: list[Measurement]) -> Iterator[Sample]:
    if not measurements:
        return
    newest = max(measurements, key=lambda measurement: measurement.at)
    for outcome in Outcome:
        yield OperatorMetric.OUTCOME, (role, outcome), float(newest.outcome == outcome)
    yield OperatorMetric.EVIDENCE, (role,), newest.drafts
    yield OperatorMetric.SCORE, (role,), max(newest.score, newest.floor_score)
    yield OperatorMetric.ALARM, (role,), newest.alarm_above
