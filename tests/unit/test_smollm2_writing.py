"""What a drafter learns from is what its target says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from smollm2.writing import write
from tandem_worker.models.llama import Llama
from tandem_worker.models.random_pair import llama_8b, random_pair
from unit.serving import CPU

PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
LONGEST = 12


@pytest.fixture(scope="module")
def llama() -> Llama:
    """Three query heads to a key head, as SmolLM2 has them; nothing that it says ends a text."""
    torch.manual_seed(2)
    target, drafter = llama_8b(layers=2)
    small = {"hidden_size": 48, "intermediate_size": 64, "heads": 6, "kv_heads": 2, "head_dim": 16, "vocab_size": 40}
    target = replace(target, **small, eos_token_ids=())  # type: ignore[arg-type]
    drafter = replace(drafter, **small, draft_vocab_size=40, target_hidden_size=48, capture_indexes=(0, 1, 2))  # type: ignore[arg-type]
    made, _ = random_pair(target, drafter, CPU, torch.float32)
    for weight in made.model.layers.parameters():
        weight.mul_(10 if weight.dim() == 2 else 1)  # so that texts differ from each other
    return made


def alone(llama: Llama, prompt: list[int]) -> list[int]:
    """Greedily, with a forward over the whole text for each token."""
    text = list(prompt)
    for _ in range(LONGEST):
        text.append(int(llama.whole(torch.tensor([text]))[0][0, -1].argmax()))
    return text[len(prompt) :]


def test_texts_side_by_side_are_those_written_alone(llama: Llama) -> None:
    expected = [alone(llama, prompt) for prompt in PROMPTS]
    assert len({tuple(text) for text in expected}) == len(PROMPTS)
    assert write(llama, PROMPTS, [True] * 3, LONGEST) == expected


def test_a_text_ends_with_its_end_token(llama: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = alone(llama, PROMPTS[0])
    end = expected[4]
    monkeypatch.setattr(llama, "target", replace(llama.target, eos_token_ids=(end,)))
    assert write(llama, PROMPTS[:1], [True], LONGEST) == [expected[: expected.index(end) + 1]]


def test_sampled_tokens_are_as_frequent_as_the_model_holds_them_likely(llama: Llama) -> None:
    torch.manual_seed(7)
    count = 20000
    tokens = [text[0] for text in write(llama, [PROMPTS[0]] * count, [False] * count, 1)]
    likely = llama.whole(torch.tensor([PROMPTS[0]]))[0][0, -1].softmax(-1)
    frequent = torch.bincount(torch.tensor(tokens), minlength=len(likely)) / count
    assert (frequent - likely).abs().max() < 4 * 0.5 / count**0.5  # four standard deviations of the widest
