"""What `h200_service` asks of a worker, and how it counts what comes back. Plain data, no I/O.

The schedule is random and seeded: prompts and answers of all lengths, every setting that the API knows, clients that
stay to the end, leave in the middle of a stream or hang up before the first byte. Some requests are *known*: their
bodies come from a small pool and decide their text wholly (greedy, or with a seed), so whenever one is asked again,
with or without drafts, streamed or whole, the text must be the same.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

KNOWN = 24
PART_SECONDS = 300.0
SYSTEM_PROMPTS = (
    "",
    "Answer in one sentence. ",
    "You are a careful clerk. Repeat names and numbers as they were given. ",
)
CHAT_OVERHEAD = 64
"""Tokens left for what a chat template writes around messages."""


class End(StrEnum):
    """How a request ended, as its client saw it."""

    FINISHED = "finished"
    LEFT = "left"  # the client hung up, as planned
    REFUSED = "refused"  # 429
    WRONG = "wrong"  # anything else: `Outcome.problem` says what
    STUCK = "stuck"  # no end within the limit


@dataclass(frozen=True)
class Asked:
    route: str
    body: Mapping[str, Any]  # without model
    choices: int = 1
    leave_after_events: int | None = None  # of a stream
    leave_after_seconds: float | None = None
    known: int | None = None  # number in the pool of known bodies

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def may_leave(self) -> bool:
        return self.leave_after_events is not None or self.leave_after_seconds is not None


class Outcome(NamedTuple):
    end: End
    tokens: int = 0
    text: str = ""
    first_seconds: float | None = None  # from asking to the first event of a stream that carries tokens
    gaps: Sequence[tuple[float, int]] = ()  # seconds between two such events, and tokens that the second brought
    problem: str = ""


class Schedule:
    """Endless random requests. `texts`: prompts to draw from; `context`: tokens that prompt and answer may have."""

    def __init__(self, seed: int, texts: Sequence[str], context: int, longest_answer: int = 256) -> None:
        self._random = random.Random(seed)
        self._texts, self._context = texts, context
        self._longest = max(1, min(longest_answer, context // 2))
        self._known = [self._settled(random.Random(f"{seed} {number}")) for number in range(KNOWN)]

    def __iter__(self) -> Iterator[Asked]:
        while True:
            yield self._next(self._random)

    def _next(self, chance: random.Random) -> Asked:
        known = chance.randrange(KNOWN) if chance.random() < 0.2 else None
        asked = self._known[known] if known is not None else self._any(chance)
        body = dict(asked.body)
        if chance.random() < 0.25:
            body["speculate"] = False
        if chance.random() < 0.6:
            body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        events = seconds = None
        if chance.random() < 0.2:
            if body.get("stream") and chance.random() < 0.6:
                events = chance.randrange(1, 20)
            else:
                seconds = 10 ** chance.uniform(-3, 0.3)
        return Asked(asked.route, body, asked.choices, events, seconds, known)

    def _settled(self, chance: random.Random) -> Asked:
        """A request whose text its body decides."""
        asked = self._any(chance, choices=1)
        settings = {} if chance.random() < 0.3 else {"temperature": 0.8, "top_p": 0.95, "seed": chance.randrange(10**6)}
        kept = {"prompt", "messages", "max_tokens", "stop", "logprobs"}
        return Asked(asked.route, {k: v for k, v in asked.body.items() if k in kept} | (settings or {"temperature": 0}))

    def _any(self, chance: random.Random, choices: int | None = None) -> Asked:
        answer = min(self._longest, int(2 ** chance.uniform(0, math.log2(self._longest + 1))))
        body: dict[str, Any] = {"max_tokens": answer} | self._settings(chance)
        room = self._context - self._longest - CHAT_OVERHEAD
        if chance.random() < 0.4:
            if chance.random() < 0.3:
                body |= {"logprobs": True, "top_logprobs": chance.randrange(0, 5)}
            return Asked("/v1/chat/completions", body | {"messages": self._messages(chance, room)})
        if chance.random() < 0.2:
            body["logprobs"] = chance.randrange(0, 5)
        count = choices or chance.choice((1, 1, 1, 1, 1, 1, 2, 4))
        prompts = [self._prompt(chance, room) for _ in range(count)]
        return Asked("/v1/completions", body | {"prompt": prompts[0] if count == 1 else prompts}, count)

    def _settings(self, chance: random.Random) -> dict[str, Any]:
        settings: dict[str, Any] = {"temperature": chance.choice((0, 0, 0.3, 0.7, 1.0, 1.5))}
        options: dict[str, Any] = {
            "top_k": chance.choice((-1, 1, 5, 50)),
            "top_p": chance.choice((0.1, 0.5, 0.9, 0.99)),
            "min_p": chance.choice((0.02, 0.1, 0.5)),
            "presence_penalty": round(chance.uniform(-2, 2), 2),
            "frequency_penalty": round(chance.uniform(-2, 2), 2),
            "repetition_penalty": round(chance.uniform(0.8, 1.4), 2),
            "seed": chance.randrange(10**9),
            "stop": chance.choice((".", ["\n", " the"], ["zzzz"])),
            "logit_bias": {str(chance.randrange(200)): round(chance.uniform(-100, 20), 1) for _ in range(4)},
            "ignore_eos": True,
        }
        return settings | {name: value for name, value in options.items() if chance.random() < 0.25}

    def _prompt(self, chance: random.Random, room: int) -> str:
        """At most `room` characters, and so at most as many tokens of a byte-level tokenizer."""
        text = chance.choice(SYSTEM_PROMPTS)
        wanted = int(room ** chance.uniform(0.3, 1))
        while len(text) < wanted:
            text += chance.choice(self._texts) + " "
        return text[:wanted].strip() or "Q"

    def _messages(self, chance: random.Random, room: int) -> list[dict[str, str]]:
        turns = chance.choice((1, 1, 3))
        roles = ("user", "assistant") * turns
        return [{"role": role, "content": self._prompt(chance, room // turns)} for role in roles[:turns]]


@dataclass
class Histogram:
    """Counts by geometric buckets: small enough to be kept, and those of several runs add up."""

    counts: Counter[int] = field(default_factory=Counter)
    RATIO = 1.05

    def add(self, seconds: float, times: int = 1) -> None:
        self.counts[math.floor(math.log(max(seconds, 1e-6)) / math.log(self.RATIO))] += times

    def percentile(self, share: float) -> float | None:
        """The middle of the bucket in which it lies, so right within 2.5 %. None where there is nothing."""
        left = share * self.counts.total()
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return self.RATIO ** (bucket + 0.5)
        return None


@dataclass
class Account:
    """Of all requests of a run."""

    ends: Counter[str] = field(default_factory=Counter)  # by requests
    choices: Counter[str] = field(default_factory=Counter)  # the same, by choices, as the worker counts
    tokens: int = 0
    first: Histogram = field(default_factory=Histogram)
    between_events: Histogram = field(default_factory=Histogram)
    between_tokens: Histogram = field(default_factory=Histogram)
    problems: list[str] = field(default_factory=list)
    known_asked: int = 0
    known_texts: dict[int, str] = field(default_factory=dict)  # by number in the pool

    def add(self, asked: Asked, outcome: Outcome) -> None:
        end, problem = outcome.end, outcome.problem
        if end is End.FINISHED and asked.known is not None:
            self.known_asked += 1
            if self.known_texts.setdefault(asked.known, outcome.text) != outcome.text:
                end, problem = End.WRONG, f"known request {asked.known} got another text: {dict(asked.body)}"
        self.ends[end] += 1
        self.choices[end] += asked.choices
        self.tokens += outcome.tokens
        if problem:
            self.problems.append(problem)
        if outcome.first_seconds is not None:
            self.first.add(outcome.first_seconds)
        for seconds, tokens in outcome.gaps:
            self.between_events.add(seconds)
            if tokens:
                self.between_tokens.add(seconds / tokens, tokens)

    def disagreements(self, worker: Mapping[str, int], refused: int) -> list[str]:
        """With what the worker counted over the same time, choices by outcome, and requests that it refused.

        Who leaves may have been answered already, or not yet been taken in."""
        told: list[str] = []
        finished, left = self.choices[End.FINISHED], self.choices[End.LEFT]
        ended = worker["finished"] + worker["cancelled"]
        if not finished <= worker["finished"] <= finished + left:
            told.append(f"clients saw {finished} choices finished and left {left}, the worker finished {worker}")
        if not finished <= ended <= finished + left:
            told.append(f"clients saw {finished + left} choices finished or left, the worker ended {worker}")
        if worker["failed"]:
            told.append(f"the worker failed {worker['failed']} choices")
        if not self.ends[End.REFUSED] <= refused <= self.ends[End.REFUSED] + self.ends[End.LEFT]:
            told.append(f"clients saw {self.ends[End.REFUSED]} refusals, the worker counted {refused}")
        return told


class Trend(NamedTuple):
    first: float
    last: float
    per_minute: float  # slope of the straight line, least squares
    flat: bool  # over the time that was looked at, the line grows by less than a hundredth of the level


def trend(samples: Iterable[tuple[float, float]], warm_seconds: float) -> Trend | None:
    """samples: (seconds, value); those of the warm-up are left out. None where fewer than two are left."""
    kept = [(seconds, value) for seconds, value in samples if seconds >= warm_seconds]
    if len(kept) < 2:
        return None
    seconds, values = zip(*kept, strict=True)
    slope = statistics.linear_regression(seconds, values).slope
    grown = slope * (seconds[-1] - seconds[0])
    return Trend(values[0], values[-1], slope * 60, grown < 0.01 * statistics.fmean(values))


class Sample(NamedTuple):
    """Of memory in use."""

    seconds: float
    host_mib: float
    gpu_mib: float | None


def memory_of(samples: Sequence[Sample], warm_seconds: float) -> dict[str, dict[str, float | bool]]:
    """Of a worker since it was warm, in all parts of its load so far: one leaks also where no part of it shows that."""
    start = samples[0].seconds
    lines = {
        "host_mib": [(one.seconds - start, one.host_mib) for one in samples],
        "gpu_mib": [(one.seconds - start, one.gpu_mib) for one in samples if one.gpu_mib is not None],
    }
    seen = {name: found for name, line in lines.items() if (found := trend(line, warm_seconds))}
    return {
        name: {k: round(v, 2) for k, v in found._asdict().items()} | {"flat": found.flat}
        for name, found in seen.items()
    }


def parts_of(seconds: float) -> list[float]:
    """A load of so many seconds is asked for part by part."""
    whole, rest = divmod(seconds, PART_SECONDS)
    return [PART_SECONDS] * int(whole) + [rest] * (rest > 0)


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all parts of load say together."""
    latencies = {}
    for name in ("first_token", "between_events", "between_tokens"):
        whole = Histogram()
        for part in parts:
            whole.counts.update({int(bucket): count for bucket, count in part[name].items()})
        found = {f"p{percent}": whole.percentile(percent / 100) for percent in (50, 99)}
        latencies[f"{name}_ms"] = {p: round(1000 * value, 2) for p, value in found.items() if value is not None}
    requests: Counter[str] = Counter()
    for part in parts:
        requests.update(part["requests"])
    bars = {name: all(part["bars"].get(name, True) for part in parts) for name in parts[0]["bars"]}
    return {
        "minutes": round(sum(part["minutes"] for part in parts), 2),
        "requests": dict(requests),
        "bars": bars,
        **latencies,
    }
