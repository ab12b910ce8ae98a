"""What keeps hundreds of wirings cheap, and that nothing is lost by it: shares of fc, asked rows, windows, the race."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from tandem_worker.checkpoint.description import Mla
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.layers import CausalAttention
from tandem_worker.models.teacher_forced import UnrolledAttention
from tandem_worker.probe.build import build
from tandem_worker.probe.captured import CONTEXT, middle
from tandem_worker.probe.chain import chains
from tandem_worker.probe.drafting import FirstSteps, attention, embedded, feature, first_step
from tandem_worker.probe.race import KEPT, Race
from tandem_worker.probe.score import Score, score
from tandem_worker.probe.wiring import View, Wiring
from tiny_pair.causes import Bench, held_out_prompts, open_bench

TEXTS = 24


@pytest.fixture(scope="module", params=["tiny-pair", "normed"])
def bench(request: pytest.FixtureRequest) -> Bench:
    torch.set_num_threads(1)
    return open_bench(request.param, held_out_prompts()[:6], tokens=40)


# --- shares and rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{}, {"norm_before_fc": True}, {"fc_norm": True}, {"view": View.FINAL_NORM}])
@torch.inference_mode()
def test_shares_of_the_slots_add_up_to_what_fc_makes_of_all_streams(bench: Bench, change: dict[str, object]) -> None:
    if "fc_norm" in change and bench.name != "normed":
        change = {"capture": (0, 0, 8)}
    wiring = replace(bench.right, **change)  # type: ignore[arg-type]
    module = build(bench.parts, wiring).module
    (batch,) = bench.seen.batches()
    streams = [batch.stream(index, wiring.view) for index in wiring.capture]
    whole = module.fuse([stream.flatten(0, 1)[None] for stream in streams])[0].view(*streams[0].shape[:2], -1)
    torch.testing.assert_close(feature(batch, module, wiring), whole, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_rows_that_are_asked_for_are_those_of_the_whole(bench: Bench) -> None:
    part = bench.seen.shortened(18)
    built = build(bench.parts, bench.right)
    (batch,) = part.batches()
    features, tokens = feature(batch, built.module, bench.right), embedded(batch, built)
    asked = first_step(built.module, tokens, features, attention(batch, built.module))
    positions = torch.arange(features.shape[1]).expand(features.shape[:2])
    whole = built.module.step(tokens, features, positions, CausalAttention())
    index = batch.places[..., None].expand_as(asked)
    torch.testing.assert_close(asked[batch.judged], whole.gather(1, index)[batch.judged], atol=1e-5, rtol=1e-5)


KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "biased": {"qkv_bias": True},
    "two layers": {"layers": 2},
    "latent": {"mla": Mla(kv_lora=12, nope_head=8, rope_head=8, value_head=16, q_lora=24, interleaved=True)},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@torch.inference_mode()
def test_wirings_side_by_side_get_what_each_gets_alone(bench: Bench, kind: dict[str, object]) -> None:
    torch.manual_seed(1)
    module = Eagle3(replace(bench.parts.drafter, **kind)).eval()  # type: ignore[arg-type]
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    embedding, features = (torch.randn(texts, 9, module.drafter.hidden_size) for texts in (2, 3 * 2))
    places = torch.tensor([[2, 5], [1, 8]])
    attend = UnrolledAttention(places.repeat(3, 1), module.drafter.layers - 1)
    together = first_step(module, embedding, features, attend).split(2)
    for own, asked in zip(features.split(2), together, strict=True):
        whole = module.step(embedding, own, torch.arange(9).expand(2, 9), CausalAttention())
        torch.testing.assert_close(asked, whole.gather(1, places[..., None].expand_as(asked)), atol=1e-4, rtol=1e-4)


def test_whole_drafts_go_on_from_first_steps_that_were_measured(bench: Bench) -> None:
    begun: FirstSteps = {}
    other = replace(bench.right, capture=bench.right.capture[::-1])
    wirings = [bench.right, replace(bench.right, norm_output=not bench.right.norm_output), other]
    score(bench.seen, bench.parts, [bench.right, other], begun)
    assert len(begun) == 2
    assert chains(bench.seen, bench.parts, wirings, 4, begun) == chains(bench.seen, bench.parts, wirings, 4)


def test_a_window_lies_in_the_middle_and_judges_what_the_whole_text_judges(bench: Bench) -> None:
    assert middle(range(3, 13), 4) == range(6, 10)
    assert middle(range(3, 5), 4) == range(3, 5)
    part = bench.seen.shortened(18)
    assert [len(run) for run in part.judged] == [3] * 6
    assert max(map(len, part.texts)) <= CONTEXT + 3 + 1
    wide = bench.seen.shortened(10**6)  # nothing is cut off
    assert wide.judged == bench.seen.judged
    assert score(wide, bench.parts, [bench.right]) == score(bench.seen, bench.parts, [bench.right])


# --- the race --------------------------------------------------------------------------------------------------------


def wirings(count: int) -> list[Wiring]:
    return [Wiring(capture=(i,)) for i in range(count)]


class Texts:
    """Overlaps of wirings as texts give them: each about its own mean, all up and down with the text."""

    def __init__(self, means: Mapping[Wiring, float], seed: int, noise: float = 0.3) -> None:
        self.means, self.noise, self.rng, self.measured = means, noise, random.Random(seed), [0, 0, 0]
        self.hardness = [self.rng.gauss(0, 0.1) for _ in range(TEXTS)]

    def measure(self, part: int, some: Sequence[Wiring]) -> dict[Wiring, Score]:
        each = 3 * 4**part
        self.measured[part] += len(some)
        return {wiring: self._score(self.means[wiring], each) for wiring in some}

    def _score(self, mean: float, each: int) -> Score:
        noise = self.noise / each**0.5
        draws = [min(1.0, max(0.0, mean + mean * hard + self.rng.gauss(0, noise))) for hard in self.hardness]
        return Score(tuple(each * draw for draw in draws), (0.0,) * TEXTS, (each,) * TEXTS)

    def race(self, engine: Wiring, least: float = 0.15) -> Race:
        parts = [lambda some, part=part: self.measure(part, some) for part in range(3)]
        race = Race(parts, engine, least)
        race.enter(self.means)
        return race


def test_the_best_wiring_is_never_left_behind_and_the_rest_is_soon() -> None:
    """100 races of 150 wirings, the best of which is ahead of one other by little, of all others by much."""
    for seed in range(100):
        engine, near, right, *others = wirings(150)
        means = {engine: 0.1, near: 0.48, right: 0.5} | dict.fromkeys(others, 0.1)
        texts = Texts(means, seed)
        race = texts.race(engine)
        assert right in race.in_question()
        assert texts.measured[2] < 15


def test_wirings_that_measure_alike_all_stay() -> None:
    engine, *others = wirings(12)
    for noise in (0.3, 0.03):
        texts = Texts({engine: 0.1} | dict.fromkeys(others, 0.5), 1, noise)
        assert set(texts.race(engine).in_question()) == set(others)


def test_what_is_surely_no_better_than_an_engines_wiring_that_predicts_is_not_run_to_the_end() -> None:
    engine, better, *others = wirings(30)
    alike = {engine: 0.5} | dict.fromkeys(others, 0.5)
    texts = Texts(alike, 1, noise=0.03)
    assert texts.race(engine).in_question() == []
    assert texts.measured[2] == 1
    assert Texts(alike | {better: 0.53}, 1, noise=0.03).race(engine).in_question() == [better]
    little = {engine: 0.1} | dict.fromkeys(others, 0.1)  # a step towards the right one may be no better
    assert len(Texts(little, 1, noise=0.03).race(engine, least=0.12).last) > 1


def test_of_what_predicts_nothing_only_the_best_go_on_and_none_is_believed() -> None:
    engine, *others = wirings(100)
    texts = Texts({engine: 0.0} | dict.fromkeys(others, 0.0), 1)
    race = texts.race(engine, least=0.4)
    assert texts.measured[0] == 100
    assert texts.measured[1] <= KEPT + 1
    assert texts.measured[2] <= KEPT // 2 + 1
    assert race.in_question() == []


def test_the_engines_wiring_is_measured_to_the_end_however_bad() -> None:
    engine, right = wirings(2)
    race = Texts({engine: 0.0, right: 0.6}, 1).race(engine)
    assert engine in race.last
    assert race.in_question() == [right]
    assert list(race.looked) == [engine, right]
