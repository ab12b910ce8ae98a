"""The probe on the tiny pair: acceptance is real, and a wiring mistake is named with the one change that mends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem_worker.checkpoint import open_checkpoint
from tandem_worker.checkpoint.tensors import read_tensor
from tandem_worker.contract import Finding, ProbeResult, ValidationReport, Verdict
from tandem_worker.engines import load
from tandem_worker.probe.stream import Progress
from tandem_worker.validate import Mode, Request, validate
from unit.pairs import TINY_PAIR, copy_of, overwrite

IDS = "eagle_aux_hidden_state_layer_ids"
PROMPTS = TINY_PAIR / "prompts.jsonl"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of the prompts: enough to tell mistakes, and quick."""
    file = tmp_path_factory.mktemp("texts") / "prompts.jsonl"
    file.write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[:12]))
    return file


def probed(
    drafter: Path, texts: Path | None, target: Path = TINY_PAIR / "target", **request: object
) -> ValidationReport:
    asked = Request(target, drafter, Mode.PROBE, draft_length=4, min_accept_length=1.3, prompts=texts)
    return validate(replace(asked, **request))  # type: ignore[arg-type]


def result(report: ValidationReport) -> ProbeResult:
    assert report.probe is not None, report.summary
    return report.probe


def finding(report: ValidationReport, code: str) -> Finding:
    (found,) = (finding for finding in report.findings if finding.code == code)
    return found


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_the_right_drafter_predicts_its_target_on_the_texts_that_ship() -> None:
    report = probed(TINY_PAIR / "drafter", None)
    measured = result(report)
    assert report.verdict is Verdict.FITS, report.summary
    assert measured.text == "prompt"
    assert measured.causes == ()
    assert measured.accept_length == pytest.approx(1 + sum(measured.acceptance), abs=1e-3)
    assert measured.accept_length > 1.5
    assert measured.position0_lower < measured.position0 < measured.position0_upper
    assert f"accept length {measured.accept_length:.2f}" in report.summary


def test_the_targets_own_continuation_is_what_drafters_are_trained_on(texts: Path) -> None:
    own = result(probed(TINY_PAIR / "drafter", texts, continuation=24))
    assert own.text == "continuation"
    assert own.position0 > 0.75
    assert own.accept_length > 3
    assert own.position0 > result(probed(TINY_PAIR / "drafter", texts)).position0 + 0.1


def test_a_foreign_drafter_fits_on_paper_and_no_wiring_explains_it(texts: Path) -> None:
    report = probed(TINY_PAIR / "drafter-foreign", texts)
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert result(report).accept_length < 1.1
    assert [cause.code for cause in result(report).causes] == ["TDM-DRAFTER-DOES-NOT-PREDICT"]
    assert report.summary.startswith("No wiring explains it: the drafter does not predict this target (wrong target")
    assert "others tried reaches 0.0" in report.summary


def test_layer_ids_of_another_convention_are_named_with_both_figures(texts: Path, tmp_path: Path) -> None:
    report = probed(copy_of("drafter", tmp_path, eagle_config=None, **{IDS: [1, 3, 4]}), texts)
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert report.summary.startswith(
        "The builtin engine will capture [1, 3, 4]; this drafter was trained on [2, 4, 5]: position-0 acceptance 0."
    )
    assert report.summary.endswith(f"; set {IDS} to [2, 4, 5].")
    assert "more error" not in report.summary
    (cause,) = result(report).causes
    assert cause.position0 < 0.2 < 0.5 < (cause.mended or 0)


def test_a_mistake_that_costs_little_is_a_warning_and_one_that_costs_much_an_error(texts: Path, tmp_path: Path) -> None:
    report = probed(copy_of("drafter", tmp_path / "mild", norm_before_residual=True), texts)
    assert report.verdict is Verdict.FITS_WITH_WARNINGS
    assert "set norm_before_residual to false" in finding(report, "TDM-NORM-BEFORE-RESIDUAL").message
    assert report.summary.startswith("Accept length 2.")
    drafter = copy_of("drafter", tmp_path / "grave", eagle_config=None, **{IDS: [1, 3, 4]})
    report = probed(drafter, texts, min_accept_length=1.0)
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert "was trained on [2, 4, 5]" in finding(report, "TDM-CAPTURE-INDEX-MISMATCH").message


def test_what_the_training_run_says_and_what_was_measured_are_one_error(texts: Path, tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path, eagle_config=None, **{IDS: [0, 7, 8]})
    report = probed(drafter, texts, trained_on=(2, 4, 5))
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert report.summary.startswith("The builtin engine will capture [0, 7, 8]; this drafter was trained on [2, 4, 5]")
    assert "position-0 acceptance" in report.summary
    assert "more error" not in report.summary


