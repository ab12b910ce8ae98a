"""Mistakes as they lie in files, under each engine's convention: `tandem-worker probe` names the right cause first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem_worker.probe.command import main
from unit.pairs import TINY_PAIR

NESTED, IDS = "eagle_config", "eagle_aux_hidden_state_layer_ids"
TRAINED_ON = [
    2,
    4,
    5,
]  # capture indexes of the tiny pair's drafter, d2t as offsets, theta 10000, no norm_before_residual


class Convention(NamedTuple):
    nested: bool  # where the engine reads layer ids
    less: int  # what an id is less than its capture index


ENGINES = {
    "builtin": Convention(nested=False, less=0),
    "sglang@0.5.23": Convention(nested=True, less=1),
    "vllm@0.33.0": Convention(nested=False, less=0),
}


class Files:
    """The drafter's config and tensors, with ids that make this engine capture what the drafter was trained on."""

    def __init__(self, engine: str, drafter: Path = TINY_PAIR / "drafter") -> None:
        self.convention = ENGINES[engine]
        self.config: dict[str, Any] = json.loads((drafter / "config.json").read_text())
        self.tensors = load_file(drafter / "model.safetensors")
        self.capture(TRAINED_ON)

    def capture(self, indexes: list[int]) -> None:
        ids = [index - self.convention.less for index in indexes]
        self.config[NESTED] = {"use_aux_hidden_state": True}
        (self.config[NESTED] if self.convention.nested else self.config)[IDS] = ids

    def slots(self, order: list[int]) -> None:
        """fc's columns as if the slots had been trained in another order."""
        blocks = self.tensors["fc.weight"].chunk(3, 1)
        self.tensors["fc.weight"] = torch.cat([blocks[slot] for slot in order], 1)

    def rename(self, old: str, new: str) -> None:
        self.tensors = {name.replace(old, new): tensor for name, tensor in self.tensors.items()}

    def write(self, folder: Path) -> Path:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file({name: tensor.contiguous() for name, tensor in self.tensors.items()}, folder / "model.safetensors")
        return folder


def d2t_as_ids(files: Files) -> None:
    files.tensors["d2t"] += torch.arange(len(files.tensors["d2t"]))


def poisoned(name: str, value: float) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files.tensors[name][3] = value

    return change


