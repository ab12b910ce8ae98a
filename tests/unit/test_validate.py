"""`tandem-worker validate` as the operator's Job and a person at a terminal meet it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem_worker.checks import judge as judging
from tandem_worker.command import app
from tandem_worker.contract import TERMINATION_MESSAGE_LIMIT_BYTES, ValidationReport, Verdict
from unit.pairs import TINY_PAIR, copy_of, drafter_files, overwrite, target_files

IDS = "eagle_aux_hidden_state_layer_ids"


def run(target: Path, drafter: Path, *options: str) -> tuple[int, ValidationReport, str]:
    """Exit code, the JSON line of the log, what a person reads."""
    arguments = ["validate", "--target", str(target), "--drafter", str(drafter), *options]
    result = CliRunner().invoke(app, arguments)
    (line,) = result.stdout.splitlines()
    return result.exit_code, ValidationReport.model_validate_json(line), result.stderr


def codes(report: ValidationReport) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity != "Note"}


@pytest.mark.parametrize("name", ["drafter", "drafter-foreign"])
def test_the_tiny_pairs_drafters_both_fit_on_paper(name: str) -> None:
    code, report, shown = run(TINY_PAIR / "target", TINY_PAIR / name, "--trained-on", "2,4,5")
    assert (code, report.verdict, report.mode) == (0, Verdict.FITS, "Static")
    assert report.capture_indexes is not None
    assert report.capture_indexes.declared == (1, 3, 4)
    assert report.capture_indexes.engine == report.capture_indexes.trained_on == (2, 4, 5)
    assert report.resolution is not None
    assert report.resolution.fc_input_width == 288
    assert report.resolution.shared == ("embed_tokens.weight",)
    assert report.fingerprints is not None
    assert report.fingerprints.target != report.fingerprints.drafter
    assert "FITS" in shown


def test_layer_ids_of_another_convention_are_refused_with_the_remedy(tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path, eagle_config=None, **{IDS: [1, 3, 4]})
    code, report, shown = run(TINY_PAIR / "target", drafter, "--trained-on", "2,4,5")
    assert (code, report.verdict) == (1, Verdict.DOES_NOT_FIT)
    assert codes(report) == {"TDM-CAPTURE-INDEX-MISMATCH"}
    assert "write [2, 4, 5] at top level, or [1, 3, 4] inside eagle_config" in report.summary
    assert "DOES NOT FIT" in shown
    assert "TDM-CAPTURE-INDEX-MISMATCH" in shown


def test_without_knowledge_of_the_training_run_static_checks_can_not_tell(tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path, eagle_config=None, **{IDS: [1, 3, 4]})
    assert run(TINY_PAIR / "target", drafter)[0] == 0


def test_all_damage_of_both_checkpoints_is_told_at_once(tmp_path: Path) -> None:
    target = copy_of("target", tmp_path)
    shard = target / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:1000])
    code, report, shown = run(target, tmp_path / "nowhere")
    assert (code, report.verdict) == (2, Verdict.COULD_NOT_CHECK)
    assert codes(report) == {"TDM-SHARD-TRUNCATED", "TDM-FILE-MISSING"}
    assert "COULD NOT CHECK" in shown
    assert "Traceback" not in shown


def test_the_target_given_as_drafter() -> None:
    code, report, _ = run(TINY_PAIR / "target", TINY_PAIR / "target")
    assert code == 1
    assert codes(report) == {"TDM-DRAFTER-IS-TARGET"}


def test_a_target_of_an_unknown_architecture_is_not_judged(tmp_path: Path) -> None:
    target = copy_of("target", tmp_path, architectures=["Gemma3ForCausalLM"])
    code, report, _ = run(target, TINY_PAIR / "drafter")
    assert code == 2
    assert codes(report) == {"TDM-ARCHITECTURE-NOT-SUPPORTED"}


def test_a_nan_in_a_norm_is_found_without_running_anything(tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path)
    overwrite(drafter, "norm.weight", b"\xc0\x7f", start=10)
    code, report, _ = run(TINY_PAIR / "target", drafter)
    assert code == 1
    (finding,) = (finding for finding in report.findings if finding.code == "TDM-WEIGHTS-NOT-FINITE")
    assert finding.where == "norm.weight"


def test_the_termination_message_is_the_report_in_4_kib(tmp_path: Path) -> None:
    drafter = drafter_files()
    drafter.rename(".weight", ".weights-under-a-long-and-unknown-name" * 3)
    target = target_files().write(tmp_path / "target")
    message = tmp_path / "message"
    code, full, _ = run(target, drafter.write(tmp_path / "drafter"), "--termination-message", str(message))
    assert code == 1
    assert len(message.read_bytes()) <= TERMINATION_MESSAGE_LIMIT_BYTES
    short = ValidationReport.model_validate_json(message.read_bytes())
    assert (short.verdict, short.summary, short.fingerprints) == (full.verdict, full.summary, full.fingerprints)


def test_a_termination_message_that_can_not_be_written_does_not_change_the_verdict(tmp_path: Path) -> None:
    code, _, shown = run(
        TINY_PAIR / "target", TINY_PAIR / "drafter", "--termination-message", str(tmp_path / "no" / "such")
    )
    assert code == 0
    assert "could not be written" in shown


def test_json_alone_for_machines() -> None:
    code, report, shown = run(TINY_PAIR / "target", TINY_PAIR / "drafter", "--json")
    assert (code, report.verdict, shown) == (0, Verdict.FITS, "")


def test_a_fault_of_the_validator_is_a_finding_and_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pair: object) -> None:
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(judging, "run_checks", fails)
    code, report, shown = run(TINY_PAIR / "target", TINY_PAIR / "drafter")
    assert (code, report.verdict) == (2, Verdict.COULD_NOT_CHECK)
    assert codes(report) == {"TDM-VALIDATOR-FAILED"}
    assert "ZeroDivisionError: no such luck" in report.summary
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "options", [("--trained-on", "two"), ("--draft-length", "0"), ("--min-accept-length", "0.5"), ("--mode", "Maybe")]
)
def test_options_that_mean_nothing_are_refused(options: tuple[str, ...]) -> None:
    arguments = ["validate", "--target", str(TINY_PAIR / "target"), "--drafter", str(TINY_PAIR / "drafter"), *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert options[0] in result.stderr or options[1] in result.stderr


def test_static_validation_starts_without_torch(tmp_path: Path) -> None:
    shutil.copytree(TINY_PAIR / "drafter", tmp_path / "drafter")
    program = (
        "import sys, tandem_worker.__main__ as worker\n"
        "try:\n    worker.main()\n"
        "finally:\n    print([name for name in ('torch', 'transformers', 'fastapi') if name in sys.modules])\n"
    )
    options = ["--target", str(TINY_PAIR / "target"), "--drafter", str(tmp_path / "drafter"), "--mode", "Static"]
    result = subprocess.run(
        [sys.executable, "-c", program, "validate", *options], capture_output=True, text=True, check=False
    )
    report, imported = result.stdout.splitlines()
    assert result.returncode == 0
    assert json.loads(report)["verdict"] == "Fits"
    assert imported == "[]"
