"""Text is the target's own, whatever the engine does to make it faster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tandem_worker.contract import SelfTestOutcome
from tandem_worker.engine import runner
from tandem_worker.engine.choosing import Choice, Row
from tandem_worker.engine.engine import BROKEN_IN_A_ROW, Engine
from tandem_worker.engine.pages import PAGE
from tandem_worker.engine.plain_probe import BURST
from tandem_worker.engine.record import Phase
from tandem_worker.engine.request import Finish, Request, Sampling
from tandem_worker.engine.runner import EngineBroken, Runner
from tandem_worker.engine.self_test import observe, self_test, time_plain_steps
from tandem_worker.engine.speedup import Speedup
from tandem_worker.engine.thread import EngineThread
from tandem_worker.engine.tiles import TILE, Run, lay_out
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from unit.pairs import drafter_files, target_files
from unit.serving import (
    accepted,
    finish_all,
    generate,
    load_pair,
    make_engine,
    phases,
    prompts,
    submit,
    tiny_pair,
    wait_for,
)

NEW_TOKENS = 36
Prompts = list[list[int]]


@pytest.fixture(scope="module")
def some() -> Prompts:
    return prompts()[:9]


@pytest.fixture(scope="module")
def plain(some: Prompts) -> Prompts:
    """Greedy text without speculation, one request at a time."""
    return generate(make_engine(speculate=False, max_batch=1), some, NEW_TOKENS)


@pytest.mark.parametrize(
    ("draft_length", "max_batch", "prefill_chunk", "kv_cache_tokens"),
    [(1, 8, 40, 4096), (2, 3, 16, 512), (3, 12, 512, 4096), (4, 8, 128, 1024), (5, 5, 24, 700), (6, 2, 8, 512)],
)
def test_speculation_does_not_change_greedy_text(
    some: Prompts, plain: Prompts, draft_length: int, max_batch: int, prefill_chunk: int, kv_cache_tokens: int
) -> None:
    engine = make_engine(
        draft_length=draft_length,
        max_batch=max_batch,
        prefill_chunk=prefill_chunk,
        kv_cache_tokens=kv_cache_tokens,
    )
    assert generate(engine, some, NEW_TOKENS) == plain
    assert sum(accepted(engine)) > len(accepted(engine)) / 2


def test_batching_does_not_change_greedy_text(some: Prompts, plain: Prompts) -> None:
    assert generate(make_engine(speculate=False, max_batch=8, prefill_chunk=56), some, NEW_TOKENS) == plain


def test_logits_of_a_row_are_the_same_bits_in_every_batch(some: Prompts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stronger than equal text: alone and plain, or verified among others in chunks, a row's logits do not change."""

    def logits_seen(speculate: bool, max_batch: int, prefill_chunk: int) -> dict[tuple[int, int], Tensor]:
        seen: dict[tuple[int, int], Tensor] = {}

        def choose(logits: Tensor, rows: Sequence[Row]) -> list[Choice]:
            for one, row in zip(logits, rows, strict=True):
                # of a rejected draft, replaced when the row runs again
                seen[row.sampling.seed, row.position] = one.clone()
            return [Choice(token) for token in logits.argmax(-1).tolist()]

        monkeypatch.setattr(runner, "choose", choose)
        engine = make_engine(speculate, max_batch=max_batch, prefill_chunk=prefill_chunk)
        texts = [submit(engine, prompt, Sampling(20, seed=number)) for number, prompt in enumerate(some)]
        finish_all(engine)
        ends = [len(text.request.tokens) for text in texts]
        return {key: row for key, row in seen.items() if key[1] < ends[key[0]]}

    alone = logits_seen(speculate=False, max_batch=1, prefill_chunk=512)
    together = logits_seen(speculate=True, max_batch=8, prefill_chunk=40)
    assert len(alone) == 20 * len(some)
    assert alone.keys() == together.keys()
    assert all(torch.equal(row, together[key]) for key, row in alone.items())


def test_seeded_samples_are_the_same_with_speculation_and_without(some: Prompts) -> None:
    def sampled(engine: Engine) -> Prompts:
        one = Sampling(30, 0.8, 0.9, seed=7, top_k=40, frequency_penalty=0.1, repetition_penalty=1.05)
        texts = [submit(engine, prompt, one) for prompt in some]
        finish_all(engine)
        return [text.tokens for text in texts]

    engine = make_engine(max_batch=8)
    assert sampled(engine) == sampled(make_engine(speculate=False, max_batch=3))
    assert sum(accepted(engine)) > 0


