"""Replicas of every revision: never too many, never too few, and always there in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.plan.scale import Present, next_counts, share, shares, told_share

LIMITS = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(lambda limits: sum(limits) > 0)
PRESENT = st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 6), st.integers(0, 6)))


@given(st.integers(0, 8), st.integers(1, 100), LIMITS, PRESENT)
def test_one_pass_keeps_to_surge_and_unavailability_from_any_state(
    replicas: int, weight: int, limits: tuple[int, int], present: dict[str, tuple[int, int]]
) -> None:
    surge, unavailable = limits
    now = {name: Present(d, min(d, r)) for name, (d, r) in present.items()}
    stable, canary = shares(replicas, weight, surge)
    counts = next_counts({"b": canary, "a": stable}, now, replicas, surge, unavailable)
    total, before = sum(counts.values()), sum(p.desired for p in now.values())
    assert total <= max(before, replicas + surge)
    ready_before = sum(p.ready for p in now.values())
    ready_after = sum(min(p.ready, counts[name]) for name, p in now.items())
    assert ready_after >= min(ready_before, replicas - unavailable)


@given(st.integers(0, 8), st.integers(1, 100), LIMITS, PRESENT)
def test_passes_converge_when_pods_become_ready(
    replicas: int, weight: int, limits: tuple[int, int], present: dict[str, tuple[int, int]]
) -> None:
    surge, unavailable = limits
    now = {name: Present(d, min(d, r)) for name, (d, r) in present.items()}
    stable, canary = shares(replicas, weight, surge)
    wanted = {"b": canary, "a": stable}
    for _ in range(40):
        counts = next_counts(wanted, now, replicas, surge, unavailable)
        now = {name: Present(count, count) for name, count in counts.items()}
    assert {name: p.desired for name, p in now.items() if p.desired} == {n: c for n, c in wanted.items() if c}


@given(st.integers(1, 200), st.integers(1, 99), st.integers(0, 3))
def test_a_weight_is_never_rounded_to_none_nor_to_all_where_two_workers_fit(
    replicas: int, weight: int, surge: int
) -> None:
    stable, canary = shares(replicas, weight, surge)
    assert replicas <= stable + canary <= replicas + surge
    assert canary >= 1
    assert stable >= 1 or replicas + surge == 1
    assert 0 < share(stable, canary) < 100 or replicas + surge == 1


@given(st.integers(1, 99), st.integers(0, 3))
def test_as_many_replicas_as_the_message_names_express_the_weight(weight: int, surge: int) -> None:
    needed = told_share(1, weight, surge).split(", ")[-1]
    if needed.endswith(" can"):
        assert share(*shares(int(needed.split()[0]), weight, surge)) == weight


@pytest.mark.parametrize(
    ("replicas", "weight", "surge", "told"),
    [
        (10, 10, 1, "1 of 10 workers, a share of 10 %"),
        (4, 10, 1, "1 of 5 workers, a share of 20 %: 4 replicas can't express 10 %, 10 can"),
        (1, 50, 1, "1 of 2 workers, a share of 50 %"),
        (1, 5, 1, "1 of 2 workers, a share of 50 %: 1 replica can't express 5 %, 20 can"),
        (1, 10, 0, "1 of 1 worker, a share of 100 %: no other worker fits beside it"),
        (3, 33, 0, "1 of 3 workers, a share of 33 %"),
    ],
)
def test_what_a_weight_comes_to_is_said_in_words(replicas: int, weight: int, surge: int, told: str) -> None:
    assert told_share(replicas, weight, surge) == told


def test_shares_follow_the_weight_and_leave_room_for_both() -> None:
    assert shares(10, 10, 1) == (9, 1)
    assert shares(10, 50, 1) == (5, 5)
    assert shares(10, 100, 1) == (0, 10)
    assert shares(1, 10, 1) == (1, 1)
    assert shares(1, 10, 0) == (0, 1), "no spare GPU: the canary takes the only place"
    assert shares(2, 10, 1) == (2, 1)
    assert shares(2, 90, 0) == (1, 1), "never rounded to all where two fit"
    assert shares(1, 99, 1) == (1, 1)
    assert shares(100, 1, 0) == (99, 1)
    assert shares(0, 50, 1) == (0, 0)


def test_what_does_not_get_ready_steps_aside_when_something_unwanted_is_all_that_serves() -> None:
    """`x` is the last canary, withdrawn, and the only one that answers; none of the stable `a` starts any more."""
    now = {"a": Present(3, 0), "x": Present(1, 1), "b": Present(0, 0)}
    counts = next_counts({"b": 1, "a": 3}, now, replicas=3, max_surge=1, max_unavailable=0)
    assert counts == {"b": 1, "a": 2, "x": 1}


def test_a_starting_worker_does_not_step_aside_when_there_is_room() -> None:
    now = {"a": Present(3, 2), "x": Present(1, 1), "b": Present(0, 0)}
    assert next_counts({"b": 1, "a": 3}, now, 3, max_surge=2, max_unavailable=0) == {"b": 1, "a": 3, "x": 1}
