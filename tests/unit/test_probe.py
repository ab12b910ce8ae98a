"""The probe on the tiny pair: acceptance is real, and a wiring mistake is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tandem_worker.checkpoint import CheckpointError, open_checkpoint, read_drafter, read_target
from tandem_worker.checks import Pair
from tandem_worker.contract import Finding, ProbeResult, ValidationReport, Verdict
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.load import load_drafter, load_target
from tandem_worker.models.teacher_forced import draft_everywhere
from tandem_worker.probe.diagnosis import better_wiring, clearly_better, nothing_helps
from tandem_worker.probe.generate import continue_greedily
from tandem_worker.probe.prompts import BUILT_IN, read_prompts, tokenize
from tandem_worker.probe.replay import Tally, calibrate, count_rounds, replay
from tandem_worker.probe.wirings import Wiring, declared, hypotheses
from tandem_worker.validate import Mode, Request, validate
from unit.pairs import TINY_PAIR, copy_of, described, drafter_files, overwrite, target_files

IDS = "eagle_aux_hidden_state_layer_ids"
CPU = torch.device("cpu")


def probed(drafter: Path, target: Path = TINY_PAIR / "target", **request: object) -> ValidationReport:
    asked = Request(target, drafter, Mode.PROBE, draft_length=4, min_accept_length=1.3)
    return validate(replace(asked, **request))  # type: ignore[arg-type]


def result(report: ValidationReport) -> ProbeResult:
    assert report.probe is not None
    return report.probe


def finding(report: ValidationReport, code: str) -> Finding:
    (found,) = (finding for finding in report.findings if finding.code == code)
    return found


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_the_right_drafter_predicts_its_target() -> None:
    report = probed(TINY_PAIR / "drafter")
    assert report.verdict is Verdict.FITS
    measured = result(report)
    assert measured.accept_length > 2
    assert measured.position0 > 0.5
    assert measured.drafts > 100
    assert measured.accept_length == pytest.approx(1 + sum(measured.accepted_per_position) / measured.drafts)
    assert f"accept length {measured.accept_length:.2f}" in report.summary


def test_a_foreign_drafter_fits_on_paper_and_predicts_nothing() -> None:
    report = probed(TINY_PAIR / "drafter-foreign")
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert result(report).accept_length < 1.1
    assert "probably trained for another target" in result(report).diagnosis
    assert finding(report, "TDM-ACCEPT-LENGTH-BELOW-THRESHOLD").expected == "at least 1.30"


def test_layer_ids_of_another_convention_are_diagnosed_with_figures(tmp_path: Path) -> None:
    report = probed(copy_of("drafter", tmp_path, eagle_config=None, **{IDS: [1, 3, 4]}), min_accept_length=2.0)
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert "will capture [1, 3, 4]; the drafter answers to [2, 4, 5]: position-0 acceptance 0." in report.summary
    assert f"declare [2, 4, 5] at top level ({IDS}) or [1, 3, 4] in eagle_config" in report.summary
    assert result(report).position0 < 0.4


def test_a_wrong_wiring_above_the_threshold_is_a_warning(tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path, eagle_config=None, **{IDS: [1, 3, 4]})
    report = probed(drafter, min_accept_length=1.0)
    assert report.verdict is Verdict.FITS_WITH_WARNINGS
    assert "answers to [2, 4, 5]" in finding(report, "TDM-OTHER-WIRING-BETTER").message


def test_a_known_training_run_is_tried_first_and_gives_its_figures(tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path, eagle_config=None, **{IDS: [0, 7, 8]})
    report = probed(drafter, trained_on=(2, 4, 5))
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert report.summary.startswith("The builtin engine will capture [0, 7, 8]; this drafter was trained on [2, 4, 5]")
    assert "the drafter answers to [2, 4, 5]" in result(report).diagnosis


def test_a_vocabulary_map_of_ids_is_diagnosed() -> None:
    """The static checks tell by t2d; where t2d was made by the same mistake only the probe can."""
    pair = opened(TINY_PAIR / "drafter")
    llama, drafter = loaded(pair)
    texts, starts = written(pair, llama, 6)
    calibration = calibrate(llama, texts, starts)
    drafter.d2t = drafter.target_ids
    as_offsets = replace(declared(pair), target_ids=drafter.target_ids % pair.target.vocab_size)
    readings = [wiring for wiring in hypotheses(pair, drafter) if wiring.target_ids is not None]
    tallies = [(wiring, replay(calibration, drafter, wiring, 4)) for wiring in readings]
    sentence = better_wiring(replay(calibration, drafter, as_offsets, 4), tallies, 1.3)
    assert "the drafter answers when its entries are taken as target ids" in sentence


def test_the_weights_that_are_not_a_number_are_named(tmp_path: Path) -> None:
    target, drafter = copy_of("target", tmp_path), copy_of("drafter", tmp_path)
    overwrite(drafter, "midlayer.mlp.up_proj.weight", b"\xc0\x7f", start=96 * 2 * 101)  # in a row that is not sampled
    report = probed(drafter)
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert finding(report, "TDM-NAN-LOGITS").where == "midlayer.mlp.up_proj.weight"
    overwrite(target, "model.layers.3.mlp.down_proj.weight", b"\xc0\x7f")
    named = finding(probed(TINY_PAIR / "drafter", target), "TDM-NAN-LOGITS")
    assert named.where == "model.layers.3.mlp.down_proj.weight"
    assert "1 values" in named.message


def test_what_keeps_the_probe_from_running_is_named_beside_the_static_result(tmp_path: Path) -> None:
    target = copy_of("target", tmp_path)
    (target / "tokenizer.json").write_text("{}")
    report = probed(TINY_PAIR / "drafter", target)
    assert report.verdict is Verdict.COULD_NOT_CHECK
    assert finding(report, "TDM-TOKENIZER-MALFORMED").file == str(target / "tokenizer.json")
    assert report.resolution is not None
    (target / "tokenizer.json").unlink()
    assert finding(probed(TINY_PAIR / "drafter", target), "TDM-FILE-MISSING").file.endswith("tokenizer.json")


def test_a_target_with_nothing_to_say_can_not_judge_a_drafter(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Once"}\n')
    report = probed(TINY_PAIR / "drafter", prompts=prompts)
    assert report.verdict is Verdict.COULD_NOT_CHECK
    assert "are needed to judge" in finding(report, "TDM-TOO-LITTLE-TEXT").message


def test_errors_on_paper_are_not_run(tmp_path: Path) -> None:
    report = probed(copy_of("drafter", tmp_path, intermediate_size=128))
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert report.probe is None


# --- prompts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "once upon a time", '{"text": "x"}', '{"prompt": ""}', '{"prompt": 3}', "[]"])
def test_prompts_that_can_not_be_used_are_named_by_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_prompts(file)
    assert caught.value.finding.code == "TDM-PROMPTS-UNUSABLE"


def test_prompts_come_from_the_file_that_is_given() -> None:
    assert read_prompts(None) == BUILT_IN
    lines = (TINY_PAIR / "prompts.jsonl").read_text().splitlines()
    assert read_prompts(TINY_PAIR / "prompts.jsonl")[0] == json.loads(lines[0])["prompt"]


# --- generation and replay -------------------------------------------------------------------------------------------


def opened(drafter: Path) -> Pair:
    target_checkpoint, drafter_checkpoint = open_checkpoint(TINY_PAIR / "target"), open_checkpoint(drafter)
    target = read_target(target_checkpoint)
    return Pair(target, read_drafter(drafter_checkpoint, target), target_checkpoint, drafter_checkpoint)


def loaded(pair: Pair) -> tuple[Llama, Eagle3]:
    torch.set_num_threads(1)
    llama = load_target(pair.target_checkpoint, pair.target, torch.float32, CPU)
    return llama, load_drafter(pair.drafter_checkpoint, pair.drafter, llama, torch.float32, CPU).drafter


def written(pair: Pair, llama: Llama, count: int, new_tokens: int = 40) -> tuple[list[list[int]], list[int]]:
    prompts = tokenize(BUILT_IN[:count], pair.target_checkpoint, pair.target.vocab_size, longest=32)
    return continue_greedily(llama, prompts, new_tokens), [len(prompt) for prompt in prompts]


def test_texts_written_side_by_side_are_what_each_prompt_gives_alone() -> None:
    pair = opened(TINY_PAIR / "drafter")
    llama, _ = loaded(pair)
    texts, starts = written(pair, llama, 4, new_tokens=12)
    for text, start in zip(texts, starts, strict=True):
        alone = text[:start]
        while len(alone) < len(text):
            logits, _ = llama.whole(torch.tensor([alone]))
            alone.append(int(logits[0, -1].argmax()))
        assert alone == text


def test_a_text_ends_where_the_target_ends_it() -> None:
    pair = opened(TINY_PAIR / "drafter")
    llama, _ = loaded(pair)
    texts, starts = written(pair, llama, 1)
    middle = texts[0][starts[0] + 5]
    llama.target = replace(llama.target, eos_token_ids=(middle,))
    shorter, _ = written(pair, llama, 1)
    assert shorter[0] == texts[0][: texts[0].index(middle, starts[0]) + 1]


def test_replayed_rounds_are_those_of_real_speculative_decoding() -> None:
    pair = opened(TINY_PAIR / "drafter")
    llama, drafter = loaded(pair)
    texts, starts = written(pair, llama, 3)
    expected = replay(calibrate(llama, texts, starts), drafter, declared(pair), 4)
    drafts, accepted = 0, [0] * 4
    for text, start in zip(texts, starts, strict=True):
        known = text[: start + 1]
        while len(known) + 4 < len(text):
            tokens = torch.tensor([known])
            _, streams = llama.whole(tokens[:, :-1])
            captured = [streams[i] for i in (2, 4, 5)]
            proposal = draft_everywhere(drafter, tokens, captured, 4)[:, 0, -1].tolist()
            logits, _ = llama.whole(torch.tensor([known + proposal]))
            verified = logits[0, len(known) - 1 :].argmax(-1).tolist()
            hits = next((k for k in range(4) if proposal[k] != verified[k]), 4)
            for k in range(hits):
                accepted[k] += 1
            drafts += 1
            known += verified[: hits + 1]
    assert expected == Tally(drafts, tuple(accepted))


def test_rounds_are_counted_up_to_the_last_whole_one() -> None:
    text = [7, 7, 7, 1, 2, 3, 4, 5]
    accepted = [0, 0]
    proposals = [[0, 0], [1, 9], [9, 9], [9, 9], [9, 9], [9, 9]]  # entry t is drafted when t + 2 tokens are known
    assert count_rounds(text, 3, proposals, accepted) == 2  # accepts 1, then nothing; a third would not be whole
    assert accepted == [1, 0]


# --- diagnosis -------------------------------------------------------------------------------------------------------

RIGHT = Wiring((2, 4, 5), cause="will do this; the drafter answers to that", remedy="do that")


@pytest.mark.parametrize(
    ("other", "declared_tally", "better"),
    [
        (Tally(200, (150, 100)), Tally(500, (50, 5)), True),
        (Tally(200, (150, 100)), Tally(500, (450, 400)), False),  # the declared one is better
        (Tally(200, (150, 100)), Tally(300, (200, 100)), False),  # not half as much again
        (Tally(10, (8, 2)), Tally(10, (3, 1)), False),  # too few drafts to tell
        (Tally(500, (100, 10)), Tally(500, (10, 0)), False),  # better, but the pair would still not fit
        (Tally(0, (0, 0)), Tally(0, (0, 0)), False),
    ],
)
def test_when_another_wiring_is_clearly_better(other: Tally, declared_tally: Tally, better: bool) -> None:
    assert clearly_better(other, declared_tally, threshold=1.3) is better
    sentence = better_wiring(declared_tally, [(RIGHT, other)], threshold=1.3)
    assert bool(sentence) is better


def test_the_best_of_several_wirings_is_named() -> None:
    tried = [(replace(RIGHT, cause="first"), Tally(300, (150,))), (replace(RIGHT, cause="second"), Tally(300, (240,)))]
    sentence = better_wiring(Tally(500, (50,)), tried, threshold=1.3)
    assert sentence == "The builtin engine second: position-0 acceptance 0.10 against 0.80; do that."
    assert "None of 2 other wirings" in nothing_helps(Tally(500, (0,)), tried)


def test_every_hypothesis_can_be_run_and_none_is_the_declared_one(tmp_path: Path) -> None:
    drafter = drafter_files()
    drafter.config[IDS] = [0, 4, 8]
    pair = described(tmp_path, target_files(), drafter, trained_on=(1, 2, 3))
    _, eagle3 = loaded(pair)
    tried = list(hypotheses(pair, eagle3))
    captures = [wiring.capture for wiring in tried]
    assert captures[0] == (1, 2, 3)
    assert all(0 <= i <= 8 for capture in captures for i in capture)
    assert declared(pair) not in tried
    assert len({(w.capture, w.fused, w.norm_before_residual, w.cause) for w in tried}) == len(tried)
