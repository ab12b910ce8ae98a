"""What engines call accept rate, version by version."""

from __future__ import annotations

import pytest

from tandem_operator.engines.formulas import (
    accept_length_from_sglang_rate,
    counters_of,
    parse_version,
    position0_from_accept_length,
)


@pytest.mark.parametrize(
    ("version", "shown", "accept_length"),
    [
        ("0.5.5", 0.25, 1.25),
        ("0.5.5", 0.2, 1.0),
        ("0.5.8", 0.2, 1.0),  # nothing is accepted, and it says 0.20
        ("0.5.9", 0.6, 3.0),
        ("0.5.10.post1", 0.2, 1.0),
        ("0.5.10", 1.0, 5.0),
        ("0.5.11", 0.0, 1.0),
        ("v0.5.11", 0.5, 3.0),
        ("0.5.23", 1.0, 5.0),
    ],
)
def test_sglangs_rate_with_4_drafted_and_5_verified_tokens(version: str, shown: float, accept_length: float) -> None:
    assert accept_length_from_sglang_rate(version, shown, steps=4, draft_tokens=5) == pytest.approx(accept_length)


@pytest.mark.parametrize("version", ["0.5.4", "0.5.6", "0.5.24", "0.6.0", "0.5.11rc1", "main", ""])
def test_a_version_that_nobody_looked_at_is_not_guessed_at(version: str) -> None:
    assert accept_length_from_sglang_rate(version, 0.2, steps=4, draft_tokens=5) is None


def test_raw_counters_come_first_where_the_engine_has_them() -> None:
    assert counters_of("sglang", "0.5.12") is None
    sglang, vllm = counters_of("sglang", "0.5.13"), counters_of("vllm", "0.33.0")
    assert sglang is not None
    assert (sglang.drafts, sglang.emitted) == ("sglang:spec_verify_calls_total", "sglang:generation_tokens_total")
    assert vllm is not None
    assert vllm.position0 == "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert counters_of("other", "1.0.0") is None


@pytest.mark.parametrize(
    ("text", "version"), [("0.5.10", (0, 5, 10)), ("v0.33.0", (0, 33, 0)), ("0.26.0+cu130", (0, 26, 0)), ("0.5", None)]
)
def test_versions(text: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(("rate", "length"), [(0.0, 5), (0.5, 1), (0.7, 5), (0.9, 3), (1.0, 4)])
def test_position_0_where_an_engine_counts_no_positions(rate: float, length: int) -> None:
    accept_length = 1 + sum(rate**k for k in range(1, length + 1))
    assert position0_from_accept_length(accept_length, length) == pytest.approx(rate, abs=1e-5)
