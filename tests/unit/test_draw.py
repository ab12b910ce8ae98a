"""The kernel that draws says what `engine.sampling` says, which other tests hold against transformers."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tandem_worker.engine.request import Request, Sampling
from unit.drawn import KINDS, any_request, by_kernel, by_torch, drafts_of, logits_of, small

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning",  # of tiles' ends, which nobody stores
    "ignore:overflow encountered:RuntimeWarning",  # of random words, which are meant to
)


SMALL = small(16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("vocab", "lanes", "ahead", "behind"),
    [(37, 64, 64, 64), (90, 16, 2, 90), (90, 8, 9, 20), (64, 16, 0, 0)],
    ids=["all are set aside", "those around the cut", "a few", "none"],
)
def test_every_mix_of_settings_draws_what_the_definition_draws(
    kind: str, vocab: int, lanes: int, ahead: int, behind: int
) -> None:
    chance = random.Random(f"{kind} {vocab} {ahead}")
    requests = [any_request(chance, vocab) for _ in range(8)]
    tokens = drafts_of(requests, 2, vocab, chance)
    logits = logits_of(kind, 24, vocab, 5)
    expected = by_torch(logits, requests, tokens)
    assert by_kernel(logits, requests, tokens, ahead, behind, small(lanes)) == expected
    assert expected != logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"top_k": 3}, 3),
        ({"top_p": 0.4}, 1),
        ({"top_p": 0.6}, 2),
        ({"min_p": 0.31}, 2),
        ({"top_k": 2, "top_p": 0.6}, 1),
    ],
    ids=str,
)
def test_nothing_beyond_a_cut_is_ever_drawn_and_all_within_it_is(settings: dict[str, float], most: int) -> None:
    probabilities = torch.tensor([0.05, 0.5, 0.15, 0.3])
    order = [1, 3, 2, 0]
    requests = [
        Request((0,), Sampling(9, 1.0, seed=seed, **settings), lambda tokens, finish: None)  # type: ignore[arg-type]
        for seed in range(40)
    ]
    tokens = torch.zeros(40, 1, dtype=torch.int32)
    found = by_kernel(probabilities.log().expand(40, -1).contiguous(), requests, tokens, 2, 16, SMALL)
    assert set(found) == set(order[:most])


def test_a_row_draws_the_same_alone_and_among_others_whatever_they_ask_for() -> None:
    chance = random.Random(2)
    requests = [any_request(chance, 50) for _ in range(10)]
    tokens, logits = drafts_of(requests, 1, 50, chance), logits_of("smooth", 20, 50, 8)
    together = by_kernel(logits, requests, tokens, 4, 8, SMALL)
    alone = [
        by_kernel(logits[2 * i : 2 * i + 2], requests[i : i + 1], tokens[i : i + 1], 4, 8, SMALL) for i in range(10)
    ]
    assert [token for pair in alone for token in pair] == together


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_stays_broken_and_its_neighbours_whole(broken: float) -> None:
    sampling = Sampling(9, 1.0, top_k=5, top_p=0.9, seed=4)
    requests = [Request((i,), sampling, lambda tokens, finish: None) for i in range(3)]
    tokens, logits = torch.zeros(3, 1, dtype=torch.int32), logits_of("smooth", 3, 40, 6)
    whole = by_kernel(logits, requests, tokens, 4, 8, SMALL)
    logits[1, 7] = broken
    assert by_kernel(logits, requests, tokens, 4, 8, SMALL) == [whole[0], -1, whole[2]]


def test_a_vocabulary_of_a_real_model_is_drawn_from() -> None:
    vocab, chance = 128_256, random.Random(3)
    requests = [any_request(chance, vocab) for _ in range(4)]
    tokens, logits = drafts_of(requests, 0, vocab, chance), logits_of("smooth", 4, vocab, 9)
    assert by_kernel(logits, requests, tokens) == by_torch(logits, requests, tokens)
