"""The engine is named where the drafter is innocent: its own statement, or two drafters that fail alike."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tandem_worker.contract import Resolution
from tandem_worker.engines import load
from tandem_worker.probe.engine_fault import changes, stated_wiring
from tandem_worker.probe.wiring import DraftIds, View, Wiring
from tandem_worker.validate import Mode, Request, validate
from tiny_pair.causes import MORE
from unit.pairs import TINY_PAIR

RIGHT = Wiring(capture=(2, 4, 5))
AS_RESOLVED = Resolution(
    capture_indexes=(2, 4, 5),
    fc_input_width=288,
    fc_applied=True,
    norm_before_residual=False,
    loaded=("fc.weight",),
    shared=("embed_tokens.weight",),
    missing=(),
    dropped=(),
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "prompts.jsonl"
    file.write_text("".join((TINY_PAIR / "prompts.jsonl").read_text().splitlines(keepends=True)[:12]))
    return file


def test_what_a_worker_states_is_a_wiring() -> None:
    assert stated_wiring(RIGHT, AS_RESOLVED, 8) == RIGHT
    skipped = AS_RESOLVED.model_copy(update={"fc_applied": False, "fc_input_width": 96})
    assert stated_wiring(RIGHT, skipped, 8) == Wiring(capture=(8,), fused=False, view=View.FINAL_NORM)
    lost = AS_RESOLVED.model_copy(update={"missing": ("midlayer.mlp.up_proj.weight",)})
    assert stated_wiring(RIGHT, lost, 8).random == {"midlayer.mlp.up_proj.weight"}


def test_a_worker_that_does_other_than_its_table_says_is_named_with_the_shapes(texts: Path) -> None:
    """The drafter is right and resolved rightly; the worker skipped fc because of a test of widths."""
    stated = AS_RESOLVED.model_copy(update={"capture_indexes": (8,), "fc_applied": False, "fc_input_width": 96})
    request = Request(TINY_PAIR / "target", TINY_PAIR / "drafter", Mode.PROBE, 4, 1.3, prompts=texts)
    report = validate(replace(request, engine=load("sglang@0.5.23"), stated=stated))
    assert report.probe is not None
    (cause,) = report.probe.causes
    assert cause.code == "TDM-ENGINE-DIFFERS"
    assert cause.sentence.startswith(
        "SGLang 0.5.23 states that it captures [8] and hands on 96 values with fc not applied; by its table it "
        "captures [2, 4, 5], 3 states of 96 side by side, 288 values, and fc.weight is [96, 288]: position-0 "
        "acceptance 0."
    )
    assert cause.sentence.endswith("look at SGLang 0.5.23, not at the drafter.")


def test_changes_are_compared_by_how_far_streams_move() -> None:
    one = changes(Wiring(capture=(3, 5, 6)), Wiring(capture=(2, 4, 5)))
    other = changes(Wiring(capture=(4, 6, 8)), Wiring(capture=(3, 5, 7)))
    assert one == other == {"captured streams move by -1"}
    assert changes(RIGHT, Wiring(capture=(2, 4, 5), ids=DraftIds.IDS)) != one


def test_two_unlike_drafters_that_fail_alike_point_at_the_engine(texts: Path, tmp_path: Path) -> None:
    """Both configs say the streams that their training captured, and this engine takes all of them one too high."""
    folders = []
    for name, source in (("one", TINY_PAIR / "drafter"), ("other", MORE / "norms" / "drafter")):
        folder = tmp_path / name
        shutil.copytree(source, folder)
        config = json.loads((folder / "config.json").read_text())
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 4, 5]
        (folder / "config.json").write_text(json.dumps(config))
        folders.append(folder)
    request = Request(TINY_PAIR / "target", folders[0], Mode.PROBE, 4, 1.3, prompts=texts, other_drafter=folders[1])
    report = validate(request)
    assert report.probe is not None
    doubt, cause = report.probe.causes
    assert doubt.code == "TDM-ENGINE-SUSPECTED"
    assert "the same change mends both (captured streams move by -1)" in doubt.sentence
    assert cause.code == "TDM-CAPTURE-INDEX-MISMATCH"
