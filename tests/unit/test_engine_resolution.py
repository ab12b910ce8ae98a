"""What the resolution says of a pair, engine by engine; for the builtin one it must be what its loader says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandem_worker.check import check, explain
from tandem_worker.checkpoint import open_checkpoint, read_drafter, read_target
from tandem_worker.checkpoint.declared import read_declared_drafter, read_declared_target
from tandem_worker.checks import EngineResolution, Origin, Use, resolve, resolve_for
from tandem_worker.engines import load
from tandem_worker.validate import _reported
from unit.pairs import HIDDEN, TINY_PAIR, Files, drafter_files, target_files

IDS = "eagle_aux_hidden_state_layer_ids"


def resolved(folder: Path, engine: str, drafter: Files, target: Files | None = None) -> EngineResolution:
    ours = open_checkpoint((target or target_files()).write(folder / "target"))
    theirs = open_checkpoint(drafter.write(folder / "drafter"))
    return resolve_for(read_declared_target(ours), read_declared_drafter(theirs), load(engine))


@pytest.mark.parametrize("name", ["drafter", "drafter-foreign"])
def test_the_builtin_engine_is_resolved_as_its_loader_does(name: str) -> None:
    ours, theirs = open_checkpoint(TINY_PAIR / "target"), open_checkpoint(TINY_PAIR / name)
    by_table = resolve_for(read_declared_target(ours), read_declared_drafter(theirs), load("builtin"))
    target = read_target(ours)
    assert _reported(by_table) == resolve(target, read_drafter(theirs, target), ours, theirs)


def test_a_changed_drafter_of_the_builtin_engine_is_resolved_as_its_loader_does(tmp_path: Path) -> None:
    drafter = drafter_files()
    drafter.rename("midlayer.", "model.layers.0.")
    drafter.rename("fc.weight", "fusion.weight")
    drafter.tensors["embed_tokens.weight"] = np.ones((64, HIDDEN), np.float32)
    by_table = resolved(tmp_path, "builtin", drafter)
    ours, theirs = open_checkpoint(tmp_path / "target"), open_checkpoint(tmp_path / "drafter")
    target = read_target(ours)
    assert _reported(by_table) == resolve(target, read_drafter(theirs, target), ours, theirs)


@pytest.mark.parametrize(
    ("engine", "captured", "where"),
    [
        ("builtin", (2, 4, 5), IDS),
        ("vllm@0.33.0", (2, 4, 5), IDS),
        ("sglang@0.5.23", (2, 4, 5), ""),  # reads the nested list only, and this is its default
    ],
)
def test_where_layer_ids_are_read(tmp_path: Path, engine: str, captured: tuple[int, ...], where: str) -> None:
    resolution = resolved(tmp_path, engine, drafter_files())
    assert resolution.captured == captured
    assert resolution.ids_where == where


def test_what_becomes_of_tensors_differs(tmp_path: Path) -> None:
    drafter = drafter_files()
    drafter.tensors["midlayer.self_attn.q_norm.weight"] = np.ones(6, np.float32)
    drafter.tensors["fc.bias"] = np.ones(HIDDEN, np.float32)
    uses = {
        engine: resolved(tmp_path / engine[:4], engine, drafter).tensors for engine in ("vllm@0.33.0", "sglang@0.5.23")
    }
    assert uses["vllm@0.33.0"]["midlayer.self_attn.q_norm.weight"][0] is Use.REFUSED
    assert uses["vllm@0.33.0"]["fc.bias"][0] is Use.DROPPED
    assert uses["sglang@0.5.23"]["midlayer.self_attn.q_norm.weight"][0] is Use.DROPPED


def test_where_a_missing_head_comes_from(tmp_path: Path) -> None:
    def headless(stated: int | None) -> Files:
        drafter = drafter_files()
        for name in ("lm_head.weight", "d2t", "t2d"):
            del drafter.tensors[name]
        drafter.config["draft_vocab_size"] = stated
        return drafter

    def origin(engine: str, stated: int | None) -> Origin:
        folder = tmp_path / f"{engine}{stated}"
        return resolved(folder, engine, headless(stated)).parameters["lm_head.weight"]

    assert origin("sglang@0.5.23", 64) is Origin.RANDOM
    assert origin("sglang@0.5.23", None) is Origin.TARGET
    assert origin("vllm@0.33.0", 64) is Origin.TARGET


def test_what_the_table_does_not_tell_is_named_and_the_rest_is_resolved(tmp_path: Path) -> None:
    resolution = resolved(tmp_path, "sglang@7.0", drafter_files())
    assert resolution.captured is None
    assert resolution.hook is None
    assert "the layers that are captured" in resolution.unknown
    assert resolution.parameters["fc.weight"] is Origin.FILES


def test_explain_shows_layers_tensors_and_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain([str(TINY_PAIR / "target"), str(TINY_PAIR / "drafter"), "--engine", "sglang@0.5.12"]) == 0
    shown = capsys.readouterr().out
    assert "[2, 4, 5]" in shown
    assert "capture index = id + 1" in shown
    assert "shared from the target" in shown


def test_all_engines_are_a_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert check([str(TINY_PAIR / "target"), str(TINY_PAIR / "drafter"), "--all-engines"]) == 0
    shown = capsys.readouterr().out
    for word in ("sglang", "0.5.12", "vllm", "0.33.0", "builtin"):
        assert word in shown


@pytest.mark.parametrize(("kind", "begins"), [("sarif", '{\n "$schema"'), ("html", "<!doctype html>"), ("json", "{")])
def test_other_formats(kind: str, begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(TINY_PAIR / "target"), str(TINY_PAIR / "drafter-nowhere"), "--format", kind]
    assert check(arguments) == 2
    shown = capsys.readouterr().out
    assert shown.startswith(begins)
    assert "TDM-FILE-MISSING" in shown
