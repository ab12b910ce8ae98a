"""Shares with prompts as clusters, and when one wiring is surely better than another."""

from __future__ import annotations

import random

import pytest

from tandem_worker.probe.evidence import Share, gain, quantile, share, surely


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (5, 2.571), (15, 2.131), (16, 2.120), (120, 1.980)]
)
def test_quantiles_are_those_of_the_printed_tables(freedom: int, t: float) -> None:
    assert quantile(0.975, freedom) == pytest.approx(t, abs=6e-4)


def test_tokens_of_one_text_do_not_count_as_so_many_draws() -> None:
    """Eight texts, each accepted throughout or not at all: the error is that of eight draws, not of 800."""
    measured = share([100, 100, 100, 100, 0, 0, 0, 0], [100] * 8)
    assert measured.value == 0.5
    assert measured.error == pytest.approx((0.25 / 7) ** 0.5)


def test_what_makes_a_text_hard_for_both_cancels() -> None:
    easy_and_hard = [10, 90, 20, 80, 30, 70, 15, 85]
    better = [matches + 5 for matches in easy_and_hard]
    difference = gain(better, easy_and_hard, [100] * 8)
    assert difference.value == pytest.approx(0.05)
    assert difference.error == pytest.approx(0, abs=1e-9)
    assert surely(difference, 1e-5)
    assert not surely(gain(easy_and_hard, better, [100] * 8), 1e-5)


def test_noise_is_not_taken_for_a_gain() -> None:
    """2000 comparisons of two alike, at a chance of 1e-3 each."""
    rng = random.Random(4)
    found = 0
    for _ in range(2000):
        one, other = ([rng.gauss(50, 5) for _ in range(12)] for _ in range(2))
        found += surely(gain(one, other, [100] * 12), 1e-3)
    assert found <= 8  # 2 are expected; more than 8 come once in 4000 runs


def test_an_interval_of_no_acceptance_at_all_is_not_a_point() -> None:
    lower, upper = share([0] * 10, [50] * 10).interval()
    assert lower == 0
    assert 0.2 < upper < 0.3
    assert Share(0.4, 0.1, 1).interval() == (0.0, 1.0)


def test_texts_that_count_nothing_are_left_out() -> None:
    assert share([5, 0], [10, 0]) == share([5], [10])
    assert share([], []).value == 0
