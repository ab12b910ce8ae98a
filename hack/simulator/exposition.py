"""Metrics of other engines, by their names and habits, from the same simulated rounds."""

from collections.abc import Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

from simulator.arguments import Arguments, Imitated
from simulator.metrics import Metrics
from simulator.rounds import Round
from tandem_worker.contract import Origin


class Exposition(Protocol):
    """Everything is there at zero from the start, or appears when the engine imitated lets it. A new object is a
    reset."""

    def switched(self, enabled: bool) -> None: ...

    def runs(self, requests: int) -> None: ...

    def prefilled(self, origin: Origin, seconds: float) -> None: ...

    def stepped(self, origin: Origin, done: Round, seconds: float, plain_seconds: float) -> None: ...

    def ended(self, origin: Origin, outcome: str, prompt_tokens: int, rounds: list[Round], seconds: float) -> None: ...

    def exposition(self) -> bytes: ...


def exposition_of(arguments: Arguments) -> Exposition:
    if arguments.command is Imitated.SGLANG:
        return SGLangMetrics(arguments)
    if arguments.command is Imitated.VLLM:
        return VllmMetrics(arguments)
    return Metrics(arguments.revision, arguments.draft_length)


class _Foreign:
    def __init__(self, labels: Mapping[str, str]) -> None:
        disable_created_metrics()
        self.registry, self._labels = CollectorRegistry(), dict(labels)

    def switched(self, enabled: bool) -> None:
        """Nothing: it is not told while it runs."""

    def counter(self, name: str, **more: str) -> Counter:
        """One time series."""
        labels = {**self._labels, **more}
        return Counter(name, name, list(labels), registry=self.registry).labels(**labels)

    def gauge(self, name: str, **more: str) -> Gauge:
        labels = {**self._labels, **more}
        return Gauge(name, name, list(labels), registry=self.registry).labels(**labels)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class SGLangMetrics(_Foreign):
    """Counters grow when a request ends and appear with their first increment; gauges are written now and then."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__({"model_name": arguments.model, "engine_type": "unified"})
        self._running = self.gauge("sglang:num_running_reqs", tp_rank="0")
        self._steps = arguments.draft_length if arguments.drafter else 0
        self._length, self._rate = (
            self.gauge(f"sglang:spec_accept_{what}", tp_rank="0") for what in ("length", "rate")
        )
        self._num_steps = self.gauge("sglang:spec_num_steps", tp_rank="0")
        self._counters: dict[str, Counter] = {}

    def _add(self, name: str, amount: int, **more: str) -> None:
        if amount:
            self._counters.setdefault(name, self._counters.get(name) or self.counter(name, **more)).inc(amount)

    def runs(self, requests: int) -> None:
        self._running.set(requests)

    def prefilled(self, origin: Origin, seconds: float) -> None:
        """Counted at the end."""

    def stepped(self, origin: Origin, done: Round, seconds: float, plain_seconds: float) -> None:
        """Counted at the end."""

    def ended(self, origin: Origin, outcome: str, prompt_tokens: int, rounds: list[Round], seconds: float) -> None:
        """One that was aborted counts as a request, with the tokens that it got."""
        emitted = sum(done.emitted for done in rounds) + (1 if rounds else 0)
        verified = [done for done in rounds if self._steps]  # its last rounds verify drafts that lead past the end
        self._add("sglang:prompt_tokens_total", prompt_tokens, is_streaming="false")
        self._add("sglang:generation_tokens_total", emitted, is_streaming="false")
        self._add("sglang:num_requests_total", 1, is_streaming="false")
        drafting = [done for done in verified if done.drafted]
        if not drafting:
            return
        self._add("sglang:spec_verify_calls_total", len(verified))
        accepted = sum(done.accepted for done in drafting)
        self._length.set(1 + accepted / len(drafting))
        self._rate.set(accepted / (len(drafting) * self._steps))
        self._num_steps.set(self._steps)


class VllmMetrics(_Foreign):
    """All there at zero from the start; those of drafts with speculation only."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__({"model_name": arguments.model, "engine": "0"})
        self._running = self.gauge("vllm:num_requests_running")
        self._generated = self.counter("vllm:generation_tokens_total")
        self._prompt = self.counter("vllm:prompt_tokens_total")
        self._success = self._success_by_reason()
        self._speculates = arguments.drafter is not None
        if not self._speculates:
            return
        self._drafts, self._draft_tokens, self._accepted = (
            self.counter(f"vllm:spec_decode_num_{what}") for what in ("drafts", "draft_tokens", "accepted_tokens")
        )
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        family = Counter(name, name, ["model_name", "engine", "position"], registry=self.registry)
        self._positions = [family.labels(arguments.model, "0", str(k)) for k in range(arguments.draft_length)]

    def _success_by_reason(self) -> dict[str, Counter]:
        family = Counter(
            "vllm:request_success", "by reason", ["model_name", "engine", "finished_reason"], registry=self.registry
        )
        return {reason: family.labels(*self._labels.values(), reason) for reason in ("stop", "length", "abort")}

    def runs(self, requests: int) -> None:
        self._running.set(requests)

    def prefilled(self, origin: Origin, seconds: float) -> None:
        self._generated.inc()

    def stepped(self, origin: Origin, done: Round, seconds: float, plain_seconds: float) -> None:
        self._generated.inc(done.emitted)
        if not (done.drafted and self._speculates):
            return
        self._drafts.inc()
        self._draft_tokens.inc(done.drafted)
        self._accepted.inc(done.accepted)
        for position in range(done.accepted):
            self._positions[position].inc()

    def ended(self, origin: Origin, outcome: str, prompt_tokens: int, rounds: list[Round], seconds: float) -> None:
        self._prompt.inc(prompt_tokens)
        self._success["length" if outcome == "finished" else "abort"].inc()
