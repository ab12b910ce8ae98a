"""Accepted, and slower all the same: what step times say."""

from __future__ import annotations

import pytest

from tandem_operator.engines.reading import StepTimes
from tandem_operator.plan.analysis.speed import ENOUGH_ROUNDS, Speed, compare, too_slow


def times(batch: int, rounds: int, verify: float, draft: float, plain_steps: int, plain: float) -> list[StepTimes]:
    """Numbers of steps, and seconds of one of each."""
    return [
        StepTimes("verify", batch, rounds, rounds * verify),
        StepTimes("draft", batch, rounds, rounds * draft),
        StepTimes("plain", batch, plain_steps, plain_steps * plain),
    ]


def compared(times: list[StepTimes], accept_length: float, drafts: int = 1_000_000) -> Speed | None:
    return compare(times, accept_length, drafts)


def test_speedup_is_the_time_of_the_same_tokens_without_over_the_time_with() -> None:
    speed = compared(times(1, 1000, 0.010, 0.005, 100, 0.010), accept_length=3.0)
    assert speed is not None
    assert speed.speedup == pytest.approx(2.0)
    assert (speed.rounds, speed.plain_steps) == (1000, 100)


def test_a_full_engine_is_not_compared_with_an_idle_one() -> None:
    idle_plain = [StepTimes("plain", 1, 500, 500 * 0.010)]
    busy = [StepTimes("verify", 8, 500, 500 * 0.050), StepTimes("draft", 8, 500, 500 * 0.010)]
    assert compared([*idle_plain, *busy], accept_length=2.0) is None


def test_batch_sizes_count_by_the_rounds_that_ran_at_them() -> None:
    speed = compared([*times(1, 900, 0.01, 0.0, 50, 0.01), *times(8, 100, 0.09, 0.0, 50, 0.03)], accept_length=2.0)
    assert speed is not None
    assert speed.speedup == pytest.approx((900 * 2 * 0.01 + 100 * 2 * 0.03) / (900 * 0.01 + 100 * 0.09))


def test_a_drafter_that_costs_more_than_it_saves_is_too_slow() -> None:
    """SpecForge #339: accept length 1.9, 222 -> 187 tokens a second."""
    slow = times(1, 20_000, 1.9 / 187 - 0.002, 0.002, 2000, 1 / 222)
    speed = compared(slow, accept_length=1.9)
    assert speed is not None
    assert speed.speedup == pytest.approx(0.84, abs=0.005)
    assert too_slow(speed, min_speedup=1.0)
    assert not too_slow(speed, min_speedup=0.8)
    assert not too_slow(speed, min_speedup=0.0)


@pytest.mark.parametrize(("rounds", "plain_steps"), [(199, 10_000), (10_000, 29), (400, 40)])
def test_few_steps_are_not_enough_to_say_so(rounds: int, plain_steps: int) -> None:
    assert not too_slow(compared(times(1, rounds, 0.010, 0.002, plain_steps, 0.005), accept_length=1.9), 1.0)


@pytest.mark.parametrize(
    ("speedup", "drafts", "slow"),
    [(0.7, ENOUGH_ROUNDS - 1, False), (0.7, ENOUGH_ROUNDS, True), (0.9, ENOUGH_ROUNDS, False), (0.9, 10_000, True)],
)
def test_acceptance_of_few_drafts_is_not_enough_however_many_steps_were_timed(
    speedup: float, drafts: int, slow: bool
) -> None:
    steps = times(1, 1_000_000, 0.010, 0.002, 100_000, 0.006 * speedup)
    assert too_slow(compared(steps, accept_length=2.0, drafts=drafts), 1.0) == slow


def test_never_timed_is_not_slow() -> None:
    assert not too_slow(None, 1.0)
    assert compared([], accept_length=3.0) is None
