"""Sampling is lossless: with drafts and without, tokens follow the target's own processed distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tandem_worker.engine import engine as engine_module
from tandem_worker.engine.choosing import BROKEN, Row, choose
from tandem_worker.engine.engine import Engine
from tandem_worker.engine.request import Request, Sampling
from tandem_worker.engine.runner import Runner
from tandem_worker.engine.sampling import Changes, Settings, confirmed, draw, weigh
from tandem_worker.kernels.chance import MASK, ONE, halves, philox, uniform
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from unit.pairs import DRAFT_VOCAB, VOCAB, drafter_files, target_files
from unit.serving import CPU, accepted, finish_all, load_pair, make_engine, submit

Toy = tuple[Llama, Eagle3]

TEXTS, PROMPT = 1500, [3, 11, 40]
ENOUGH = 5  # expected count of a cell of the chi-square test

CASES = {
    "temperature and top-p": {"temperature": 1.7, "top_p": 0.9},
    "penalties, bias, top-k and min-p": {
        "temperature": 2.5,
        "top_k": 12,
        "min_p": 0.02,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.9,
        "repetition_penalty": 1.3,
        "logit_bias": ((5, 1.5), (40, -3.0)),
    },
}
SAMPLINGS = [Sampling(3, **settings) for settings in CASES.values()]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    folder = tmp_path_factory.mktemp("toy")
    return load_pair(target_files().write(folder / "target"), drafter_files().write(folder / "drafter"))


# --- an oracle: transformers' own processors, and OpenAI's formula for the two penalties that it lacks ----------------


def ids(tokens: list[int]) -> Any:
    """[1, T], as transformers wants them."""
    return torch.tensor([tokens])


def oracle(logits: Tensor, sampling: Sampling, prompt: list[int], generated: list[int]) -> Tensor:
    """Probabilities [V] that the next token is to follow. logits [V]."""
    x = logits.double()[None].clone()
    for token, value in sampling.logit_bias:
        x[0, token] += value
    processors = transformers.LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    x = processors(ids(prompt + generated), x)
    for token in set(generated):
        x[0, token] -= sampling.presence_penalty + sampling.frequency_penalty * generated.count(token)
    warpers = transformers.LogitsProcessorList([transformers.TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(transformers.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(transformers.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(transformers.MinPLogitsWarper(sampling.min_p))
    return warpers(ids(prompt + generated), x)[0].softmax(-1)


def weighed(logits: Tensor, sampling: Sampling, prompt: list[int], generated: list[int]) -> Tensor:
    """The same by the engine."""
    bias, counts, held = torch.zeros(1, len(logits)), torch.zeros(1, len(logits), dtype=torch.int32), None
    for token, value in sampling.logit_bias:
        bias[0, token] = value
    for token in generated:
        counts[0, token] += 1
    held = torch.zeros(1, len(logits), dtype=torch.bool)
    held[0, prompt] = True
    settings = Settings.of([sampling], len(logits), CPU)
    weights = weigh(logits[None], settings, Changes(bias, counts, held))[0].double()
    return weights / weights.sum()


SETTINGS = st.fixed_dictionaries(
    {
        "temperature": st.floats(0.1, 2),
        "top_k": st.sampled_from([0, 1, 2, 7, 25, 1000]),
        "top_p": st.one_of(st.just(1.0), st.floats(0.05, 0.999)),
        "min_p": st.one_of(st.just(0.0), st.floats(0.001, 0.9)),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.5, 2),
        "logit_bias": st.dictionaries(st.integers(0, 24), st.floats(-5, 5, width=32), max_size=3),
    }
)
TOKENS = st.lists(st.integers(0, 24), min_size=1, max_size=12)


@given(SETTINGS, TOKENS, TOKENS, st.integers(0, 2**32))
def test_every_setting_does_what_transformers_does(
    asked: dict[str, Any], prompt: list[int], generated: list[int], number: int
) -> None:
    logits = torch.randn(25, generator=torch.Generator().manual_seed(number)) * 3
    sampling = Sampling(1, **{**asked, "logit_bias": tuple(asked["logit_bias"].items())})
    expected, found = (one(logits, sampling, prompt, generated) for one in (oracle, weighed))
    assert (found - expected).abs().max() < 1e-9


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_p": 0.6}, [0.625, 0.375, 0, 0]),  # the token that crosses it stays
        ({"top_p": 0.49}, [1, 0, 0, 0]),
        ({"top_k": 3}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"min_p": 0.31}, [0.625, 0.375, 0, 0]),
        ({"min_p": 0.25}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"top_k": 2, "top_p": 0.6}, [1, 0, 0, 0]),  # top-p counts what top-k has left
    ],
    ids=str,
)
def test_cuts_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).double().log()
    assert weighed(logits, Sampling(1, 1.0, **settings), [], []).tolist() == pytest.approx(expected)


def test_penalties_by_hand() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0])
    sampling = Sampling(1, 1.0, presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0)
    found = weighed(logits, sampling, [1], [0, 0])
    # Token 0 was generated twice: 2 / 2 - 0.5 - 2 * 0.25; token 1 is in the prompt only: -2 * 2; token 2 is new.
    assert found.tolist() == pytest.approx(torch.tensor([0.0, -4.0, 1.0]).softmax(-1).tolist())


def test_tokens_that_tie_are_kept_together_and_none_is_kept_of_probability_zero() -> None:
    logits = torch.tensor([1.0, 2.0, 1.0, float("-inf")])
    assert (weighed(logits, Sampling(1, 1.0, top_k=2), [], []) > 0).tolist() == [True, True, True, False]
    assert weighed(logits, Sampling(1, 1.0), [], [])[3] == 0


def test_temperature_0_takes_the_most_probable_token_after_penalties_and_bias() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]] * 4)
    requests = [
        Request((1,), Sampling(9), lambda tokens, finish: None),
        Request((1,), Sampling(9, logit_bias=((0, -2.0),)), lambda tokens, finish: None),
        Request((1,), Sampling(9, repetition_penalty=4.0, logit_bias=((0, -2.0),)), lambda tokens, finish: None),
        Request((1,), Sampling(9, frequency_penalty=0.6), lambda tokens, finish: None),
    ]
    rows = [Row(request, (0, 0)) for request in requests]
    assert [choice.token for choice in choose(logits, rows)] == [0, 1, 2, 1]


def test_rows_draw_the_same_whoever_shares_the_batch_and_whatever_he_asks_for() -> None:
    logits = torch.randn(40, 200, generator=torch.Generator().manual_seed(1)) * 2
    requests = [
        Request((7, 9, i), Sampling(9, *one, seed=i, presence_penalty=i % 3), lambda tokens, finish: None)
        for i, one in zip(range(40), [(0.9, 0.8), (1.2, 1.0), (0.0, 1.0), (0.7, 0.5)] * 10, strict=True)
    ]
    rows = [Row(request, (i % 5,) * (i % 4)) for i, request in enumerate(requests)]
    together = choose(logits, rows)
    assert [choose(logits[i : i + 1], rows[i : i + 1])[0] for i in range(40)] == together
    assert len({choice.token for choice in together}) > 20


def test_broken_rows_are_told_apart_from_their_neighbours() -> None:
    logits = torch.tensor([[1.0, 2.0], [math.nan, 1.0], [5.0, math.inf], [2.0, 1.0]])
    rows = [Row(Request((1,), Sampling(9, t), lambda tokens, finish: None), ()) for t in (0.0, 1.0, 1.0, 0.0)]
    assert [choice.token for choice in choose(logits, rows)] == [1, BROKEN, BROKEN, 0]


def test_log_probabilities_are_the_models_own_before_any_setting() -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(3))
    sampling = Sampling(1, 0.5, top_k=3, presence_penalty=2.0, logprobs=4)
    (choice,) = choose(logits, [Row(Request((2,), sampling, lambda tokens, finish: None), (7,))])
    assert choice.logprob is not None
    expected = logits[0].double().log_softmax(-1)
    assert choice.logprob.value == pytest.approx(expected[choice.token].item())
    order = expected.argsort(descending=True)[:4]
    assert [token for token, _ in choice.logprob.top] == order.tolist()
    assert [value for _, value in choice.logprob.top] == pytest.approx(expected[order].tolist())


def test_log_probabilities_are_told_to_whoever_asks_and_as_many_as_he_asks_for() -> None:
    logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(4))
    asked = [None, 0, 5, 2] * 5
    rows = [Row(Request((2,), Sampling(1, logprobs=count), lambda tokens, finish: None), ()) for count in asked]
    expected = logits.double().log_softmax(-1)
    for i, (choice, count) in enumerate(zip(choose(logits, rows), asked, strict=True)):
        assert choice.token == logits[i].argmax()
        if count is None:
            assert choice.logprob is None
            continue
        assert choice.logprob is not None
        assert choice.logprob.value == pytest.approx(expected[i].max().item())
        order = expected[i].argsort(descending=True)[:count]
        assert [token for token, _ in choice.logprob.top] == order.tolist()
        assert [value for _, value in choice.logprob.top] == pytest.approx(expected[i][order].tolist())


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
        ((MASK, MASK), MASK, (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_philox_gives_the_words_of_its_reference(counter: tuple[int, int], key: int, words: tuple[int, int]) -> None:
    """The known answers of Random123, philox2x32-10."""
    low, high, k = (torch.tensor([word]) for word in (*counter, key))
    assert tuple(int(word) for word in philox(low, high, k)) == words


@given(st.integers(), st.integers(0, 10**6))
def test_draws_lie_in_the_unit_interval_and_repeat(seed: int, position: int) -> None:
    low, high = (torch.tensor([half]) for half in halves(seed))
    found = uniform(low, high, torch.tensor([position]))
    assert 0 <= found.item() < 1
    assert torch.equal(found, uniform(low, high, torch.tensor([position])))


def test_draws_of_neighbouring_seeds_and_positions_are_uniform_and_unrelated() -> None:
    seeds, positions = torch.arange(300).repeat_interleave(300), torch.arange(300).repeat(300)
    found = uniform(seeds, torch.zeros_like(seeds), positions).view(300, 300)
    counts = torch.histc(found.float(), 50, 0, 1)
    assert chi_square(counts, torch.full((50,), 300 * 300 / 50)) > 1e-3
    for a, b in ((found[1:], found[:-1]), (found[:, 1:], found[:, :-1])):
        assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 4 / 300


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda p: sum(p) > 1e-3), st.floats(0, 1, exclude_max=True)
)
def test_a_token_of_weight_zero_is_never_drawn(weights: list[float], uniform: float) -> None:
    whole = (torch.tensor([weights], dtype=torch.float64) * ONE).long()
    (token,) = draw(whole, torch.tensor([uniform], dtype=torch.float64)).tolist()
    assert whole[0, token] > 0


# --- texts of the engine ---------------------------------------------------------------------------------------------


def chi_square(observed: Tensor, expected: Tensor) -> float:
    statistic = ((observed - expected) ** 2 / expected).sum().item()
    return float(torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2), torch.tensor(statistic / 2)))


@pytest.fixture(scope="module")
def exact_of(toy: Toy) -> Callable[[Sampling], Tensor]:
    """Probability of every text of three tokens, [V, V, V], as the settings have it for each prefix."""
    llama, _ = toy
    prompt = torch.zeros(1, VOCAB, dtype=torch.bool)
    prompt[0, PROMPT] = True

    def following(sampling: Sampling, texts: list[list[int]]) -> Tensor:
        with torch.inference_mode():
            logits = llama.whole(torch.tensor([[*PROMPT, *text] for text in texts]))[0][:, -1]
        bias = torch.zeros(1, VOCAB)
        for token, value in sampling.logit_bias:
            bias[0, token] = value
        generated = torch.stack([torch.bincount(torch.tensor(text).long(), minlength=VOCAB) for text in texts])
        weights = weigh(
            logits, Settings.of([sampling] * len(texts), VOCAB, CPU), Changes(bias, generated, prompt)
        ).double()
        return weights / weights.sum(-1, keepdim=True)

    @cache
    def exact(sampling: Sampling) -> Tensor:
        tokens = range(VOCAB)
        first = following(sampling, [[]])[0]
        second = following(sampling, [[a] for a in tokens])
        third = following(sampling, [[a, b] for a in tokens for b in tokens]).view(VOCAB, VOCAB, VOCAB)
        return first[:, None, None] * second[:, :, None] * third

    return exact


def samples(toy: Toy, sampling: Sampling, probabilities: Tensor, speculate: bool) -> tuple[list[list[int]], Engine]:
    """First three tokens of many texts, and the engine.

    The toy's drafter is random; what it drafts is put where the target's probability is, so that much is accepted.
    """
    engine = make_engine(speculate, draft_length=2, pair=toy, max_batch=128)
    engine.eos_token_ids = frozenset()
    likely = probabilities.sum((0, 2)).topk(3).indices
    assert isinstance(engine.runner, Runner)
    engine.runner.target_ids = likely[torch.arange(DRAFT_VOCAB) % 3]
    texts = [submit(engine, PROMPT, replace(sampling, seed=seed)) for seed in range(TEXTS)]
    finish_all(engine)
    return [text.tokens for text in texts], engine


def p_value(found: list[list[int]], probabilities: Tensor) -> float:
    """Chi-square test of texts against their probabilities; rare texts share one cell."""
    expected = probabilities.flatten() * TEXTS
    observed = torch.zeros_like(expected)
    for a, b, c in found:
        observed[(a * VOCAB + b) * VOCAB + c] += 1
    assert observed[expected == 0].sum() == 0
    common = expected >= ENOUGH
    assert common.sum() > 30
    return chi_square(
        torch.cat([observed[common], observed[~common].sum()[None]]),
        torch.cat([expected[common], expected[~common].sum()[None]]),
    )


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=list(CASES))
@pytest.mark.parametrize("speculate", [True, False])
def test_sampled_texts_follow_the_targets_distribution(
    toy: Toy, exact_of: Callable[[Sampling], Tensor], speculate: bool, sampling: Sampling
) -> None:
    found, engine = samples(toy, sampling, exact_of(sampling), speculate)
    assert p_value(found, exact_of(sampling)) > 1e-3
    counts = accepted(engine)
    assert bool(counts) == speculate
    if speculate:  # drafts were accepted and refused, so both ways are tested
        assert 0.05 < sum(count > 0 for count in counts) / len(counts) < 0.95


def test_a_lenient_acceptance_rule_is_caught_by_this_test(
    toy: Toy, exact_of: Callable[[Sampling], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking one drafted token on trust is enough to fail."""

    def accept(self: Engine, works: Any, verified: Any) -> list[bool]:
        for work, chosen in zip(works, verified.chosen, strict=True):
            if work.proposals:
                chosen[0] = chosen[0]._replace(token=work.proposals[0])
        return accept_rightly(self, works, verified)

    accept_rightly = engine_module.Engine._accept
    monkeypatch.setattr(engine_module.Engine, "_accept", accept)
    sampling = SAMPLINGS[0]
    found, _ = samples(toy, sampling, exact_of(sampling), speculate=True)
    with pytest.raises(AssertionError):
        assert p_value(found, exact_of(sampling)) > 1e-3


def test_confirmed_counts_from_the_front() -> None:
    assert confirmed([1, 2, 3], [1, 2, 9, 4]) == 2
    assert confirmed([1, 2, 3], [1, 2, 3, 4]) == 3
    assert confirmed([5, 2], [1, 2, 3]) == 0
    assert confirmed([], [1]) == 0
