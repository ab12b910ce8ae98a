"""What a tree of drafts would bring: `make bench-trees`' arithmetic."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from tree_model import (
    RoundCosts,
    accept_length,
    along,
    followed,
    independent,
    likeliest,
    path_chances,
    points,
    steps_of,
)

H200 = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "h200-llama8b.json").read_text())
CHAIN = frozenset({(0,), (0, 0), (0, 0, 0)})


@pytest.mark.parametrize(("batch", "length"), [*product((1, 8, 32), (3, 5, 7))])
def test_a_chain_costs_what_its_round_was_measured_to_take(batch: int, length: int) -> None:
    costs = RoundCosts.of(H200)
    measured = H200[f"round_k{length}_ms"][str(batch)]
    assert costs.round_ms(batch, length, [1] * length) == pytest.approx(measured)


@pytest.mark.parametrize(("rows", "ms"), [(1, 2.0), (4, 2.0), (6, 3.0), (8, 4.0), (12, 4.0), (16, 4.0), (24, 4.0)])
def test_between_measured_points_cost_is_a_straight_line(rows: float, ms: float) -> None:
    assert along(points({"16": 4.0, "8": 4.0, "4": 2.0}), rows) == ms


def test_beyond_the_last_point_cost_grows_as_before_it() -> None:
    assert along(points({"8": 4.0, "16": 5.0}), 32) == 7.0


@pytest.mark.parametrize(
    ("tree", "steps"),
    [
        (CHAIN, [1, 1, 1]),
        ({(0,), (1,), (2,)}, [1]),
        ({(0,), (1,), (0, 0), (1, 0), (1, 1), (1, 0, 0)}, [1, 2, 1]),
    ],
)
def test_a_drafting_step_has_a_row_for_each_node_that_has_children(tree: frozenset, steps: list[int]) -> None:
    assert steps_of(tree) == steps


@pytest.mark.parametrize(("path", "accepted"), [((), 0), ((1, 0, 0), 0), ((0, 0, 2), 2), ((0, 0, 0, 0), 3)])
def test_a_round_accepts_what_the_tree_holds_of_the_texts_path(path: tuple[int, ...], accepted: int) -> None:
    assert followed(CHAIN, path) == accepted


def test_the_likeliest_tree_is_as_good_as_the_best_of_all() -> None:
    """All trees of 4 nodes over two ranks and three depths, by exhaustion."""
    chances = independent(0.6, [0.5], 3)
    every = [frozenset(p for p, use in zip(chances, chosen, strict=True) if use)
             for chosen in product((False, True), repeat=len(chances)) if sum(chosen) == 4]  # fmt: skip
    trees = [tree for tree in every if all(path[:-1] in tree or len(path) == 1 for path in tree)]
    best = max(sum(chances[path] for path in tree) for tree in trees)
    assert sum(chances[path] for path in likeliest(chances, 4, 3)) == pytest.approx(best)


def test_chances_of_paths_are_shares_of_all_rounds() -> None:
    chances = path_chances([[(0, 1), (0,)], [(), (1,)]])
    assert chances == {(0,): 0.5, (0, 1): 0.25, (1,): 0.25}


def test_a_wide_tree_needs_no_chance_twice() -> None:
    chances = independent(0.7, [0.4, 0.2], 2)
    assert chances[(0,)] == 0.7
    assert chances[(1,)] == pytest.approx(0.12)
    assert chances[(1, 0)] == pytest.approx(0.084)


def test_rounds_follow_one_another_through_a_text() -> None:
    """Rounds begin at 0, 3 and 4 of the first text, at 0 and 1 of the second."""
    assert accept_length([[2, 9, 9, 0, 1], [0, 3]]) == (3 + 1 + 2 + 1 + 4) / 5
