"""The diagnosis on pairs of other families, shapes and seeds: the right cause first, and right pairs let be."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem_worker.checks.judge import open_pairing
from tandem_worker.contract import ProbeResult
from tandem_worker.engines import load
from tandem_worker.probe.resolved import choices_of, engine_wiring
from tandem_worker.probe.result import result_of
from tandem_worker.probe.run import Options, measure
from tandem_worker.probe.wiring import DraftIds, View, Wiring
from tandem_worker.validate import Mode, Request, validate
from tiny_pair.causes import FIRST_PAIR, MORE, Bench, held_out_prompts, mistaken, names, open_bench
from unit.pairs import TINY_PAIR

OPTIONS = Options(draft_length=4, min_accept_length=1.3)


@cache
def bench(name: str) -> Bench:
    torch.set_num_threads(1)
    return open_bench(name, held_out_prompts()[:12], tokens=56)


def diagnosed(on: Bench, wiring: Wiring) -> ProbeResult:
    """With the engine doing this, whatever the files say."""
    offered = replace(on.choices, restorable=wiring.random & on.parts.tensors.keys())
    return result_of(measure(on.pairing, OPTIONS, on.seen, on.parts, wiring, offered))


def codes(result: ProbeResult) -> list[str]:
    return [cause.code for cause in result.causes]


@pytest.mark.parametrize("name", names())
def test_a_right_pair_is_let_be_and_a_random_mistake_is_seen_through(name: str) -> None:
    on = bench(name)
    assert on.proposed(on.right) is None
    wrong = mistaken(random.Random(f"{name} 3"), on)
    assert on.proposed(wrong) == on.right, wrong


MISTAKES: dict[str, tuple[str, Callable[[Wiring], Wiring]]] = {
    "after the final norm": ("TDM-CAPTURE-NORM", lambda w: replace(w, view=View.FINAL_NORM)),
    "norm side": ("TDM-NORM-BEFORE-RESIDUAL", lambda w: replace(w, norm_before_residual=not w.norm_before_residual)),
    "fc skipped": ("TDM-FC-UNUSED", lambda w: replace(w, fused=False, capture=(8,), view=View.FINAL_NORM)),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_pair_whose_features_are_large_shows_the_side_of_a_norm(
    mistake: tuple[str, Callable[[Wiring], Wiring]],
) -> None:
    code, make = mistake
    on = bench("norms")
    result = diagnosed(on, make(on.right))
    assert codes(result) == [code]
    assert (result.causes[0].mended or 0) - result.causes[0].position0 > 0.02


# --- in files, for each engine's convention ---------------------------------------------------------------------------


def rewritten(
    drafter: Path, out: Path, tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]], **config: Any
) -> Path:
    """A copy with other tensors and config fields; None removes a field."""
    shutil.copytree(drafter, out)
    save_file(tensors(load_file(out / "model.safetensors")), out / "model.safetensors")
    values = json.loads((out / "config.json").read_text()) | config
    (out / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return out


def probed(target: Path, drafter: Path, engine: str, texts: Path) -> ProbeResult:
    report = validate(Request(target, drafter, Mode.PROBE, 4, 1.3, prompts=texts, engine=load(engine)))
    assert report.probe is not None, report.summary
    return report.probe


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "prompts.jsonl"
    file.write_text("".join((TINY_PAIR / "prompts.jsonl").read_text().splitlines(keepends=True)[:12]))
    return file


@pytest.mark.parametrize("engine", ["sglang@0.5.23", "vllm@0.33.0"])
def test_an_engine_that_sorts_the_ids_needs_fcs_columns_in_that_order(engine: str, texts: Path, tmp_path: Path) -> None:
    def turned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        low, middle, high = tensors["fc.weight"].chunk(3, 1)
        return tensors | {"fc.weight": torch.cat([high, middle, low], 1)}

    drafter = rewritten(FIRST_PAIR / "drafter", tmp_path / "drafter", turned)
    (cause,) = probed(FIRST_PAIR / "target", drafter, engine, texts).causes
    assert cause.code == "TDM-SLOT-ORDER"
    assert "will capture [2, 4, 5]; this drafter was trained on [5, 4, 2]" in cause.sentence
    assert "put the blocks of fc.weight's columns in the order of [2, 4, 5]" in cause.sentence


# --- two stories that were published, on a pair of the same structure -------------------------------------------------

LATENT = MORE / "latent"


def test_the_story_of_the_layer_that_was_dropped_and_the_offsets_that_were_read_as_ids(tmp_path: Path) -> None:
    """Server healthy, accept length 1.00: the engine had no parameter for `layers.0.*`, and took d2t for target ids."""

    def spelt(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}

    on = bench("latent")
    drafter = rewritten(LATENT / "drafter", tmp_path / "drafter", spelt)
    pairing = open_pairing(LATENT / "target", drafter, load("sglang@0.5.11"))
    dropped = engine_wiring(pairing)
    assert "midlayer.self_attn.q_proj.weight" in dropped.random
    wiring = replace(dropped, ids=DraftIds.IDS)
    result = result_of(measure(pairing, OPTIONS, on.seen, on.parts, wiring, choices_of(pairing, dropped)))
    assert result.accept_length < 1.02
    assert set(codes(result)) == {"TDM-TENSORS-DROPPED", "TDM-D2T-HOLDS-OFFSETS"}
    (layer,) = (cause for cause in result.causes if cause.code == "TDM-TENSORS-DROPPED")
    assert layer.sentence.startswith("SGLang 0.5.11 will drop tensors under their names and leave midlayer.")
    assert "tandem-worker convert DRAFTER COPY --target TARGET --engine sglang@0.5.11" in layer.sentence


def test_the_story_of_the_embedding_in_place_of_the_last_state(texts: Path, tmp_path: Path) -> None:
    """ids [-1, 2, 30] where [2, 30, 58] were meant, scaled down: SGLang up to 0.5.12 adds one to each."""
    nested = {"eagle_aux_hidden_state_layer_ids": [-1, 1, 2], "use_aux_hidden_state": True}
    drafter = rewritten(LATENT / "drafter", tmp_path / "drafter", dict, eagle_config=nested)
    (cause,) = probed(LATENT / "target", drafter, "sglang@0.5.12", texts).causes
    assert cause.sentence.startswith("SGLang 0.5.12 will capture [0, 2, 3]; this drafter was trained on [2, 3, 4]: ")
    assert cause.sentence.endswith("set eagle_config.eagle_aux_hidden_state_layer_ids to [1, 2, 3].")
    skipping = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": False}
    drafter = rewritten(LATENT / "drafter", tmp_path / "skipping", dict, eagle_config=skipping)
    (cause,) = probed(LATENT / "target", drafter, "vllm@0.33.0", texts).causes
    assert cause.code == "TDM-FC-UNUSED"
    assert "set eagle_config.use_aux_hidden_state to true" in cause.sentence
