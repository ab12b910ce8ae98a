"""The operator's own `/metrics`: what it says of each object, and how it fares itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tandem_operator.api import SpeculativeDeployment, Status
from tandem_operator.api.status import Measurement, Outcome
from tandem_operator.queue import Key, WorkQueue
from tandem_worker.contract import OperatorMetric, show_build

RECONCILE_BUCKETS_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
LAG_BUCKETS_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        show_build("operator", self.registry)
        self._objects = _Objects()
        self.registry.register(self._objects)
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
        self._objects.shown = {**self._objects.shown, key: _Shown(resource, status)}

    def forget(self, key: Key) -> None:
        """Without the series of an object that is gone."""
        self._objects.shown = {other: shown for other, shown in self._objects.shown.items() if other != key}

    def _gauge(self, metric: OperatorMetric) -> Gauge:
        return Gauge(metric, metric.help, metric.labels, registry=self.registry)

    def _counter(self, metric: OperatorMetric) -> Counter:
        return Counter(metric, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: OperatorMetric, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(metric, metric.help, metric.labels, buckets=buckets, registry=self.registry)


class _Shown(NamedTuple):
    resource: SpeculativeDeployment
    status: Status


Sample = tuple[OperatorMetric, tuple[str, ...], float]
"""Metric, values of the labels that follow namespace and specdep, value."""


class _Objects(Collector):
    """Series of the objects, made anew at each reading from what was last said of them: none outlives its cause.

    `shown` is replaced and never changed, because the metrics are read in another thread.
    """

    def __init__(self) -> None:
        self.shown: dict[Key, _Shown] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        per_object = (metric for metric in OperatorMetric if metric.labels[:2] == ("namespace", "specdep"))
        families = {metric: GaugeMetricFamily(metric, metric.help, labels=metric.labels) for metric in per_object}
        for key, shown in self.shown.items():
            for metric, labels, value in _samples(shown):
                families[metric].add_metric([*key, *labels], value)
        yield from families.values()


def _samples(shown: _Shown) -> Iterator[Sample]:
    status, spec = shown.status, shown.resource.spec
    for condition in status.conditions:
        for state in ("True", "False", "Unknown"):
            yield OperatorMetric.CONDITION, (condition.type, state), float(condition.status == state)
    paused = any(c.type == "Progressing" and c.reason == "Paused" for c in status.conditions)
    yield OperatorMetric.PAUSED, (), float(paused)
    yield OperatorMetric.WEIGHT, (), status.weight / 100
    yield OperatorMetric.QUARANTINED, (), len(status.quarantined)
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


def _evidence(role: str, measurements: list[Measurement]) -> Iterator[Sample]:
    if not measurements:
        return
    newest = max(measurements, key=lambda measurement: measurement.at)
    for outcome in Outcome:
        yield OperatorMetric.OUTCOME, (role, outcome), float(newest.outcome == outcome)
    yield OperatorMetric.EVIDENCE, (role,), newest.drafts
    yield OperatorMetric.SCORE, (role,), max(newest.score, newest.floor_score)
    yield OperatorMetric.ALARM, (role,), newest.alarm_above
