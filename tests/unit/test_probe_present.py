"""`tandem-worker probe`: exit codes, one document on standard output, pictures that need nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tandem_worker.contract import ValidationReport
from tandem_worker.engines import load
from tandem_worker.probe import present
from tandem_worker.probe.command import main
from tandem_worker.probe.picture import HeatMap, heat_blocks, heat_svg, positions_svg
from tandem_worker.probe.run import Probed
from tandem_worker.validate import Mode, Request, examine
from unit.pairs import TINY_PAIR, copy_of

ENGINE = load("sglang@0.5.12")
Seen = tuple[ValidationReport, Probed | None]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "prompts.jsonl"
    file.write_text("".join((TINY_PAIR / "prompts.jsonl").read_text().splitlines(keepends=True)[:12]))
    return file


@pytest.fixture(scope="module")
def shifted(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The embedding is captured in place of the last state: ids that begin at -1."""
    nested = {"eagle_aux_hidden_state_layer_ids": [-1, 1, 3], "use_aux_hidden_state": True}
    drafter = copy_of("drafter", tmp_path_factory.mktemp("pair"), eagle_config=nested)
    request = Request(TINY_PAIR / "target", drafter, Mode.PROBE, 4, 1.3, prompts=texts, engine=ENGINE)
    return examine(request)


def test_verdict_figures_and_causes_stand_at_the_top_of_the_document(shifted: Seen) -> None:
    document = json.loads(present.as_json(*shifted, ENGINE))
    assert list(document)[:4] == ["verdict", "position0", "accept_length", "causes"]
    assert document["verdict"] == "DoesNotFit"
    assert document["position0"] < 0.2
    assert 1 <= document["accept_length"] < 1.4
    (cause,) = document["causes"]
    assert cause["code"] == "TDM-CAPTURE-INDEX-MISMATCH"
    assert cause["sentence"].startswith("SGLang 0.5.12 will capture [0, 2, 4]; this drafter was trained on [2, 4, 5]: ")
    assert cause["sentence"].endswith("set eagle_config.eagle_aux_hidden_state_layer_ids to [1, 3, 4].")
    assert cause["figures"]["position0"] < 0.2 < 0.5 < cause["figures"]["mended"]
    assert (document["engine"], document["version"]) == ("sglang", "0.5.12")
    best, *others = document["wirings"]
    assert best["capture"] == [2, 4, 5]
    assert all(best["overlap"] >= other["overlap"] for other in others)
    assert len(document["slots"]) == 3
    assert {len(row) for row in document["slots"]} == {9}


def test_the_map_of_slots_by_streams_is_darkest_where_the_drafter_was_trained(shifted: Seen) -> None:
    slots = json.loads(present.as_json(*shifted, ENGINE))["slots"]
    assert [row.index(max(row)) for row in slots] == [2, 4, 5]


def test_the_page_fetches_nothing_and_its_pictures_are_whole(shifted: Seen) -> None:
    page = present.as_html(*shifted, ENGINE)
    assert "<script" not in page
    assert not re.search(r"(?:src|href)\s*=|url\(|@import", page)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 2
    bars, heat = (ElementTree.fromstring(picture) for picture in pictures)
    assert len(heat.findall("{*}rect")) == 3 * 9 + 3
    assert len([bar for bar in bars.findall("{*}rect") if bar.find("{*}title") is not None]) == 2 * 4
    assert "this drafter was trained on [2, 4, 5]" in page
    assert "<h1>Does not fit: SGLang 0.5.12</h1>" in page
    assert "<td>capture: [2, 4, 5]; norm before residual: true</td>" in page


@pytest.mark.parametrize("layers", [3, 9, 33, 62, 128])
def test_words_have_room_in_the_picture_and_do_not_lie_on_each_other(layers: int) -> None:
    """In units of a digit of font size 12, which is 7 wide."""
    heat = HeatMap(tuple(tuple(i / layers for i in range(layers)) for _ in range(3)), (0, 1, 2))
    picture = ElementTree.fromstring(heat_svg(heat))
    labels: dict[float, list[tuple[float, float]]] = {}
    for word in picture.findall("{*}text"):
        wide = 7 * len(word.text or "")
        left = float(word.attrib["x"]) - wide * {"start": 0, "middle": 0.5, "end": 1}[word.attrib["text-anchor"]]
        assert left >= 0
        assert left + wide <= float(picture.attrib["width"]) + 1
        labels.setdefault(float(word.attrib["y"]), []).append((left, left + wide))
    for row in labels.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(sorted(row)))


def test_a_terminal_gets_the_sentence_and_colour_blocks(shifted: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    present.as_table(*shifted)
    printed = capsys.readouterr().out
    assert "DOES NOT FIT" in printed
    assert "slot 2" in printed
    assert printed.count("[]") >= 3


@pytest.mark.parametrize("layers", [3, 9, 62])
def test_pictures_of_any_depth(layers: int) -> None:
    heat = HeatMap(tuple(tuple(0.1 * i / layers for i in range(layers)) for _ in range(3)), (0, 1, layers - 1))
    assert len(ElementTree.fromstring(heat_svg(heat)).findall("{*}rect")) == 3 * layers + 3
    assert heat_blocks(heat).plain.count("[]") == 4
    ElementTree.fromstring(positions_svg([("a < b", (0.0, 1.0))]))
    nothing = HeatMap(((0.0, 0.0),), (1,))
    ElementTree.fromstring(heat_svg(nothing))


def test_what_the_files_prove_is_the_cause_when_nothing_was_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = copy_of("drafter", tmp_path, intermediate_size=128)
    assert main([str(TINY_PAIR / "target"), str(drafter), "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["position0"] is None
    assert document["causes"][0]["code"] == "TDM-DRAFTER-SHAPE"


def test_a_pair_that_can_not_be_read_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere"), str(TINY_PAIR / "drafter"), "--format", "html"]) == 2
    assert "does not exist" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--engine", "triton"], ["--draft-length", "0"], ["--trained-on", "two"]])
def test_arguments_that_can_not_be_meant_are_refused(wrong: list[str], texts: Path) -> None:
    command: Callable[[list[str]], int] = main
    with pytest.raises(SystemExit) as caught:
        command([str(TINY_PAIR / "target"), str(TINY_PAIR / "drafter"), *wrong])
    assert caught.value.code == 2
