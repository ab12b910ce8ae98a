"""What an engine of a certain version calls accept rate, turned into accept length.

The name stays and the meaning changes: where 5 tokens a round are verified, 4 of them drafted, and nothing is ever
accepted, SGLang 0.5.8 to 0.5.10 reports a rate of 0.20 (accept length / draft tokens: 1 / 5), SGLang 0.5.11 one of 0.
Raw counters have one meaning and a sample size, so they come first; a gauge is for display. A version that is in no
row is not guessed at from the nearest one.

Sources: SGLang's `metrics_reporter.py` of the versions named and its pull request #11572; vLLM's
`v1/spec_decode/metrics.py` of 0.26 and 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

Version = tuple[int, int, int]


class Gauge(NamedTuple):
    """Of a rate. `accept_length`: (rate, steps, draft tokens) -> tokens per target forward.

    Steps are tokens drafted in a chain; draft tokens are what is verified, steps + 1 in a chain.
    """

    first: Version
    last: Version  # that was looked at, included
    means: str
    accept_length: Callable[[float, int, int], float]


class Counters(NamedTuple):
    """Raw counters: accept length = 1 + accepted / drafts, or emitted / drafts where `accepted` is empty."""

    first: Version
    last: Version  # that was looked at, included
    drafts: str
    accepted: str = ""
    emitted: str = ""
    position0: str = ""  # with label position="0"


SGLANG_RATE = (
    Gauge((0, 5, 5), (0, 5, 5), "accept length / (steps + 1)", lambda rate, steps, _: rate * (steps + 1)),
    Gauge((0, 5, 8), (0, 5, 10), "accept length / draft tokens", lambda rate, _, tokens: rate * tokens),
    Gauge(
        (0, 5, 11),
        (0, 5, 23),
        "accepted without the verified token / (rounds * (draft tokens - 1))",
        lambda rate, _, tokens: 1 + rate * (tokens - 1),
    ),
)
COUNTERS = {
    # Each request's first token comes from its prompt and not from a round: at most one too many per request.
    "sglang": Counters(
        (0, 5, 13),
        (0, 5, 23),
        drafts="sglang:spec_verify_calls_total",
        emitted="sglang:generation_tokens_total",
    ),
    "vllm": Counters(
        (0, 26, 0),
        (0, 33, 0),
        drafts="vllm:spec_decode_num_drafts_total",
        accepted="vllm:spec_decode_num_accepted_tokens_total",
        position0="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    ),
}


def parse_version(text: str) -> Version | None:
    """`0.5.10`, `v0.5.10.post1`. None for anything else, release candidates too: they may be on either side."""
    found = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+\S*)?", text.strip())
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def same_version(said: str, wanted: str) -> bool:
    """Whether an engine that says `0.33.0+cu130` is the `0.33.0` that was asked for."""
    return said.removeprefix("v").partition("+")[0] == wanted.removeprefix("v").partition("+")[0]


def counters_of(engine: str, version: str) -> Counters | None:
    """The raw counters to prefer; None where this version has none, or is in no row."""
    parsed, counters = parse_version(version), COUNTERS.get(engine)
    return counters if parsed and counters and counters.first <= parsed <= counters.last else None


def accept_length_from_sglang_rate(version: str, rate: float, steps: int, draft_tokens: int) -> float | None:
    """Tokens per target forward; None for a version whose formula is not known."""
    parsed = parse_version(version)
    row = next((r for r in SGLANG_RATE if parsed and r.first <= parsed <= r.last), None)
    return row.accept_length(rate, steps, draft_tokens) if row else None


def position0_from_accept_length(accept_length: float, draft_length: int) -> float:
    """The rate r of a chain in which every position is accepted alike: r + r^2 + ... + r^K = accept length - 1.

    For engines that count no positions (Leviathan, Kalman, Matias 2023: a capped geometric). As exact as a float:
    times a growing number of drafts it must not fall, or a counter made from it would look like one that was reset.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        expected = sum(middle**k for k in range(1, draft_length + 1))
        low, high = (middle, high) if expected < accept_length - 1 else (low, middle)
    return (low + high) / 2
