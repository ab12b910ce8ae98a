"""The engine's figures as Prometheus metrics; names and labels are the contract's. Everything starts at zero;
only steps have series by the sizes of batches that were met."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from tandem_worker.contract import Metric, Origin, show_build
from tandem_worker.engine.record import Phase
from tandem_worker.engine.request import Finish, Request
from tandem_worker.engine.speedup import Speedup

OUTCOMES = {
    Finish.STOP: "finished",
    Finish.LENGTH: "finished",
    Finish.CANCELLED: "cancelled",
    Finish.FAILED: "failed",
}
STEP_BUCKETS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
REQUEST_BUCKETS_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)


class Metrics:
    """A recorder (see `engine.record`) that keeps Prometheus metrics."""

    def __init__(self, revision: str, draft_length: int, speedup: Speedup) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        show_build("worker", self.registry)
        self.speedup = speedup
        self._revision = revision
        positions = [str(position) for position in range(draft_length)]
        self._drafts = self._by_origin(Metric.DRAFTS)
        self._draft_tokens = self._by_origin(Metric.DRAFT_TOKENS)
        self._accepted = self._by_origin(Metric.ACCEPTED_TOKENS)
        self._per_position = self._counters(Metric.ACCEPTED_PER_POSITION, origin=Origin, position=positions)
        self._requests = self._counters(Metric.REQUESTS, origin=Origin, outcome=sorted(set(OUTCOMES.values())))
        self.refused = self._counters(Metric.REFUSED)[()]
        self._prompt_tokens = self._by_origin(Metric.PROMPT_TOKENS)
        self._reused = self._by_origin(Metric.REUSED_TOKENS)
        self._generated = self._by_origin(Metric.GENERATED_TOKENS)
        self._undrafted = self._by_origin(Metric.UNDRAFTED_TOKENS)
        self._finished = {
            metric: self._by_origin(metric)
            for metric in (
                *(Metric.FINISHED_N, Metric.FINISHED_D, Metric.FINISHED_A),
                *(Metric.FINISHED_DD, Metric.FINISHED_AA, Metric.FINISHED_DA),
            )
        }
        lengths = [float(length) for length in range(1, draft_length + 2)]
        self._accept_length = self._histograms(Metric.ACCEPT_LENGTH, lengths, origin=Origin)
        self._request_seconds = self._histograms(Metric.REQUEST_SECONDS, REQUEST_BUCKETS_SECONDS, origin=Origin)
        self._step_family = self._histogram(Metric.STEP_SECONDS, STEP_BUCKETS_SECONDS)
        self._steps = {(phase, 1): self._step_family.labels(revision, phase, "1") for phase in Phase}
        self.speculating = self._gauge(Metric.SPECULATION_ENABLED)
        self.draft_length = self._gauge(Metric.DRAFT_LENGTH)
        self.graphs = self._gauge(Metric.GRAPHS)
        self.free_pages = self._gauge(Metric.FREE_PAGES)
        self._running, self._waiting = self._gauge(Metric.RUNNING), self._gauge(Metric.WAITING)
        self._gauge(Metric.SPEEDUP).set_function(lambda: speedup.value)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def stepped(self, phase: Phase, batch: int, seconds: float) -> None:
        if (phase, batch) not in self._steps:  # of all that there may be, a page had 14,000 lines
            self._steps[phase, batch] = self._step_family.labels(self._revision, phase, str(batch))
        self._steps[phase, batch].observe(seconds)
        self.speedup.stepped(phase, batch, seconds)

    def drafted(self, origin: Origin, length: int, accepted: int) -> None:
        self._drafts[origin].inc()
        self._draft_tokens[origin].inc(length)
        self._accepted[origin].inc(accepted)
        self._accept_length[origin,].observe(1 + accepted)
        for position in range(accepted):
            self._per_position[origin, str(position)].inc()
        self.speedup.accepted(accepted)

    def generated(self, origin: Origin, tokens: int) -> None:
        self._generated[origin].inc(tokens)

    def undrafted(self, origin: Origin, tokens: int) -> None:
        self._undrafted[origin].inc(tokens)

    def adapted(self, length: int) -> None:
        self.draft_length.set(length)

    def ended(self, request: Request) -> None:
        assert request.finish is not None
        origin, outcome = request.origin, OUTCOMES[request.finish]
        self._requests[origin, outcome].inc()
        self._prompt_tokens[origin].inc(len(request.prompt))
        self._reused[origin].inc(request.reused)
        if outcome == "finished":
            self._request_seconds[origin,].observe(time.monotonic() - request.arrived_seconds)
            d, a = request.drafts, request.accepted0
            for metric, value in zip(self._finished, (1, d, a, d * d, a * a, d * a), strict=True):
                self._finished[metric][origin].inc(value)

    def queued(self, running: int, waiting: int) -> None:
        self._running.set(running)
        self._waiting.set(waiting)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric, metric.help, metric.labels, registry=self.registry).labels(self._revision)

    def _by_origin(self, metric: Metric) -> dict[str, Counter]:
        return {origin: counter for (origin,), counter in self._counters(metric, origin=Origin).items()}

    def _counters(self, metric: Metric, **labels: Iterable[str]) -> dict[tuple[str, ...], Counter]:
        family = Counter(metric, metric.help, metric.labels, registry=self.registry)
        return {values: family.labels(self._revision, *values) for values in product(*labels.values())}

    def _histograms(
        self, metric: Metric, buckets: Sequence[float | str], **labels: Iterable[str]
    ) -> dict[tuple[str, ...], Histogram]:
        family = self._histogram(metric, buckets)
        return {values: family.labels(self._revision, *values) for values in product(*labels.values())}

    def _histogram(self, metric: Metric, buckets: Sequence[float | str]) -> Histogram:
        return Histogram(metric, metric.help, metric.labels, buckets=buckets, registry=self.registry)
