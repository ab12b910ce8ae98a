"""Drawing on the GPU: what the definition draws, at the size of a real vocabulary, in memory that does not grow."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from gpu.test_engine_gpu import CUDA, engine, large, random_prompts
from tandem_worker.engine.choosing import Row, with_logprobs
from tandem_worker.engine.request import Request, Sampling
from unit.drawn import KINDS, any_request, by_kernel, by_torch, drafts_of, logits_of, small
from unit.serving import finish_all, submit

if TYPE_CHECKING:
    from gpu.conftest import Count

VOCAB = 128_256


@pytest.mark.parametrize("spread", [0.01, 3.0, 12.0])
def test_tokens_are_those_of_the_definition(count: Count, spread: float) -> None:
    chance = random.Random(f"{spread}")
    requests = [any_request(chance, VOCAB) for _ in range(64)]
    tokens = drafts_of(requests, 3, VOCAB, chance)
    torch.manual_seed(7)
    logits = (spread * torch.randn(256, VOCAB, device=CUDA)).bfloat16()
    logits[99, 5] = float("nan")
    found, expected = by_kernel(logits, requests, tokens), by_torch(logits, requests, tokens)
    count("tokens", sum(a != b for a, b in zip(found, expected, strict=True)), len(expected))
    alone = [by_kernel(logits[4 * i : 4 * i + 4], requests[i : i + 1], tokens[i : i + 1]) for i in range(64)]
    count("tokens alone", sum(a != b for a, b in zip([t for row in alone for t in row], found, strict=True)), 256)


@pytest.mark.parametrize("warps", [1, 4, 16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("ahead", "behind"),
    [(5000, 0), (40, 5000), (40, 500), (2, 5000), (0, 0)],
    ids=["all are set aside", "those around the cut", "if they are few", "far down", "none"],
)
def test_cuts_are_found_however_few_tokens_are_set_aside(
    count: Count, ahead: int, behind: int, kind: str, warps: int
) -> None:
    """Each way to a cut, as it is compiled: the interpreter is not told what a loop carries."""
    chance, vocab = random.Random(f"{kind} {ahead}"), 5000
    requests = [any_request(chance, vocab) for _ in range(48)]
    tokens = drafts_of(requests, 2, vocab, chance)
    logits = logits_of(kind, 144, vocab, 5).to(CUDA)
    found = by_kernel(logits, requests, tokens, ahead, behind, small(128, warps))
    expected = by_torch(logits, requests, tokens)
    count("tokens", sum(a != b for a, b in zip(found, expected, strict=True)), len(expected))


def test_log_probabilities_are_those_of_float64() -> None:
    torch.manual_seed(8)
    logits = (3 * torch.randn(20, VOCAB, device=CUDA)).bfloat16()
    rows = [Row(Request((2,), Sampling(1, logprobs=5), lambda tokens, finish: None), ()) for _ in range(20)]
    expected = logits.double().log_softmax(-1).cpu()
    for i, (_, told) in enumerate(with_logprobs(logits, rows, range(20))):
        assert told is not None
        assert told.value == pytest.approx(expected[i, i].item())
        assert [value for _, value in told.top] == pytest.approx(expected[i].topk(5).values.tolist())
        assert [value for _, value in told.top] == pytest.approx([expected[i, token].item() for token, _ in told.top])


def any_sampling(chance: random.Random) -> Sampling:
    return replace(
        any_request(chance, VOCAB).sampling,
        max_tokens=chance.randrange(1, 30),
        logprobs=chance.choice((None, None, 0, 5)),
        speculate=chance.random() < 0.8,
    )


def test_memory_of_mixed_requests_is_taken_once(count: Count) -> None:
    """In steps with prompts and log probabilities as in rounds; torch gives nothing back of what it has reserved."""
    chance = random.Random(12)
    made = engine(large(), max_batch=16, prefill_chunk=128, kv_cache_tokens=32768)
    made.prepare()
    assert made.degraded == ""
    reserved = []
    for _ in range(5):
        for prompt in random_prompts(60, 300):
            submit(made, prompt, any_sampling(chance))
        finish_all(made)
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    count("bytes more than after the first lap", reserved[-1] - reserved[0], reserved[0])
