"""Sampling is lossless: with drafts and without, tokens follow the target's own processed distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tandem_worker.engine import engine as engine_module
from tandem_worker.engine.engine import Engine
from tandem_worker.engine.request import Sampling
from tandem_worker.engine.runner import Runner
from tandem_worker.engine.sampling import choose, confirmed, invert, processed, uniform
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from unit.pairs import DRAFT_VOCAB, VOCAB, drafter_files, target_files
from unit.serving import accepted, finish_all, load_pair, make_engine, submit

Toy = tuple[Llama, Eagle3]

TEXTS, PROMPT = 1500, [3, 11, 40]
TEMPERATURE, TOP_P = 1.7, 0.9
ENOUGH = 5  # expected count of a cell of the chi-square test


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    folder = tmp_path_factory.mktemp("toy")
    return load_pair(target_files().write(folder / "target"), drafter_files().write(folder / "drafter"))


def samples(toy: Toy, exact: Tensor, speculate: bool) -> tuple[list[tuple[int, ...]], Engine]:
    """First three tokens of many texts, and the engine.

    The toy's drafter is random; what it drafts is put where the target's probability is, so that much is accepted.
    """
    engine = make_engine(speculate, draft_length=2, pair=toy, max_batch=128)
    engine.eos_token_ids = frozenset()
    likely = exact.sum((0, 2)).topk(3).indices
    assert isinstance(engine.runner, Runner)
    engine.runner.target_ids = likely[torch.arange(DRAFT_VOCAB) % 3]
    texts = [submit(engine, PROMPT, Sampling(3, TEMPERATURE, TOP_P, seed=seed)) for seed in range(TEXTS)]
    finish_all(engine)
    return [tuple(text.tokens) for text in texts], engine


@pytest.fixture(scope="module")
def exact(toy: Toy) -> Tensor:
    """Probability of every text of three tokens, [V, V, V]."""
    llama, _ = toy
    one = Sampling(3, TEMPERATURE, TOP_P)

    def following(texts: list[list[int]]) -> Tensor:
        with torch.inference_mode():
            return processed(llama.whole(torch.tensor(texts))[0][:, -1], [one] * len(texts))

    first = following([PROMPT])[0]
    second = following([[*PROMPT, a] for a in range(VOCAB)])
    third = following([[*PROMPT, a, b] for a in range(VOCAB) for b in range(VOCAB)]).view(VOCAB, VOCAB, VOCAB)
    return first[:, None, None] * second[:, :, None] * third


def p_value(found: list[tuple[int, ...]], probabilities: Tensor) -> float:
    """Chi-square test of texts against their probabilities; rare texts share one cell."""
    expected = probabilities.flatten() * TEXTS
    observed = torch.zeros_like(expected)
    for a, b, c in found:
        observed[(a * VOCAB + b) * VOCAB + c] += 1
    assert observed[expected == 0].sum() == 0
    common = expected >= ENOUGH
    cells = [(observed[common], expected[common]), (observed[~common].sum()[None], expected[~common].sum()[None])]
    statistic = sum(((o - e) ** 2 / e).sum().item() for o, e in cells)
    freedom = int(common.sum())
    assert freedom > 30
    return float(torch.special.gammaincc(torch.tensor(freedom / 2), torch.tensor(statistic / 2)))


@pytest.mark.parametrize("speculate", [True, False])
def test_sampled_texts_follow_the_targets_distribution(toy: Toy, exact: Tensor, speculate: bool) -> None:
    found, engine = samples(toy, exact, speculate)
    assert p_value(found, exact) > 1e-3
    counts = accepted(engine)
    assert bool(counts) == speculate
    if speculate:  # drafts were accepted and refused, so both ways are tested
        assert 0.05 < sum(count > 0 for count in counts) / len(counts) < 0.95


def test_a_lenient_acceptance_rule_is_caught_by_this_test(
    toy: Toy, exact: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking one drafted token on trust is enough to fail."""

    def lenient(proposals: list[int], chosen: list[int]) -> int:
        chosen[: len(proposals[:1])] = proposals[:1]
        return confirmed(proposals, chosen)

    monkeypatch.setattr(engine_module, "confirmed", lenient)
    found, _ = samples(toy, exact, speculate=True)
    with pytest.raises(AssertionError):
        assert p_value(found, exact) > 1e-3


def test_top_p_keeps_the_token_that_crosses_it_and_drops_the_rest() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    kept = processed(logits, [Sampling(1, 1.0, 0.6)])[0]
    assert kept.tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert processed(logits, [Sampling(1, 1.0, 0.5)])[0].tolist() == pytest.approx([1, 0, 0, 0])


def test_temperature_divides_the_logits() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    assert processed(logits, [Sampling(1, 2.0)])[0].tolist() == pytest.approx(
        [1 / (1 + math.exp(-1)), 1 / (1 + math.e)]
    )


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 5.0, 0.0], [0.0, 0.0, 50.0]])
    assert choose(logits, [Sampling(1), Sampling(1, 1.0, seed=3)], [4, 9]) == [1, 2]


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda p: sum(p) > 1e-3), st.floats(0, 1, exclude_max=True)
)
def test_a_token_of_probability_zero_is_never_drawn(weights: list[float], draw: float) -> None:
    probabilities = torch.tensor([weights], dtype=torch.float64)
    (token,) = invert(probabilities / probabilities.sum(), [draw])
    assert weights[token] > 0


@given(st.integers(), st.integers(0, 10**6))
def test_draws_lie_in_the_unit_interval_and_repeat(seed: int, position: int) -> None:
    assert 0 <= uniform(seed, position) < 1
    assert uniform(seed, position) == uniform(seed, position)


def test_confirmed_counts_from_the_front() -> None:
    assert confirmed([1, 2, 3], [1, 2, 9, 4]) == 2
    assert confirmed([1, 2, 3], [1, 2, 3, 4]) == 3
    assert confirmed([5, 2], [1, 2, 3]) == 0
    assert confirmed([], [1]) == 0
