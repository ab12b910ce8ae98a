"""Where the search goes on, and where it ends: on figures that are made up, the same for every text but for noise."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tandem_worker.probe.hypotheses import Choices, neighbours
from tandem_worker.probe.score import Score
from tandem_worker.probe.search import Table, search, stepped_back
from tandem_worker.probe.wiring import Aspect, DraftIds, View, Wiring, differences

RIGHT = Wiring(capture=(2, 4, 5))
CHOICES = Choices(layers=8, states=3, readings=((2, 4, 5), (1, 3, 4)), ids=tuple(DraftIds))
TEXTS, LEAST = 24, 0.15


class Figures:
    """Overlap 0.5 of the right wiring, a third of it for each thing that is wrong."""

    def __init__(self, noise: float = 0.01) -> None:
        self.rng, self.noise, self.measured = random.Random(1), noise, Counter[Wiring]()

    def __call__(self, wirings: Sequence[Wiring]) -> dict[Wiring, Score]:
        self.measured.update(wirings)
        return {wiring: self.score(wiring) for wiring in wirings}

    def score(self, wiring: Wiring) -> Score:
        mean = 0.5 / 3 ** len(differences(wiring, RIGHT))
        return Score(tuple(10 * self.rng.gauss(mean, self.noise) for _ in range(TEXTS)), (0.0,) * TEXTS, (10,) * TEXTS)

    def search(self, engine: Wiring) -> Table:
        return search(engine, CHOICES, [self] * 3, self, LEAST)


def test_two_mistakes_are_mended_one_after_the_other() -> None:
    wrong = replace(RIGHT, ids=DraftIds.IDS, view=View.FINAL_NORM)
    table = Figures().search(wrong)
    assert table.rows[0].wiring == RIGHT
    assert differences(wrong, RIGHT) == (Aspect.VIEW, Aspect.IDS)


def test_what_each_mending_brought_is_measured_for_the_best_alone() -> None:
    wrong, figures = replace(RIGHT, ids=DraftIds.IDS, view=View.FINAL_NORM), Figures()
    table = figures.search(wrong)
    figures.measured.clear()
    table = stepped_back(table, RIGHT, figures)
    assert [row.wiring for row in table.rows].count(RIGHT) == 1
    for half in (replace(RIGHT, ids=DraftIds.IDS), replace(RIGHT, view=View.FINAL_NORM)):
        row = table.row(half)
        assert row is not None
        assert row.overlap.value < table.rows[0].overlap.value / 2
        assert figures.measured[half] <= 1
    assert stepped_back(table, wrong, figures) == table


def test_from_a_right_wiring_the_search_goes_nowhere() -> None:
    figures = Figures()
    table = figures.search(RIGHT)
    assert set(table.looked) == {RIGHT, *neighbours(RIGHT, CHOICES)}
    assert table.rows == ()
    assert table.closest is not None


def test_of_a_hundred_wirings_that_predict_nothing_the_luckiest_is_not_followed() -> None:
    class Nothing(Figures):
        def score(self, wiring: Wiring) -> Score:
            return Score(tuple(self.rng.random() / 10 for _ in range(TEXTS)), (0.0,) * TEXTS, (10,) * TEXTS)

    table = Nothing().search(RIGHT)
    assert set(table.looked) == {RIGHT, *neighbours(RIGHT, CHOICES)}
    assert table.rows == ()


def test_a_wiring_is_followed_once_and_the_search_ends_behind_the_best() -> None:
    figures = Figures()
    table = figures.search(replace(RIGHT, ids=DraftIds.IDS))
    assert table.rows[0].wiring == RIGHT
    tried = {RIGHT, *neighbours(RIGHT, CHOICES), *neighbours(replace(RIGHT, ids=DraftIds.IDS), CHOICES)}
    assert set(table.looked) == tried
    assert max(figures.measured.values()) <= 4  # three looks, and the whole text


def test_nothing_is_compared_with_what_is_no_number() -> None:
    class Broken(Figures):
        def score(self, wiring: Wiring) -> Score:
            return Score((math.nan,) * TEXTS, (0.0,) * TEXTS, (10,) * TEXTS, finite=False)

    figures = Broken()
    table = figures.search(RIGHT)
    assert not table.engine.score.finite
    assert set(figures.measured) == {RIGHT}