def test_request_that_takes_no_drafts_has_the_same_text_and_none_is_verified_for_it(
    some: Prompts, plain: Prompts
) -> None:
    engine = make_engine(max_batch=3)
    texts = [submit(engine, prompt, Sampling(NEW_TOKENS, speculate=i != 1)) for i, prompt in enumerate(some[:3])]
    finish_all(engine)
    assert [text.tokens for text in texts] == plain[:3]
    assert [text.request.drafts > 0 for text in texts] == [True, False, True]


def test_switching_under_load_loses_and_doubles_nothing(some: Prompts, plain: Prompts) -> None:
    engine = make_engine(speculate=False, max_batch=5)
    texts = [submit(engine, prompt, Sampling(NEW_TOKENS)) for prompt in some]
    finish_all(engine, between=lambda step: engine.switch(step // 3 % 2 == 1) if step % 3 == 0 else None)
    assert [text.tokens for text in texts] == plain
    assert {text.finish for text in texts} <= {Finish.LENGTH, Finish.STOP}
    assert sum(accepted(engine)) > 0


def test_drafts_after_switching_on_late_are_as_good_as_from_the_start(some: Prompts) -> None:
    """The drafter's rows that were not kept while speculation was off are made good, not left as holes."""
    switched_at = 10
    late = make_engine(speculate=False)
    text = submit(late, some[0], Sampling(NEW_TOKENS))
    finish_all(late, between=lambda step: late.switch(True) if step == switched_at - 1 else None)
    early = make_engine()
    generate(early, [some[0] + text.tokens[:switched_at]], NEW_TOKENS - switched_at)
    assert accepted(late) == accepted(early)


def test_requests_that_give_way_for_want_of_pages_end_with_the_same_text(some: Prompts, plain: Prompts) -> None:
    engine = make_engine(max_batch=8, kv_cache_tokens=PAGE * 5)
    rewound = 0
    texts = [submit(engine, prompt, Sampling(NEW_TOKENS)) for prompt in some]

    def count(step: int) -> None:
        nonlocal rewound
        rewound += sum(request.generated > 0 for request in engine.scheduler.waiting)

    finish_all(engine, between=count)
    assert rewound > 0
    assert [text.tokens for text in texts] == plain
    assert engine.pages.free == engine.pages.count - 1


def test_cancelled_request_gives_its_pages_back_and_disturbs_nobody(some: Prompts, plain: Prompts) -> None:
    engine = make_engine(max_batch=3)
    texts = [submit(engine, prompt, Sampling(NEW_TOKENS)) for prompt in some[:4]]  # the last one waits

    def cancel(step: int) -> None:
        if step == 4:
            engine.end(texts[1].request, Finish.CANCELLED)
            engine.end(texts[3].request, Finish.CANCELLED)

    finish_all(engine, between=cancel)
    assert [texts[0].tokens, texts[2].tokens] == [plain[0], plain[2]]
    assert texts[1].finish == texts[3].finish == Finish.CANCELLED
    assert texts[1].tokens == plain[1][: len(texts[1].tokens)]
    assert engine.pages.free == engine.pages.count - 1


def test_text_ends_at_the_first_end_token_also_within_a_draft(some: Prompts, plain: Prompts) -> None:
    engine = make_engine()
    end = plain[0][20]
    engine.eos_token_ids = frozenset({end})
    text = submit(engine, some[0], Sampling(NEW_TOKENS))
    finish_all(engine)
    assert text.tokens == plain[0][: plain[0].index(end) + 1]
    assert text.finish is Finish.STOP


def test_text_may_fill_the_context_to_the_last_token() -> None:
    engine = make_engine(kv_cache_tokens=192, max_batch=1)
    assert engine.context_limit == 192
    text = submit(engine, prompts()[0][:60], Sampling(192 - 60))
    finish_all(engine)
    assert len(text.tokens) == 192 - 60
    assert text.finish is Finish.LENGTH
    assert text.tokens == generate(make_engine(speculate=False), [prompts()[0][:60]], 192 - 60)[0]


POISON = 60
"""A token whose embedding is not a number."""


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Llama, Eagle3]:
    target, drafter = target_files(), drafter_files()
    target.tensors["model.embed_tokens.weight"][POISON] = float("nan")
    folder = tmp_path_factory.mktemp("poisoned")
    return load_pair(target.write(folder / "target"), drafter.write(folder / "drafter"))


@pytest.mark.parametrize("speculate", [True, False])
def test_request_that_meets_a_nan_fails_alone(poisoned: tuple[Llama, Eagle3], speculate: bool) -> None:
    """Its neighbours and whoever gets its pages next go on as if it had never been there."""
    healthy = [[3, 1, 4], [2, 7, 1, 8]]
    expected = generate(make_engine(speculate, pair=poisoned), healthy, 20)
    engine = make_engine(speculate, pair=poisoned, max_batch=3, kv_cache_tokens=3 * PAGE)
    for last in range(3):  # so that another one gets its page
        some = [*healthy[:last], [5, POISON] * 20, *healthy[last:]]
        texts = [submit(engine, prompt, Sampling(20)) for prompt in some]
        finish_all(engine)
        failed = texts.pop(last)
        assert failed.finish is Finish.FAILED
        assert "not finite" in failed.request.error
        assert [text.tokens for text in texts] == expected
    assert engine.pages.free == engine.pages.count - 1


def test_nothing_but_nan_is_a_broken_engine(poisoned: tuple[Llama, Eagle3]) -> None:
    engine = make_engine(pair=poisoned)
    texts = [submit(engine, [5, POISON], Sampling(4)) for _ in range(BROKEN_IN_A_ROW)]
    with pytest.raises(EngineBroken, match="not finite"):
        finish_all(engine)
    assert {text.finish for text in texts} == {Finish.FAILED}


@pytest.mark.parametrize(
    ("failure", "reason", "says"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), "OutOfGpuMemory", "take a larger one"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "GpuFailed", "must start anew"),
        (ValueError("shapes differ"), "EngineBroken", "shapes differ"),
    ],
    ids=["out of memory", "lost context", "anything else"],
)
def test_exception_in_a_round_fails_all_who_are_there_and_come_later_and_says_why(
    failure: Exception, reason: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    engine = make_engine(max_batch=2)
    thread = EngineThread(engine, threads=1)
    ends: list[Finish | None] = []

    def request() -> Request:
        return Request((1, 2, 3), Sampling(9), lambda tokens, finish: ends.append(finish))

    monkeypatch.setattr(engine.runner, "verify", fail)
    for _ in range(3):
        thread.submit(request())
    thread.start()
    wait_for(lambda: len(ends) == 3)
    thread.submit(request())
    wait_for(lambda: len(ends) == 4)
    thread.stop()
    assert set(ends) == {Finish.FAILED}
    assert thread.reason == reason
    assert says in thread.broken
    assert engine.pages.free == engine.pages.count - 1


def test_order_that_fails_breaks_the_engine_as_a_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """To switch speculation, the rounds in flight are waited for; with a GPU that may fail."""

    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine = make_engine()
    monkeypatch.setattr(engine, "_finish_rounds", fail)
    thread = EngineThread(engine, threads=1)
    ends: list[Finish | None] = []
    thread.submit(Request((1, 2, 3), Sampling(9), lambda tokens, finish: ends.append(finish)))
    thread.switch(False)
    thread.start()
    wait_for(lambda: bool(ends))
    thread.stop()
    assert (ends, thread.reason) == ([Finish.FAILED], "GpuFailed")


def test_engine_that_was_told_to_stop_is_not_taken_for_stalled() -> None:
    """However long the server takes to end after it."""
    thread = EngineThread(make_engine(), threads=1)
    thread.start()
    thread.stop()
    thread.heartbeat -= 10_000
    assert thread.failure is None


def test_nan_in_a_weight_is_found_by_the_self_test(tmp_path: Path) -> None:
    target, drafter = target_files(), drafter_files()
    target.tensors["model.layers.3.mlp.up_proj.weight"][0, 0] = float("nan")
    pair = load_pair(target.write(tmp_path / "target"), drafter.write(tmp_path / "drafter"))
    with pytest.raises(EngineBroken, match="not finite"):
        self_test(make_engine(pair=pair), [[1, 2, 3]])


def test_self_test_sees_life_in_the_tiny_pair_and_what_enters_fc(some: Prompts) -> None:
    engine = make_engine()
    seen = observe(engine, some[0])
    assert seen.capture_indexes == tiny_pair()[1].drafter.capture_indexes
    assert (seen.fc_input_width, seen.fc_applied) == (3 * 96, True)
    tested = self_test(engine, some[:4])
    assert tested.outcome is SelfTestOutcome.ALIVE
    assert tested.drafts >= 64
    assert tested.accepted > tested.drafts
    assert accepted(engine) == []  # the engine's own figures know nothing of it


@pytest.mark.parametrize(("context", "length"), [(4, 5), (6, 5), (9, 8)])
def test_a_context_that_no_draft_fits_is_told_at_start(context: int, length: int) -> None:
    engine = make_engine(draft_length=length, context_length=context)
    with pytest.raises(EngineBroken, match=f"no draft of {length} tokens fits a context of {context}: .*contextLength"):
        self_test(engine, [[1, 2, 3], [1] * 40])


def test_self_test_finds_no_life_where_nothing_is_accepted(some: Prompts) -> None:
    engine = make_engine()
    assert isinstance(engine.runner, Runner)
    engine.runner.target_ids = engine.runner.target_ids * 0 + 255  # an id that is never right
    tested = self_test(engine, some[:2])
    assert tested.outcome is SelfTestOutcome.NO_LIFE
    assert tested.drafts >= 64
    assert tested.accepted == 0


def test_observation_tells_another_wiring_from_the_right_one(some: Prompts) -> None:
    engine = make_engine()
    engine.runner.capture = (1, 0, 8)
    assert observe(engine, some[0]).capture_indexes == (1, 0, 8)


def test_speedup_needs_both_kinds_of_step(some: Prompts) -> None:
    engine, speedup = make_engine(), Speedup()
    assert not speedup.value > 0
    time_plain_steps(engine, some[0], speedup)
    assert not speedup.value > 0  # NaN still


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 40)), min_size=1, max_size=6),
)
def test_a_position_keeps_its_slot_whatever_runs_beside_it(spans: list[tuple[int, int]]) -> None:
    runs = [Run(start, [7] * length, range(1 + 10 * i, 9 + 10 * i)) for i, (start, length) in enumerate(spans)]
    tiles = lay_out(runs)
    used = 0
    for run, first in zip(runs, tiles.firsts, strict=True):
        positions, rows = range(run.start, run.end), range(first, first + len(run.tokens))
        assert tiles.positions.flatten()[rows].tolist() == list(positions)
        assert [position % TILE for position in positions] == [row % TILE for row in rows]
        pages = tiles.places.flatten()[rows] // PAGE
        assert pages.tolist() == [run.pages[position // PAGE] for position in positions]
        used += len(rows)
    assert (tiles.places >= PAGE).sum() == used  # every other slot goes to the scratch page


# --- plain rounds in between -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_plain_rounds_in_between_change_no_text_and_keep_to_their_share(
    some: Prompts, plain: Prompts, share: float
) -> None:
    engine = make_engine(max_batch=3, baseline_probe=share)
    for _ in range(1 + round(0.5 / share)):
        assert generate(engine, some, NEW_TOKENS) == plain
    rounds = [phase for phase in phases(engine) if phase is not Phase.PREFILL]
    assert 0 < rounds.count(Phase.PLAIN) <= share * len(rounds) + BURST
    assert sum(accepted(engine)) > 0


def test_without_a_share_no_round_is_plain(some: Prompts) -> None:
    engine = make_engine(max_batch=9)
    generate(engine, some, 20)
    assert Phase.PLAIN not in phases(engine)


def test_plain_rounds_give_way_to_a_prompt_so_that_none_runs_twice(some: Prompts) -> None:
    engine = make_engine(max_batch=2, prefill_chunk=512, baseline_probe=0.5)
    first = submit(engine, some[0], Sampling(60))
    while Phase.PLAIN not in phases(engine):
        engine.step()
    second = submit(engine, some[1], Sampling(10))
    engine.step()
    assert engine.speculating
    before = phases(engine).count(Phase.PREFILL)
    finish_all(engine)
    assert phases(engine).count(Phase.PREFILL) - before <= 60 // BURST + 1, (
        "rows of bursts are made good, no prompt again"
    )
    assert (first.finish, second.finish) == (Finish.LENGTH, Finish.LENGTH)


def test_what_is_switched_off_stays_off_whatever_the_share(some: Prompts, plain: Prompts) -> None:
    engine = make_engine(max_batch=3, baseline_probe=0.2)
    engine.switch(False)
    assert generate(engine, some, NEW_TOKENS) == plain
    assert Phase.VERIFY not in phases(engine)