def emptied(name: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files.tensors[name].zero_()

    return change


class Told(NamedTuple):
    """What the first cause is to say, and, where an engine's own way with such files is another, what it says there."""

    code: str
    words: str
    but: dict[str, str] = {}  # engine -> code; "" for none, since this engine is not misled


CAPTURE, TRAINED = "TDM-CAPTURE-INDEX-MISMATCH", "this drafter was trained on [2, 4, 5]: position-0 acceptance 0."
ZERO, DROPPED, MISSING = "TDM-WEIGHTS-ALL-ZERO", "TDM-TENSORS-DROPPED", "TDM-PARAMETERS-MISSING"
LAYER = "midlayer.mlp.up_proj.weight"

MISTAKES: dict[str, tuple[Callable[[Files], None], Told]] = {
    "ids one up": (lambda f: f.capture([3, 5, 6]), Told(CAPTURE, TRAINED)),
    "ids one down": (lambda f: f.capture([1, 3, 4]), Told(CAPTURE, TRAINED)),
    "embedding in front": (lambda f: f.capture([0, 2, 4]), Told(CAPTURE, TRAINED)),
    "one slot elsewhere": (lambda f: f.capture([2, 4, 7]), Told(CAPTURE, TRAINED)),
    "slots in another order": (lambda f: f.slots([2, 0, 1]), Told("TDM-SLOT-ORDER", "was trained on [5, 2, 4]")),
    "d2t holds ids": (d2t_as_ids, Told("TDM-D2T-HOLDS-IDS", "needs d2t as target ids")),
    "d2t never filled": (emptied("d2t"), Told("TDM-D2T-AGAINST-T2D", "needs the ids that t2d marks")),
    "norm on the other side": (  # SGLang has no such flag, and takes the side that this drafter was trained for
        lambda f: f.config.update(norm_before_residual=True),
        Told("TDM-NORM-BEFORE-RESIDUAL", "was trained with false", {"sglang@0.5.23": ""}),
    ),
    "rope theta": (lambda f: f.config.update(rope_theta=100.0), Told("TDM-ROPE-THETA-WRONG", "trained with 10000")),
    "NaN": (poisoned(LAYER, float("nan")), Told("TDM-NAN-LOGITS", LAYER)),
    "infinity": (poisoned("fc.weight", float("inf")), Told("TDM-NAN-LOGITS", "fc.weight")),
    "zero layer": (emptied(LAYER), Told(ZERO, f"{LAYER} is all zeros")),
    "zero fc": (emptied("fc.weight"), Told(ZERO, "fc.weight is all zeros")),
    "zero head": (emptied("lm_head.weight"), Told(ZERO, "lm_head.weight is all zeros")),
    "layer under another name": (
        lambda f: f.rename("midlayer.", "block."),
        Told(DROPPED, "midlayer.hidden_norm.weight"),
    ),
    "no head": (lambda f: f.rename("lm_head.", "head."), Told(MISSING, "lm_head.weight")),
    "fc skipped": (
        lambda f: f.config[NESTED].update(use_aux_hidden_state=False),
        Told("TDM-FC-UNUSED", "was trained on [2, 4, 5] through fc", {"builtin": "TDM-SETTING-NOT-SUPPORTED"}),
    ),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    file = tmp_path_factory.mktemp("texts") / "prompts.jsonl"
    file.write_text("".join((TINY_PAIR / "prompts.jsonl").read_text().splitlines(keepends=True)[:12]))
    return file


Asked = Callable[..., dict[str, Any]]


@pytest.fixture
def asked(texts: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """Runs the command; its document. One pass of each target serves all drafters."""

    def ask(drafter: Path, engine: str, target: Path = TINY_PAIR / "target") -> dict[str, Any]:
        capsys.readouterr()
        kept = texts.parent / target.parent.name
        options = [f"--engine={engine}", f"--prompts={texts}", f"--resume={kept}", "--format=json"]
        main([str(target), str(drafter), *options])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return ask


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_first_cause_is_the_mistake_that_was_made(mistake: str, engine: str, asked: Asked, tmp_path: Path) -> None:
    change, told = MISTAKES[mistake]
    files = Files(engine)
    change(files)
    document = asked(files.write(tmp_path / "drafter"), engine)
    code = told.but.get(engine, told.code)
    assert [cause["code"] for cause in document["causes"][:1]] == ([code] if code else []), document["summary"]
    if not code:
        assert document["verdict"].startswith("Fits")
    if engine not in told.but:
        assert told.words in document["causes"][0]["sentence"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_norm_that_is_declared_and_has_no_weights_is_switched_off(engine: str, asked: Asked, tmp_path: Path) -> None:
    """No copy of the drafter would have them: it was trained without."""
    files = Files(engine, TINY_PAIR.parent / "probe-pairs" / "norms" / "drafter")
    files.config["norm_before_fc"] = True
    (cause,) = asked(files.write(tmp_path / "drafter"), engine)["causes"]
    assert cause["code"] == "TDM-NORM-BEFORE-FC"
    assert "will run it with norm_before_fc true; this drafter was trained with false" in cause["sentence"]
    assert cause["sentence"].endswith("; set norm_before_fc to false in the drafter's config.json.")


@pytest.mark.parametrize("engine", ENGINES)
def test_files_without_a_mistake_are_let_be_and_a_foreign_drafter_is_not(
    engine: str, asked: Asked, tmp_path: Path
) -> None:
    files = Files(engine)
    document = asked(files.write(tmp_path / "drafter"), engine)
    assert (document["verdict"], document["causes"]) == ("Fits", [])
    files.tensors = load_file(TINY_PAIR / "drafter-foreign" / "model.safetensors")
    (cause,) = asked(files.write(tmp_path / "foreign"), engine)["causes"]
    assert cause["code"] == "TDM-DRAFTER-DOES-NOT-PREDICT"


@pytest.mark.parametrize(
    ("ids", "engine", "right"),
    [
        ([1, 2, 3], "sglang@0.5.12", True),
        ([1, 2, 3], "sglang@0.5.23", True),  # the first is 1
        ([2, 3, 4], "sglang@0.5.12", False),
        ([2, 3, 4], "sglang@0.5.23", True),
    ],
)
def test_the_same_ids_are_right_in_one_version_and_wrong_in_another(
    ids: list[int], engine: str, right: bool, asked: Asked, tmp_path: Path
) -> None:
    """From 0.5.13 on SGLang takes ids as they stand for targets like Kimi-K2.5 (sgl-project/sglang#25454)."""
    pair = TINY_PAIR.parent / "probe-pairs" / "latent"
    drafter = tmp_path / "drafter"
    shutil.copytree(pair / "drafter", drafter)
    config = json.loads((drafter / "config.json").read_text())
    config[NESTED][IDS] = ids
    (drafter / "config.json").write_text(json.dumps(config))
    causes = asked(drafter, engine, pair / "target")["causes"]
    assert [cause["code"] for cause in causes] == ([] if right else [CAPTURE])
    if not right:
        assert "SGLang 0.5.12 will capture [3, 4, 5]; this drafter was trained on [2, 3, 4]" in causes[0]["sentence"]
