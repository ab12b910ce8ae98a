"""Grafana's dashboards: as the builder writes them, complete, and with queries that Prometheus parses."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.dashboards import BOARDS, Board, as_json, read_again
from tools.prometheus import promtool

FOLDER = Path(__file__).resolve().parents[2] / "helm" / "tandem" / "dashboards"
BY_NAME = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


def written(board: Board) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads((FOLDER / f"{board.uid}.json").read_text())
    return dashboard


def panels(board: Board) -> list[dict[str, Any]]:
    return [panel for panel in written(board)["panels"] if panel["type"] != "row"]


@BY_NAME
def test_the_file_is_what_the_builder_writes(board: Board) -> None:
    assert (FOLDER / f"{board.uid}.json").read_text() == as_json(board), "run make chart"


@BY_NAME
def test_grafanas_own_types_read_it_without_loss(board: Board) -> None:
    text = (FOLDER / f"{board.uid}.json").read_text()
    assert read_again(text) == text


@BY_NAME
def test_every_panel_says_what_it_shows_in_which_unit(board: Board) -> None:
    assert len(panels(board)) == len(board.panels)
    for panel in panels(board):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "$datasource"
    assert len({panel["id"] for panel in panels(board)}) == len(panels(board))


@BY_NAME
def test_variables_that_are_used_are_there_and_match_series_without_the_label(board: Board) -> None:
    variables = {variable["name"]: variable for variable in written(board)["templating"]["list"]}
    text = " ".join(target["expr"] for panel in panels(board) for target in panel["targets"])
    assert set(re.findall(r"\$(?!__)(\w+)", text)) == set(variables) - {"datasource"}
    assert variables["cluster"]["allValue"] == ".*", "an absent label equals an empty one"
    assert re.findall(r'[^=]="\$', text) == [], "a variable of several values needs =~"


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    expressions = [
        target["expr"].replace("$__rate_interval", "1m")
        for board in BOARDS
        for p in panels(board)
        for target in p["targets"]
    ] + [annotation["expr"] for board in BOARDS for annotation in written(board).get("annotations", {}).get("list", [])]
    rules = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(expressions)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    result = subprocess.run([str(promtool()), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_boards_are_three() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == {"tandem-fleet", "tandem-pair", "tandem-operator"}
