"""Greedy text and the bits behind it, through the real engine: speculation, batch, chunks and preemption change
nothing."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.pages import PAGE
from tandem_worker.engine.request import Finish, Sampling
from tandem_worker.engine.self_test import observe
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.random_pair import llama_8b, random_pair, round_layers
from unit.pairs import TINY_PAIR
from unit.quantising import twin
from unit.serving import Told, accepted, finish_all, generate, load_pair, prompts, submit

if TYPE_CHECKING:
    from gpu.conftest import Count

CUDA = torch.device("cuda")


@cache
def tiny() -> tuple[Llama, Eagle3]:
    llama, eagle3 = load_pair(TINY_PAIR / "target", TINY_PAIR / "drafter")
    eagle3.embed_tokens = llama.model.embed_tokens
    return llama.to(CUDA, torch.bfloat16), eagle3.to(CUDA, torch.bfloat16)


@cache
def large() -> tuple[Llama, Eagle3]:
    """Four layers of the 8B shape."""
    torch.manual_seed(5)
    return random_pair(*llama_8b(layers=4), CUDA, torch.bfloat16)


def engine(pair: tuple[Llama, Eagle3], speculate: bool = True, draft_length: int = 4, **options: Any) -> Engine:
    settings: dict[str, Any] = {"prefill_chunk": 512, "kv_cache_tokens": 16384, **options}
    made = Engine(*pair, EngineOptions(draft_length, dtype=torch.bfloat16, device="cuda", **settings), Told())
    made.switch(speculate)
    return made


def random_prompts(number: int, longest: int) -> list[list[int]]:
    chance = random.Random(3)
    return [[chance.randrange(100000) for _ in range(chance.randrange(1, longest))] for _ in range(number)]


def differing(a: list[list[int]], b: list[list[int]]) -> tuple[int, int]:
    pairs = [(x, y) for s, t in zip(a, b, strict=True) for x, y in zip(s, t, strict=True)]
    return sum(x != y for x, y in pairs), len(pairs)


VARIANTS: list[dict[str, Any]] = [
    {"draft_length": 1, "max_batch": 8},
    {"draft_length": 2, "max_batch": 3, "prefill_chunk": 48},
    {"draft_length": 3, "max_batch": 32},
    {"draft_length": 5, "max_batch": 5, "prefill_chunk": 24},
    {"draft_length": 5, "max_batch": 32, "kv_cache_tokens": 40 * PAGE},
    {"draft_length": 7, "max_batch": 1},
]


def test_drafts_are_the_same_whether_their_graph_is_made_for_them_or_was_there() -> None:
    """To make it, its kernels run once more; what they begin with must not be gone then."""
    drafted = []
    for prepared in (False, True):
        made = engine(tiny(), max_batch=4)
        if prepared:
            made.prepare()
        sent = [submit(made, prompt, Sampling(8)) for prompt in prompts()[:4]]
        made.step()
        drafted.append([text.request.proposals for text in sent])
    assert drafted[0] == drafted[1]
    assert [len(proposals) for proposals in drafted[0]] == [4] * 4


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_tiny_pair_text(variant: dict[str, Any], count: Count) -> None:
    some = prompts()[:24]
    plain = generate(engine(tiny(), speculate=False, max_batch=1), some, 64)
    fast = engine(tiny(), **variant)
    count("tokens", *differing(generate(fast, some, 64), plain))
    assert sum(accepted(fast)) > len(accepted(fast)) / 2
    assert fast.pages.free == fast.pages.count - 1


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_random_weights_text(variant: dict[str, Any], count: Count) -> None:
    some = random_prompts(32, 200)
    plain = generate(engine(large(), speculate=False, max_batch=16), some, 48)
    count("tokens", *differing(generate(engine(large(), **variant), some, 48), plain))


@pytest.mark.parametrize("columns", [None, 128], ids=["by output", "by block"])
def test_text_of_a_target_in_8_bits_is_that_of_its_twin_in_bfloat16(columns: int | None, count: Count) -> None:
    torch.manual_seed(5)
    llama, eagle3 = random_pair(*llama_8b(layers=4), CUDA, torch.bfloat16)
    round_layers(llama, columns)
    some = random_prompts(32, 200)
    expected = generate(engine((twin(llama), eagle3), speculate=False, max_batch=16), some, 48)
    for variant in ({"speculate": False, "max_batch": 1}, *VARIANTS[1:5]):
        made = engine((llama, eagle3), **variant)
        assert made.runner.target.target.layers[0].qkv.weight.dtype is torch.float8_e4m3fn  # type: ignore[union-attr]
        count(f"tokens, {variant}", *differing(generate(made, some, 48), expected))


def test_caches_hold_the_same_bits_after_decoding_and_after_verifying(count: Count) -> None:
    """Stronger than equal text: keys and values of every layer, of a request alone and plain, and among 31 others."""
    some = random_prompts(32, 300)
    prompt = some[7]

    def rows(made: Engine, texts: list[list[int]]) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        sent = [submit(made, text, Sampling(40)) for text in texts]
        watched = sent[texts.index(prompt)]

        def keep(step: int) -> None:
            if watched.request.finish is None and len(watched.request.tokens) >= len(prompt) + 30:
                cache = made.runner.target.block.cache  # type: ignore[union-attr]
                pages = torch.tensor(watched.request.pages, device=CUDA)
                both = torch.stack([x[:, pages].transpose(2, 3).flatten(1, 2) for x in cache])
                kept[:] = [both[:, :, : len(prompt) + 29].clone()]

        finish_all(made, between=keep)
        return kept[0]

    alone = rows(engine(large(), speculate=False, max_batch=1), [prompt])
    among = rows(engine(large(), max_batch=32, draft_length=5, prefill_chunk=100), some)
    count("keys and values", int((alone != among).sum()), alone.numel())


def test_switching_under_load(count: Count) -> None:
    some = prompts()[:12]
    plain = generate(engine(tiny(), speculate=False, max_batch=1), some, 64)
    made = engine(tiny(), max_batch=8)
    texts = [submit(made, prompt, Sampling(64)) for prompt in some]
    finish_all(made, between=lambda step: made.switch(step // 5 % 2 == 1) if step % 5 == 0 else None)
    count("tokens", *differing([text.tokens for text in texts], plain))


def test_seeded_samples_are_the_same_with_speculation_and_without(count: Count) -> None:
    some = prompts()[:8]

    def sampled(made: Engine) -> list[list[int]]:
        texts = [submit(made, prompt, Sampling(40, 0.8, 0.9, seed=7)) for prompt in some]
        finish_all(made)
        return [text.tokens for text in texts]

    count("tokens", *differing(sampled(engine(tiny(), max_batch=8)), sampled(engine(tiny(), False, max_batch=3))))


def test_cancelled_requests_disturb_nobody(count: Count) -> None:
    some = prompts()[:16]
    plain = generate(engine(tiny(), speculate=False, max_batch=1), some, 64)
    made = engine(tiny(), max_batch=8)
    texts = [submit(made, prompt, Sampling(64)) for prompt in some]

    def cancel(step: int) -> None:
        if step % 4 == 0 and step < 40:
            made.end(texts[step // 4].request, Finish.CANCELLED)

    finish_all(made, between=cancel)
    cut = [expected[: len(text.tokens)] for text, expected in zip(texts, plain, strict=True)]
    count("tokens", *differing([text.tokens for text in texts], cut))
    assert made.pages.free == made.pages.count - 1


def test_context_may_be_filled_to_the_last_token() -> None:
    made = engine(tiny(), max_batch=1, kv_cache_tokens=192)
    text = submit(made, prompts()[0][:60], Sampling(192 - 60))
    finish_all(made)
    assert text.tokens == generate(engine(tiny(), speculate=False), [prompts()[0][:60]], 192 - 60)[0]
    assert text.finish is Finish.LENGTH


def test_observed_wiring_is_the_checkpoints() -> None:
    seen = observe(engine(tiny()), prompts()[0])
    assert seen.capture_indexes == tiny()[1].drafter.capture_indexes
    assert seen.fc_input_width == 3 * 96


def test_text_equals_the_reference_in_float32_where_it_is_not_close() -> None:
    """Logits of the 8B shape after four layers against plain torch in float32."""
    llama = large()[0]
    prompt = random_prompts(1, 100)[0] * 2
    made = engine(large(), speculate=False, max_batch=1)
    submit(made, prompt, Sampling(2))
    made.step()
    logits = made.runner.target.block.logits[0].float()  # type: ignore[union-attr]
    with torch.inference_mode():
        reference = Llama(llama.target).to(CUDA)
        reference.load_state_dict({name: x.float() for name, x in llama.state_dict().items()})
        expected = reference.whole(torch.tensor([prompt], device=CUDA))[0][0, -1]
    assert (logits - expected).norm() / expected.norm() < 0.02


def test_soak_keeps_memory_flat(count: Count) -> None:
    """Mixed lengths, cancellations, speculation switched: no page is lost and no memory grows. For TANDEM_SOAK_SECONDS
    where that is set."""
    chance, began = random.Random(11), time.monotonic()
    longest = float(os.environ.get("TANDEM_SOAK_SECONDS", "0"))
    made = engine(tiny(), max_batch=16, kv_cache_tokens=60 * PAGE)
    some = prompts()
    before = lap = unfinished = 0
    while lap < 4 or time.monotonic() - began < longest:
        texts = [submit(made, chance.choice(some), Sampling(chance.randrange(1, 200))) for _ in range(60)]

        def disturb(step: int, texts: list = texts) -> None:
            if step % 7 == 0:
                made.end(chance.choice(texts).request, Finish.CANCELLED)
            if step % 40 == 39:
                made.switch(not made.speculating)

        finish_all(made, between=disturb)
        torch.cuda.synchronize()
        unfinished += sum(text.finish is None for text in texts)
        if lap == 1:
            before = torch.cuda.memory_allocated()
        lap += 1
    count("requests that did not end", unfinished, 60 * lap)
    assert made.pages.free == made.pages.count - 1
    count("bytes", abs(torch.cuda.memory_allocated() - before), before)


def test_starting_a_round_never_waits_for_the_gpu() -> None:
    made = engine(tiny(), max_batch=4)
    for prompt in prompts()[:4]:
        submit(made, prompt, Sampling(200))
    for _ in range(8):
        made.step()
    rounds = made.rounds
    assert rounds
    assert rounds.in_flight == 1
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            made._start_round(rounds)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_forced_acceptance_plays_the_same_graph() -> None:
    made = engine(tiny(), max_batch=1, draft_length=3)
    rounds = made.rounds
    assert rounds
    submit(made, prompts()[0], Sampling(100))
    while len(accepted(made)) < 6:
        made.step()
    graphs, before = rounds.graphs.captured, len(accepted(made))
    rounds.forced.copy_(torch.tensor([0, 1, 2, 3] * 15, dtype=torch.int32))
    while len(accepted(made)) < before + 10:
        made.step()
    assert rounds.graphs.captured == graphs
    assert set(accepted(made)[before + 2 :]) == {0, 1, 2, 3}


def first_drafts(made: Engine, some: list[list[int]]) -> list[list[int]]:
    """What is proposed after each prompt, and its choice of one more token is made."""
    sent = [submit(made, prompt, Sampling(20)) for prompt in some]
    while not all(text.request.proposals for text in sent):
        made.step()
    proposals = [list(text.request.proposals) for text in sent]
    for text in sent:
        made.end(text.request, Finish.CANCELLED)
    return proposals


def test_drafts_of_a_drafter_with_every_norm_are_those_of_plain_torch(count: Count) -> None:
    torch.manual_seed(6)
    target, drafter = llama_8b(layers=4)
    flags = {"norm_before_fc": True, "fc_norm": True, "norm_output": True, "qk_norm": True, "qkv_bias": True}
    wired = replace(drafter, capture_indexes=(0, 2, 4), **flags)  # type: ignore[arg-type]
    pair = random_pair(target, wired, CUDA, torch.bfloat16)
    some = random_prompts(16, 100)
    among = first_drafts(engine(pair, max_batch=16, prefill_chunk=2048), some)
    alone = [first_drafts(engine(pair, max_batch=1), [prompt])[0] for prompt in some]
    count("tokens drafted alone and among others", *differing(alone, among))
    plain = first_drafts(engine(pair, max_batch=16, prefill_chunk=2048, kernels=False), some)
    other, of = differing([drafts[:1] for drafts in plain], [drafts[:1] for drafts in among])
    assert other <= of // 4, f"{other} of {of} first drafts differ; rounding explains a few"