def test_a_wrong_word_about_the_training_run_does_not_condemn_a_drafter_that_predicts(texts: Path) -> None:
    report = probed(TINY_PAIR / "drafter", texts, trained_on=(1, 3, 4))
    assert report.verdict is Verdict.FITS_WITH_WARNINGS
    assert "Measured, it predicts with [2, 4, 5]" in finding(report, "TDM-CAPTURE-INDEX-MISMATCH").message


def test_a_map_of_ids_gets_its_figures_beside_what_the_files_prove(texts: Path, tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path)
    offsets = np.array(read_tensor(open_checkpoint(drafter).tensors["d2t"]))
    overwrite(drafter, "d2t", (offsets + np.arange(len(offsets))).tobytes())
    report = probed(drafter, texts)
    assert report.verdict is Verdict.DOES_NOT_FIT
    found = finding(report, "TDM-D2T-HOLDS-IDS")
    assert "needs d2t as target ids: position-0 acceptance 0.00 against 0.5" in found.message
    assert report.summary == found.message


@pytest.mark.parametrize("engine", ["sglang@0.5.12", "vllm@0.33.0"])
def test_the_remedy_is_in_the_words_of_the_engine_that_will_run(texts: Path, tmp_path: Path, engine: str) -> None:
    path, right = {
        "sglang@0.5.12": (f"eagle_config.{IDS}", [1, 3, 4]),
        "vllm@0.33.0": (IDS, [2, 4, 5]),
    }[engine]
    wrong = [i + 1 for i in right]
    config = {"eagle_config": {IDS: wrong}} if "." in path else {"eagle_config": None, IDS: wrong}
    report = probed(copy_of("drafter", tmp_path, **config), texts, engine=load(engine))
    title = load(engine).title
    assert report.summary.startswith(f"{title} will capture [3, 5, 6]; this drafter was trained on [2, 4, 5]: position")
    assert report.summary.endswith(f"; set {path} to {right}.")


def test_a_probe_goes_on_where_it_was_killed_and_another_drafter_needs_no_second_pass(
    texts: Path, tmp_path: Path
) -> None:
    class Killed(BaseException):
        pass

    layers: list[int] = []

    def seen(progress: Progress) -> None:
        layers.append(progress.layer)
        if layers == [1, 2, 3, 4, 5]:
            raise Killed

    kept = tmp_path / "state" / "pair"
    with pytest.raises(Killed):
        probed(TINY_PAIR / "drafter", texts, resume=kept, on_progress=seen)
    layers.append(0)
    report = probed(TINY_PAIR / "drafter", texts, resume=kept, on_progress=seen)
    assert layers == [1, 2, 3, 4, 5, 0, 5, 6, 7, 8]
    assert result(report) == result(probed(TINY_PAIR / "drafter", texts))
    layers.clear()
    assert probed(TINY_PAIR / "drafter-foreign", texts, resume=kept, on_progress=seen).verdict is Verdict.DOES_NOT_FIT
    assert layers == []


# --- what keeps the probe from running -------------------------------------------------------------------------------


def test_the_weights_that_are_not_a_number_are_named(texts: Path, tmp_path: Path) -> None:
    target, drafter = copy_of("target", tmp_path), copy_of("drafter", tmp_path)
    overwrite(drafter, "midlayer.mlp.up_proj.weight", b"\xc0\x7f", start=96 * 2 * 101)  # in a row that is not sampled
    report = probed(drafter, texts)
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert finding(report, "TDM-NAN-LOGITS").where == "midlayer.mlp.up_proj.weight"
    overwrite(target, "model.layers.3.mlp.down_proj.weight", b"\xc0\x7f")
    named = finding(probed(TINY_PAIR / "drafter", texts, target), "TDM-NAN-LOGITS")
    assert named.where == "model.layers.3.mlp.down_proj.weight"
    assert "1 values" in named.message


def test_what_keeps_the_probe_from_running_is_named_beside_the_static_result(texts: Path, tmp_path: Path) -> None:
    target = copy_of("target", tmp_path)
    (target / "tokenizer.json").write_text("{}")
    report = probed(TINY_PAIR / "drafter", texts, target)
    assert report.verdict is Verdict.COULD_NOT_CHECK
    assert finding(report, "TDM-TOKENIZER-MALFORMED").file == str(target / "tokenizer.json")
    assert report.resolution is not None
    (target / "tokenizer.json").unlink()
    assert finding(probed(TINY_PAIR / "drafter", texts, target), "TDM-FILE-MISSING").file.endswith("tokenizer.json")


def test_too_little_text_can_not_judge_a_drafter(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Once"}\n')
    report = probed(TINY_PAIR / "drafter", prompts)
    assert report.verdict is Verdict.COULD_NOT_CHECK
    assert "are needed to judge" in finding(report, "TDM-TOO-LITTLE-TEXT").message


def test_errors_on_paper_that_no_engine_would_serve_are_not_run(texts: Path, tmp_path: Path) -> None:
    report = probed(copy_of("drafter", tmp_path, intermediate_size=128), texts)
    assert report.verdict is Verdict.DOES_NOT_FIT
    assert report.probe is None
