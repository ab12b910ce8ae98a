"""The GPU's half of the engine on a CPU: the same kernels in Triton's interpreter, in float32, rounds and all.

A pair of random weights is enough: text must equal that of the CPU's runner, token for token. See test_kernels for what
the interpreter does not prove.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_worker.checkpoint.description import RopeScaling
from tandem_worker.engine import step_layout
from tandem_worker.engine.adaptive import Costs
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.forward import TargetForward
from tandem_worker.engine.gpu_runner import GpuRunner
from tandem_worker.engine.record import Phase
from tandem_worker.engine.request import Finish, Sampling
from tandem_worker.engine.rounds import buckets, context_buckets
from tandem_worker.engine.self_test import observe
from tandem_worker.engine.step_layout import Step
from tandem_worker.kernels.tiling import Span, Tiling, tilings_of_all_forms
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.random_pair import llama_8b, random_pair, round_layers
from unit.quantising import twin
from unit.serving import CPU, Told, accepted, finish_all, generate, phases, submit

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning",  # of padding, which nobody stores
    "ignore:All-NaN:RuntimeWarning",
)

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1]]
NEW_TOKENS = 5


@cache
def pair() -> tuple[Llama, Eagle3]:
    """Two layers, three heads to a key head, a draft vocabulary of its own."""
    torch.manual_seed(4)
    target, drafter = llama_8b(layers=2)
    small: dict[str, Any] = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "heads": 3,
        "kv_heads": 1,
        "head_dim": 16,
        "vocab_size": 30,
    }
    target = replace(target, **small, max_position_embeddings=256)
    drafter = replace(drafter, **small, draft_vocab_size=15, target_hidden_size=24, capture_indexes=(2, 0, 1))
    llama, eagle3 = random_pair(target, drafter, CPU, torch.float32)
    for module in (llama.model.layers, eagle3.midlayer, eagle3.fc, llama.lm_head):
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.mul_(10)  # so that texts differ from each other
    return llama, eagle3


def engine(kernels: bool, speculate: bool, draft_length: int = 2, norm_first: bool = False) -> Engine:
    llama, eagle3 = pair()
    eagle3.norm_before_residual = norm_first
    made = Engine(llama, eagle3, EngineOptions(draft_length, 2, 512, kernels=kernels), Told())
    made.switch(speculate)
    return made


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return generate(engine(kernels=False, speculate=False), PROMPTS, NEW_TOKENS)


@pytest.mark.parametrize("norm_first", [False, True])
def test_text_and_drafts_are_those_of_the_cpu_runner(plain: list[list[int]], norm_first: bool) -> None:
    made, expected = engine(True, True, norm_first=norm_first), engine(False, True, norm_first=norm_first)
    assert generate(made, PROMPTS, NEW_TOKENS) == generate(expected, PROMPTS, NEW_TOKENS) == plain
    assert accepted(made)[: len(accepted(expected))] == accepted(expected)
    assert made.pages.free == made.pages.count - 1


DRAWN = [
    [Sampling(5, 1.5, 0.9, seed=5, repetition_penalty=1.4, frequency_penalty=0.4), Sampling(5)],
    [Sampling(5, 0.7, seed=-3, top_k=9, min_p=0.01, logit_bias=((4, 3.0), (9, -50.0))), Sampling(5, speculate=False)],
]


@pytest.mark.parametrize("samplings", DRAWN, ids=["with a greedy neighbour", "with one that takes no drafts"])
def test_rounds_draw_what_the_cpu_draws_with_speculation_and_without(samplings: list[Sampling]) -> None:
    texts, steps = [], []
    for kernels, speculate in ((False, False), (True, False), (True, True)):
        made = engine(kernels, speculate)
        sent = [submit(made, prompt, one) for prompt, one in zip(PROMPTS, samplings, strict=True)]
        finish_all(made)
        texts.append([text.tokens for text in sent])
        steps.append(phases(made))
        wanted = sum(one.speculate for one in samplings)
        assert sum(text.request.drafts > 0 for text in sent) == (wanted if speculate else 0)
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0][0])) > 2
    assert Phase.VERIFY in steps[2]


def test_steps_draw_and_tell_probabilities_as_the_cpu_does() -> None:
    """Who asks for log probabilities is served by steps, and so are his neighbours."""
    samplings = [replace(DRAWN[0][0], logprobs=3), DRAWN[1][0]]
    told = []
    for kernels in (False, True):
        made = engine(kernels, speculate=True)
        sent = [submit(made, prompt, one) for prompt, one in zip(PROMPTS, samplings, strict=True)]
        finish_all(made)
        told.append([text.request for text in sent])
        assert made.rounds is None or not made.rounds.graphs.captured
    (asked, other), (asked_too, other_too) = told
    assert (asked.tokens, other.tokens) == (asked_too.tokens, other_too.tokens)
    assert [one.token for one in asked.logprobs] == asked.tokens[len(asked.prompt) :]
    for a, b in zip(asked.logprobs, asked_too.logprobs, strict=True):
        assert [token for token, _ in a.top] == [token for token, _ in b.top]
        assert [a.value, *(value for _, value in a.top)] == pytest.approx([b.value, *(value for _, value in b.top)])
    assert not other.logprobs


def test_request_that_meets_a_nan_in_a_round_fails_alone(plain: list[list[int]]) -> None:
    """It is made to say a token whose embedding is not a number. Whoever gets its page next is not harmed."""
    llama, eagle3 = deepcopy(pair())
    poison = 29
    llama.model.embed_tokens.weight[poison] = float("nan")
    made = Engine(llama, eagle3, EngineOptions(2, 2, 512, kernels=True), Told())
    failed = submit(made, PROMPTS[0] * 3, Sampling(9, logit_bias=((poison, 100.0),)))
    beside = submit(made, PROMPTS[1], Sampling(NEW_TOKENS))
    finish_all(made)
    assert (failed.finish, failed.tokens, beside.tokens) == (Finish.FAILED, [poison], plain[1])
    assert generate(made, PROMPTS[:1], 3) == [plain[0][:3]]


FLAGS: list[dict[str, bool]] = [
    {"norm_before_fc": True, "qk_norm": True, "qkv_bias": True},
    {"fc_norm": True, "norm_output": True, "norm_before_residual": True},
]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_every_norm_and_bias_of_a_drafter_is_computed_as_on_the_cpu(
    plain: list[list[int]], flags: dict[str, bool]
) -> None:
    """Equal drafts, told by how many of them are accepted; the text is the target's in any case."""
    torch.manual_seed(9)
    llama = pair()[0]
    _, eagle3 = random_pair(llama.target, replace(pair()[1].drafter, **flags), CPU, torch.float32)  # type: ignore[arg-type]
    eagle3.embed_tokens = llama.model.embed_tokens
    for parameter in (*eagle3.midlayer.parameters(), *eagle3.fc.parameters(), *eagle3.lm_head.parameters()):
        parameter.mul_(10 if parameter.dim() == 2 else 1)
    drafted = []
    for kernels in (False, True):
        made = Engine(llama, eagle3, EngineOptions(2, 2, 512, kernels=kernels), Told())
        sent = [submit(made, prompt, Sampling(2)) for prompt in PROMPTS]
        made.step()
        drafted.append([text.request.proposals for text in sent])
        finish_all(made)
    assert drafted[0] == drafted[1]
    assert all(len(proposals) == 2 for proposals in drafted[0])


