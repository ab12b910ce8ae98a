"""The contract's metrics, counted from simulated rounds."""

import re
from collections.abc import Iterable
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from simulator.rounds import Round
from tandem_worker.contract import Metric, Origin, show_build

OUTCOMES = ("finished", "cancelled", "failed")
PHASES = ("prefill", "draft", "verify", "plain")
DRAFT_SHARE = 0.2  # of a round's time


class Metrics:
    """Everything is there at zero from the start. A new object is a reset."""

    def __init__(self, revision: str, draft_length: int) -> None:
        disable_created_metrics()
        self._registry, self._revision = CollectorRegistry(), revision
        show_build("simulator", self._registry)
        self._drafts = self._by_origin(Metric.DRAFTS)
        self._draft_tokens = self._by_origin(Metric.DRAFT_TOKENS)
        self._accepted = self._by_origin(Metric.ACCEPTED_TOKENS)
        positions = [str(k) for k in range(draft_length)]
        self._per_position = self._counters(Metric.ACCEPTED_PER_POSITION, origin=Origin, position=positions)
        self._requests = self._counters(Metric.REQUESTS, origin=Origin, outcome=OUTCOMES)
        self._prompt_tokens = self._by_origin(Metric.PROMPT_TOKENS)
        self._generated = self._by_origin(Metric.GENERATED_TOKENS)
        self._sums = [
            self._by_origin(metric)
            for metric in (
                *(Metric.FINISHED_N, Metric.FINISHED_D, Metric.FINISHED_A),
                *(Metric.FINISHED_DD, Metric.FINISHED_AA, Metric.FINISHED_DA),
            )
        ]
        lengths = [float(length) for length in range(1, draft_length + 2)]
        self._accept_length = self._histograms(Metric.ACCEPT_LENGTH, lengths, origin=Origin)
        self._request_seconds = self._histograms(Metric.REQUEST_SECONDS, Histogram.DEFAULT_BUCKETS, origin=Origin)
        self._steps = self._histograms(Metric.STEP_SECONDS, Histogram.DEFAULT_BUCKETS, phase=PHASES, batch=["1"])
        self._speculation_enabled = self._gauge(Metric.SPECULATION_ENABLED)
        self.speedup = self._gauge(Metric.SPEEDUP)
        self.speedup.set(float("nan"))
        self._running = self._gauge(Metric.RUNNING)
        for unused in (Metric.REUSED_TOKENS, Metric.UNDRAFTED_TOKENS):
            self._by_origin(unused)
        self._counters(Metric.REFUSED)
        self._gauge(Metric.DRAFT_LENGTH).set(draft_length)
        self._gauge(Metric.WAITING)
        self._gauge(Metric.GRAPHS)
        self._gauge(Metric.FREE_PAGES)
        self._rounds = self._emitted = 0

    def switched(self, enabled: bool) -> None:
        self._speculation_enabled.set(enabled)

    def runs(self, requests: int) -> None:
        self._running.set(requests)

    def stepped(self, origin: Origin, done: Round, seconds: float, plain_seconds: float) -> None:
        self._generated[origin].inc(done.emitted)
        if not done.drafted:
            self._steps["plain", "1"].observe(seconds)
            return
        self._steps["draft", "1"].observe(DRAFT_SHARE * seconds)
        self._steps["verify", "1"].observe((1 - DRAFT_SHARE) * seconds)
        self._drafts[origin].inc()
        self._draft_tokens[origin].inc(done.drafted)
        self._accepted[origin].inc(done.accepted)
        self._accept_length[origin,].observe(done.emitted)
        for position in range(done.accepted):
            self._per_position[origin, str(position)].inc()
        self._rounds, self._emitted = self._rounds + 1, self._emitted + done.emitted
        self.speedup.set(self._emitted / self._rounds * plain_seconds / seconds)

    def prefilled(self, origin: Origin, seconds: float) -> None:
        self._generated[origin].inc()
        self._steps["prefill", "1"].observe(seconds)

    def ended(self, origin: Origin, outcome: str, prompt_tokens: int, rounds: list[Round], seconds: float) -> None:
        self._requests[origin, outcome].inc()
        self._prompt_tokens[origin].inc(prompt_tokens)
        if outcome == "finished":
            d = sum(done.drafted > 0 for done in rounds)
            a = sum(done.accepted > 0 for done in rounds)
            self._request_seconds[origin,].observe(seconds)
            for counters, value in zip(self._sums, (1, d, a, d * d, a * a, d * a), strict=True):
                counters[origin].inc(value)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric, metric.help, metric.labels, registry=self._registry).labels(self._revision)

    def _by_origin(self, metric: Metric) -> dict[str, Counter]:
        return {origin: counter for (origin,), counter in self._counters(metric, origin=Origin).items()}

    def _counters(self, metric: Metric, **labels: Iterable[str]) -> dict[tuple[str, ...], Counter]:
        family = Counter(metric, metric.help, metric.labels, registry=self._registry)
        return {values: family.labels(self._revision, *values) for values in product(*labels.values())}

    def _histograms(
        self, metric: Metric, buckets: Iterable[float], **labels: Iterable[str]
    ) -> dict[tuple[str, ...], Histogram]:
        family = Histogram(metric, metric.help, metric.labels, buckets=tuple(buckets), registry=self._registry)
        return {values: family.labels(self._revision, *values) for values in product(*labels.values())}


def with_nan(exposition: bytes) -> bytes:
    """Every sample's value replaced."""
    return re.sub(rb"(?m)^([^#].*) \S+$", rb"\1 NaN", exposition)
