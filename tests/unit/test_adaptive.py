"""The draft length follows what drafts cost and how many are accepted, and never expects to be slower than none."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_worker.engine import measure as measure_module
from tandem_worker.engine.adaptive import (
    LONGEST,
    LOOK_AFTER,
    MARGIN,
    ROUNDS_BETWEEN,
    Adaptive,
    Chances,
    Costs,
    best_length,
    expected_tokens,
)
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.measure import FIRST, LENGTHS, ROUNDS, Stopwatch, measure, settled
from tandem_worker.engine.record import Phase
from tandem_worker.engine.request import Sampling
from tandem_worker.server.start import start
from unit.serving import (
    Told,
    accepted,
    finish_all,
    generate,
    make_engine,
    phases,
    prompts,
    submit,
    tiny_pair,
    tiny_settings,
)

H200 = Path(__file__).parents[2] / "benchmarks" / "results" / "h200-llama8b.json"


def h200() -> Costs:
    """What rounds of the 8B shape cost on one H200, as committed."""
    rows = json.loads(H200.read_text())["rows"]
    return Costs({(row["batch"], row["drafts"]): row["ms"] / 1000 for row in rows})


def chances(*of_positions: float, drafts: int = 3000, seed: int = 0) -> Chances:
    """After many drafts whose token at position k was accepted with the k-th chance, if those before it were."""
    told, chance = Chances(), random.Random(seed)
    for _ in range(drafts):
        taken = next((k for k, p in enumerate(of_positions) if chance.random() >= p), len(of_positions))
        told.drafted(len(of_positions), taken)
    return told


# --- costs and chances -----------------------------------------------------------------------------------------------


def test_costs_lie_on_lines_between_measured_points_and_stay_flat_beyond() -> None:
    costs = Costs({(1, 0): 4.0, (1, 4): 6.0, (9, 0): 8.0, (9, 4): 18.0})
    assert costs.at(1, 0) == 4.0
    assert costs.at(1, 2) == 5.0
    assert costs.at(5, 0) == 6.0
    assert costs.at(5, 2) == (5.0 + 13.0) / 2
    assert costs.at(64, 8) == costs.at(9, 4) == 18.0


def test_where_there_is_no_room_for_drafts_their_cost_is_infinite_and_they_are_not_chosen() -> None:
    costs = Costs({(batch, length): inf if length == 8 else 1.0 for batch in (1, 4) for length in (0, 1, 2, 4, 8)})
    for batch in (1, 2, 4, 9):
        assert [costs.at(batch, length) for length in range(9)] == [1.0] * 5 + [inf] * 4
        assert best_length(costs, Chances(), batch, current=8) == 4
    none = Costs({(1, length): inf if length else 1.0 for length in (0, 1, 2, 4, 8)})
    assert best_length(none, Chances(), 1, current=8) == 0


def test_chances_are_learnt_by_position_and_carried_on_to_where_nothing_is_known() -> None:
    told = chances(0.9, 0.5)
    assert told.at(0) == pytest.approx(0.9, abs=0.06)
    assert told.at(1) == pytest.approx(0.5, abs=0.09)
    assert told.at(5) == pytest.approx(told.at(1), abs=0.01)
    assert expected_tokens(told, 2) == pytest.approx(1 + told.at(0) + told.at(0) * told.at(1))


def test_what_is_learnt_follows_a_change_within_some_hundred_drafts() -> None:
    told = chances(0.9)
    for _ in range(600):
        told.drafted(1, 0)
    assert told.at(0) < 0.1


# --- the choice ------------------------------------------------------------------------------------------------------


def test_what_the_host_adds_to_every_round_speaks_for_longer_drafts() -> None:
    """As seen on an H200: a small target, 64 requests at once."""
    adaptive = Adaptive(Costs({(64, 0): 1.0, (64, 1): 1.3, (64, 4): 2.4}), longest=4)
    adaptive.chances = chances(0.65, 0.65, 0.65, 0.65)
    assert adaptive.next_length(64) == 1  # 1.65 tokens in 1.3, 2.53 in 2.4
    for _ in range(100):
        adaptive.took(64, 1, 6.3)
    assert [adaptive.next_length(64) for _ in range(ROUNDS_BETWEEN)][-1] == 4  # 1.65 in 6.3, 2.53 in 7.4
    for _ in range(200):
        adaptive.took(64, 4, 2.4)
    assert [adaptive.next_length(64) for _ in range(2 * ROUNDS_BETWEEN)][-1] == 1


def test_what_the_host_adds_grows_with_the_requests_and_is_never_taken_off() -> None:
    costs = Costs({(1, 0): 1.0, (1, 8): 1.2, (64, 0): 1.0, (64, 8): 9.0})
    adaptive = Adaptive(costs)
    for _ in range(200):
        adaptive.took(64, 0, 65.0)  # one second beyond, each
    assert adaptive.beyond_seconds(64) == pytest.approx(64, rel=0.01)
    assert adaptive.beyond_seconds(1) == pytest.approx(1, rel=0.01)
    for _ in range(200):
        adaptive.took(64, 8, 0.5)
    assert adaptive.beyond_seconds(64) == 0


def test_a_round_that_no_point_of_the_table_knows_is_not_learnt_from() -> None:
    adaptive = Adaptive(Costs({(1, 0): 1.0, (1, 8): inf}))
    adaptive.took(1, 8, 3.0)
    assert adaptive.beyond_seconds(1) == 0


@pytest.mark.parametrize(
    ("batch", "of_positions", "lengths"),
    [
        (1, (0.8,) * 8, {6, 7, 8}),  # one request: drafts are almost free
        (32, (0.8,) * 8, {3, 4}),  # the card is at its power limit from 128 rows on
        (32, (0.45,) * 8, {1, 2}),
        (1, (0.5,) * 8, {2, 3}),
        (1, (0.05,) * 8, {0}),
        (32, (0.0,) * 8, {0}),
    ],
)
def test_on_an_h200_it_drafts_as_the_measured_costs_say(
    batch: int, of_positions: tuple[float, ...], lengths: set[int]
) -> None:
    assert best_length(h200(), chances(*of_positions), batch, current=0) in lengths


TABLES = st.dictionaries(
    st.integers(1, 64),
    st.lists(st.floats(0.001, 10), min_size=4, max_size=4),
    min_size=1,
    max_size=4,
).map(
    lambda rows: Costs(
        {(batch, k): cost for batch, row in rows.items() for k, cost in zip((0, 1, 4, 8), row, strict=True)}
    )
)
POSITIONS = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(
    TABLES, POSITIONS, st.integers(1, 80), st.integers(0, LONGEST), st.integers(0, 1000), st.sampled_from([0.0, 0.1, 9])
)
def test_no_choice_expects_to_be_slower_than_the_target_alone(
    costs: Costs, of_positions: list[float], batch: int, current: int, seed: int, beyond_seconds: float
) -> None:
    """Whatever the costs, also such that make no sense; and it is within the margin of the best."""
    told = chances(*of_positions, drafts=60, seed=seed)
    chosen = best_length(costs, told, batch, current, beyond_seconds=beyond_seconds)

    def rate(length: int) -> float:
        return expected_tokens(told, length) / (costs.at(batch, length) + beyond_seconds)

    assert rate(chosen) >= rate(0)
    assert rate(chosen) * MARGIN >= max(rate(length) for length in range(LONGEST + 1))


def test_a_small_promise_changes_nothing_but_being_slower_than_none_does() -> None:
    told = chances(0.5)
    assert best_length(Costs({(1, 0): 1.0, (1, 1): 1.47}), told, 1, current=0, longest=1) == 0
    assert best_length(Costs({(1, 0): 1.0, (1, 1): 1.2}), told, 1, current=0, longest=1) == 1
    assert best_length(Costs({(1, 0): 1.0, (1, 1): 1.6}), told, 1, current=1, longest=1) == 0


def test_where_nothing_is_accepted_it_gives_up_and_looks_again_ever_more_rarely() -> None:
    """Costs of an H200, one request. Drafting in vain costs 1.2 rounds each; all of it stays below 2 %."""
    adaptive, costs, looks, spent, plain = Adaptive(h200()), h200(), [], 0.0, 0.0
    rounds = 16 * LOOK_AFTER
    for number in range(rounds):
        length = adaptive.next_length(1)
        if length:
            adaptive.chances.drafted(length, 0)
            looks.append(number)
        spent += costs.at(1, length)
        plain += costs.at(1, 0)
    begun = [a for a, b in zip(looks, [-2, *looks], strict=False) if a - b > 1]
    gaps = [b - a for a, b in pairwise(begun)]
    assert len(begun) >= 4
    assert gaps == sorted(gaps)
    assert spent < 1.02 * plain


def test_when_text_gets_better_it_drafts_again() -> None:
    adaptive = Adaptive(h200())
    for _ in range(200):
        if length := adaptive.next_length(8):
            adaptive.chances.drafted(length, 0)
    assert adaptive.length == 0
    for _ in range(LOOK_AFTER + 400):
        if length := adaptive.next_length(8):
            adaptive.chances.drafted(length, length)
    assert adaptive.length >= 5


# --- in the engine ---------------------------------------------------------------------------------------------------


def costs_that_want(length: int) -> Costs:
    """Drafts are free up to a length and dear behind it."""
    return Costs({(1, k): 1.0 + 0.001 * k + (50.0 if k > length else 0.0) for k in range(LONGEST + 1)})


def adaptive_engine(kernels: bool | None = None, **options: Any) -> Engine:
    made = Engine(*tiny_pair(), EngineOptions(LONGEST, adaptive=True, kernels=kernels, **options), Told())
    made.switch(True)
    return made


def test_text_is_the_same_while_the_length_changes_under_load() -> None:
    some = prompts()[:6]
    plain = generate(make_engine(speculate=False, max_batch=1), some, 40)
    engine = adaptive_engine(max_batch=4)
    seen: set[int] = set()

    def change(step: int) -> None:
        seen.add(engine.length if engine.speculating else 0)
        if step % 4 == 0:
            engine.adapt(costs_that_want((3, 0, 8, 1)[step // 4 % 4]))

    engine.adapt(costs_that_want(5))
    texts = [submit(engine, prompt, Sampling(40)) for prompt in some]
    finish_all(engine, between=change)
    assert [text.tokens for text in texts] == plain
    assert {0, 1, 3, 8} <= seen
    assert engine.pages.free == engine.pages.count - 1


def test_where_no_draft_pays_every_round_is_plain_and_said_to_be_meant_so() -> None:
    engine = adaptive_engine(max_batch=2)
    engine.adapt(costs_that_want(0))
    text = submit(engine, prompts()[0], Sampling(12))
    finish_all(engine)
    assert len(text.tokens) == 12
    assert accepted(engine) == []
    assert Phase.VERIFY not in phases(engine)
    assert isinstance(engine.recorder, Told)
    assert engine.recorder.undrafted_tokens == 12


def test_costs_are_measured_for_every_length_at_several_batches() -> None:
    engine = adaptive_engine(max_batch=5)
    costs = measure(engine, prompts()[0][:6])
    assert set(costs.seconds) == {(batch, length) for batch in (1, 4, 5) for length in LENGTHS}
    assert all(0 < seconds < 60 for seconds in costs.seconds.values())
    assert engine.idle
    assert engine.pages.free == engine.pages.count - 1
    assert accepted(engine) == []


@pytest.mark.parametrize("disturbed", [1, ROUNDS // 2, ROUNDS - 1])
def test_rounds_that_other_work_held_up_do_not_count(monkeypatch: pytest.MonkeyPatch, disturbed: int) -> None:
    """Of those that are measured at each point."""

    class HeldUp(Stopwatch):
        def stepped(self, phase: Phase, batch: int, seconds: float) -> None:
            held_up = phase is not Phase.DRAFT and len(self.seconds) < FIRST + disturbed
            super().stepped(phase, batch, seconds + 1000 * held_up)

    monkeypatch.setattr(measure_module, "Stopwatch", HeldUp)
    costs = measure(adaptive_engine(max_batch=1), prompts()[0][:6])
    assert all(seconds < 1000 for seconds in costs.seconds.values())


POINTS = [(batch, length) for batch in (1, 4, 16) for length in LENGTHS]


@given(st.lists(st.sampled_from([0.0, 0.0, 0.5, 3.0, inf]), min_size=len(POINTS), max_size=len(POINTS)))
def test_what_held_up_a_point_counts_only_where_it_held_up_all_beyond_it(held_up: list[float]) -> None:
    true = {(batch, length): 4 + 0.1 * length + 0.02 * batch * (length + 1) for batch, length in POINTS}
    measured = {point: true[point] + more for point, more in zip(POINTS, held_up, strict=True)}
    table = settled(measured)
    assert all(true[point] <= table[point] <= measured[point] for point in POINTS)
    assert all(table[batch, 0] <= table[batch, length] for batch, length in POINTS)
    assert settled(true) == true


def test_a_plain_round_that_was_held_up_does_not_make_long_drafts_pay() -> None:
    """None is ever accepted; the plain rounds were measured at three times their cost, which is hardly below that of
    rounds with one draft."""
    measured = {(batch, length): 1 + 0.01 * length + 2 * (length == 0) for batch, length in POINTS}
    chances = Chances()
    for _ in range(500):
        chances.drafted(4, 0)
    assert best_length(Costs(measured), chances, 4, 4) == 4
    assert best_length(Costs(settled(measured)), chances, 4, 4) <= 1


def test_worker_that_adapts_says_so_in_its_metrics() -> None:
    settings = tiny_settings()
    worker = start(replace(settings, engine=replace(settings.engine, draft_length=LONGEST, adaptive=True, max_batch=2)))
    worker.engine.stop()
    assert worker.engine.engine.adaptive
    assert worker.status().draft_length == LONGEST
    assert f'tandem_draft_length{{revision="rev-1"}} {LONGEST}.0' in worker.metrics.exposition().decode()