LLAMA3 = RopeScaling("llama3", 8.0, original_positions=16, low_freq_factor=1.0, high_freq_factor=4.0)


def test_steps_made_up_to_the_size_of_a_graph_say_the_same(
    plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU they are; here the sizes are, without graphs."""
    made, expected = engine(True, True), engine(False, True)
    assert isinstance(made.runner, GpuRunner)
    made.runner.layout.padded = True
    steps: list[Step] = []
    forward = made.runner._forward

    def seen(step: Step) -> None:
        steps.append(step)
        forward(step)

    monkeypatch.setattr(made.runner, "_forward", seen)
    assert generate(made, PROMPTS, NEW_TOKENS) == generate(expected, PROMPTS, NEW_TOKENS) == plain
    assert accepted(made)[: len(accepted(expected))] == accepted(expected)
    assert {(step.rows, step.context) for step in steps} == {(16, 320)}


@pytest.mark.parametrize("speculate", [True, False])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_no_request_waits_for_a_steps_graph(
    speculate: bool, logprobs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one with log probabilities, which has steps without prompts in them; all are captured at the start."""
    llama, eagle3 = pair()
    made = Engine(llama, eagle3, EngineOptions(3, 5, 512, prefill_chunk=40, kernels=True), Told())
    made.switch(speculate)
    assert isinstance(made.runner, GpuRunner)
    made.runner.layout.padded = True
    captured, met = set[Step](), set[Step]()
    monkeypatch.setattr(made.runner, "_draft_chain", lambda chain: None)
    monkeypatch.setattr(made.runner, "_forward", captured.add)
    made.runner.capture_all()
    monkeypatch.undo()
    forward = made.runner._forward

    def seen(step: Step) -> None:
        met.add(step)
        forward(step)

    monkeypatch.setattr(made.runner, "_forward", seen)
    for count in (5, 1):
        for i in range(count):
            submit(made, [1 + i, *PROMPTS[0][:6]], Sampling(3, logprobs=logprobs))
        finish_all(made)
    assert met <= captured
    assert len(met) > 1


@pytest.mark.parametrize(("max_batch", "prefill_chunk", "draft_length"), [(1, 8, 16), (2, 8, 1), (9, 16, 3)])
def test_every_size_of_a_step_has_room_for_its_tiles(
    max_batch: int, prefill_chunk: int, draft_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama, eagle3 = pair()
    made = Engine(llama, eagle3, EngineOptions(draft_length, max_batch, 512, prefill_chunk, kernels=True), Told())
    runner, steps = made.runner, list[Step]()
    assert isinstance(runner, GpuRunner)
    runner.layout.padded = True
    monkeypatch.setattr(runner, "_forward", steps.append)
    monkeypatch.setattr(runner, "_draft_chain", lambda chain: None)
    runner.capture_all()
    assert max(step.tiles for step in steps) <= len(runner.layout.device["tile_rows"])
    assert max(step.rows for step in steps) == min(512, runner.layout.room)


def test_only_a_step_that_is_too_large_for_a_graph_is_told_to_have_no_empty_tile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_layout, "MOST_ROWS", 16)
    monkeypatch.setattr(step_layout, "STEP_ROWS", (16,))
    made = engine(True, False)
    assert isinstance(made.runner, GpuRunner)
    made.runner.layout.padded = True
    told: list[tuple[int, bool, bool]] = []
    forward = TargetForward.__call__

    def seen(self: TargetForward, tokens: Tensor, rows: int, placing: Any, tiling: Tiling, **how: Any) -> None:
        told.append((rows, tiling.filled, bool((tiling.counts[: tiling.tiles] > 0).all())))
        forward(self, tokens, rows, placing, tiling, **how)

    monkeypatch.setattr(TargetForward, "__call__", seen)
    generate(made, [[1, 2, 3], list(range(20))], 1)
    generate(made, [[7, 8]], 1)
    assert told == [(23, True, True), (16, False, False)]


@pytest.mark.parametrize(
    "changes", [{"family": "qwen2", "qkv_bias": True}, {"family": "qwen3", "rope_scaling": LLAMA3}], ids=str
)
def test_biases_normed_heads_and_stretched_angles_of_a_target_are_computed_as_on_the_cpu(changes: dict) -> None:
    torch.manual_seed(4)
    target, drafter = pair()[0].target, pair()[1].drafter
    llama, eagle3 = random_pair(replace(target, **changes), drafter, CPU, torch.float32)
    for parameter in (*llama.model.layers.parameters(), *llama.lm_head.parameters()):
        parameter.mul_(10 if parameter.dim() == 2 else 1)
    texts = []
    for kernels in (False, True):
        made = Engine(llama, eagle3, EngineOptions(2, 2, 512, kernels=kernels), Told())
        texts.append(generate(made, PROMPTS, NEW_TOKENS))
    assert texts[0] == texts[1]


def test_a_target_that_stays_in_8_bits_says_what_the_cpu_says() -> None:
    """But for one matrix of floats among q, k and v, which are one product: they are restored."""
    torch.manual_seed(4)
    target = replace(pair()[0].target, hidden_size=32, intermediate_size=48)
    llama, _ = random_pair(target, pair()[1].drafter, CPU, torch.float32)
    for parameter in (*llama.model.layers.parameters(), *llama.lm_head.parameters()):
        parameter.mul_(10 if parameter.dim() == 2 else 1)
    round_layers(llama)
    floats = twin(llama)
    llama.model.layers[1].self_attn.k_proj = floats.model.layers[1].self_attn.k_proj  # type: ignore[union-attr]
    cpu, gpu = (Engine(x, None, EngineOptions(0, 1, 512, kernels=x is llama), Told()) for x in (floats, llama))
    assert generate(gpu, PROMPTS[1:], 3) == generate(cpu, PROMPTS[1:], 3)
    first, second = gpu.runner.target.target.layers  # type: ignore[union-attr]
    assert {x.weight.dtype for x in (first.qkv, first.out, first.gate_up, first.down)} == {torch.float8_e4m3fn}
    assert (second.qkv.weight.dtype, second.down.weight.dtype) == (torch.float32, torch.float8_e4m3fn)


def test_rounds_go_on_while_others_leave_and_speculation_is_switched(plain: list[list[int]]) -> None:
    made = engine(kernels=True, speculate=False)
    lengths = (NEW_TOKENS, 3)
    texts = [submit(made, p, Sampling(n)) for p, n in zip(PROMPTS, lengths, strict=True)]
    finish_all(made, between=lambda step: made.switch(True) if step == 3 else None)
    assert [text.tokens for text in texts] == [tokens[:n] for tokens, n in zip(plain, lengths, strict=True)]


def test_rounds_change_their_draft_length_while_they_run(plain: list[list[int]]) -> None:
    llama, eagle3 = pair()
    made = Engine(llama, eagle3, EngineOptions(3, 2, 512, kernels=True, adaptive=True), Told())
    seen = []

    def change(step: int) -> None:
        seen.append(made.length if made.speculating else 0)
        dear = (1, 3, 0)[step // 2 % 3]  # drafts are free up to this length
        made.adapt(Costs({(1, k): 1.0 + (50.0 if k > dear else 0.0) for k in range(4)}))

    texts = [submit(made, prompt, Sampling(NEW_TOKENS)) for prompt in PROMPTS]
    finish_all(made, between=change)
    assert [text.tokens for text in texts] == plain
    assert {1, 3} <= set(seen)


def test_every_form_of_attention_is_met_before_a_request_waits_for_it() -> None:
    zeros = torch.zeros(8, dtype=torch.int32)
    forms = [(tiling.tokens, span, tiling.compact) for tiling, span in tilings_of_all_forms(zeros, 64)]
    for tokens in range(1, 65):
        bucket = 1 << (tokens - 1).bit_length()  # what a launch of so many rows is compiled for
        assert {(bucket, span, False) for span in Span} <= set(forms)
    assert {(1, span, True) for span in Span} <= set(forms)
    told = {(tiling.tokens, tiling.filled) for tiling, span in tilings_of_all_forms(zeros, 64) if span is Span.ALL}
    assert {(tokens, filled) for tokens in (1, 32, 64) for filled in (False, True)} <= told


def test_observed_wiring_is_the_drafters() -> None:
    assert observe(engine(kernels=True, speculate=True), PROMPTS[0]).capture_indexes == (2, 0, 1)


def test_every_batch_and_context_has_a_bucket() -> None:
    assert buckets(1) == [1]
    assert buckets(12) == [1, 2, 4, 8, 16]
    assert buckets(32) == [1, 2, 4, 8, 16, 24, 32]
    assert context_buckets(512) == [576]
    assert context_buckets(4000) == [512, 2048, 4064]
