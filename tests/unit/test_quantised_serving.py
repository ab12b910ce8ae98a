"""A quantised target is served with the text of the weights that it stands for; what is not read is refused, with the
same words, by the static checks and by the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from tandem_worker.checkpoint import open_checkpoint, read_target
from tandem_worker.checks.judge import judge, open_pairing
from tandem_worker.contract import ExitCode
from tandem_worker.engines import load
from tandem_worker.finding import Finding, Severity, Verdict
from tandem_worker.models.layers import Linear
from tandem_worker.models.load import load_target
from tandem_worker.server import command
from tandem_worker.server import start as start_module
from tandem_worker.server.start import CannotStart, Settings, start
from unit.pairs import TINY_PAIR, copy_of
from unit.quantising import Quantise, Tensors, by_block, by_channel, by_channel_in_integers, by_tensor, int4, written
from unit.serving import CPU, accepted, generate, load_pair, make_engine, prompts, tiny_settings

DRAFTER = TINY_PAIR / "drafter"
PROJECTION = "model.layers.3.mlp.down_proj"


FORMS: dict[str, Quantise] = {
    "fp8 by channel": by_channel,
    "fp8 by tensor, static": by_tensor,
    "fp8 by block": by_block,
    "int8 by channel": by_channel_in_integers,
    "int4, packed": partial(int4, group=16),
}


def same_weights(stored: Path, meant: Path) -> bool:
    both = [load_pair(folder, DRAFTER)[0].named_parameters() for folder in (stored, meant)]
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(*both, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_those_that_it_stands_for(tmp_path: Path, form: str) -> None:
    stored, meant = written(tmp_path, FORMS[form])
    assert same_weights(stored, meant)
    assert not same_weights(stored, TINY_PAIR / "target")  # something was rounded


def test_on_a_gpu_weights_of_8_bits_stay_so_and_stand_for_the_same_weights(tmp_path: Path) -> None:
    stored, meant = written(tmp_path, by_channel)
    checkpoint = open_checkpoint(stored)
    llama = load_target(checkpoint, read_target(checkpoint), torch.bfloat16, CPU, keep_8_bits=True)
    twin = dict(load_pair(meant, DRAFTER)[0].named_parameters())
    matrices = {name: module for name, module in llama.named_modules() if isinstance(module, Linear)}
    assert {name for name, module in matrices.items() if module.weight.itemsize > 1} == {"lm_head"}
    for name, module in matrices.items():
        assert torch.equal(module.plain(torch.bfloat16), twin[f"{name}.weight"].bfloat16()), name


@pytest.mark.parametrize(
    ("device", "restore", "stay"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)]
)
def test_weights_of_8_bits_stay_so_on_a_gpu_unless_speed_is_wanted_more_than_memory(
    monkeypatch: pytest.MonkeyPatch, device: str, restore: bool, stay: bool
) -> None:
    asked: list[Settings] = []

    def start(settings: Settings) -> None:
        asked.append(settings)
        raise CannotStart(ExitCode.CANNOT_LOAD, "CannotLoad", "It was asked, no more.")

    monkeypatch.setattr(command, "start", start)
    monkeypatch.setattr(start_module, "multiplies_8_bits", lambda: True)
    app = typer.Typer()
    app.command()(command.serve)
    wanted = ["--restore-8-bits"] if restore else []
    CliRunner().invoke(
        app, [f"--target={TINY_PAIR / 'target'}", "--model=tiny", "--port=0", f"--device={device}", *wanted]
    )
    assert [settings.keep_8_bits for settings in asked] == [stay]


def test_text_is_that_of_the_weights_it_stands_for_with_speculation_and_without(tmp_path: Path) -> None:
    stored, meant = written(tmp_path, by_block)
    some, pair = prompts()[:3], load_pair(stored, DRAFTER)
    engine = make_engine(pair=pair)
    said = generate(engine, some, 20)
    assert said == generate(make_engine(speculate=False, pair=pair), some, 20)
    assert said == generate(make_engine(speculate=False, pair=load_pair(meant, DRAFTER)), some, 20)
    assert sum(accepted(engine)) > 10


def judged(target: Path, drafter: Path = DRAFTER) -> tuple[Verdict, list[Finding]]:
    judgement = judge(open_pairing(target, drafter, load("builtin")))
    return judgement.verdict, [finding for finding in judgement.findings if finding.severity is Severity.ERROR]


def test_what_validation_lets_pass_a_worker_serves(tmp_path: Path) -> None:
    stored, _ = written(tmp_path, by_tensor)
    judgement = judge(open_pairing(stored, DRAFTER, load("builtin")))
    assert judgement.verdict is Verdict.FITS
    (told,) = [finding for finding in judgement.findings if finding.code == "TDM-SCALES-NOT-APPLIED"]
    assert (told.severity, told.found) == (Severity.NOTE, "56 input_scale")
    worker = start(replace(tiny_settings(), target=stored))
    worker.engine.stop()
    assert not worker.unready()
    assert worker.status().speculation_enabled


def change(name: str, value: Tensor | None) -> Callable[[Tensors], None]:
    """Of a tensor behind PROJECTION; None takes it away."""

    def change(tensors: Tensors) -> None:
        tensors.pop(f"{PROJECTION}.{name}", None)
        if value is not None:
            tensors[f"{PROJECTION}.{name}"] = value

    return change


def all_of(*changes: Callable[[Tensors], None]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for one in changes:
            one(tensors)

    return change


def quantised_head(tensors: Tensors) -> None:
    tensors |= {f"lm_head.{part}": value for part, value in by_channel(tensors["lm_head.weight"])[0].items()}


def norm_of_8_bits(tensors: Tensors) -> None:
    tensors |= {"model.norm.weight": torch.ones(96).to(torch.float8_e4m3fn), "model.norm.weight_scale": torch.ones(1)}


INTEGERS = torch.zeros(96, 144, dtype=torch.int8)
NOT_READ: dict[str, tuple[Callable[[Tensors], None], str]] = {
    "no scale": (change("weight_scale", None), "weight is F8_E4M3 without a scale"),
    "a scale of another matrix": (change("weight_scale", torch.ones(95, 1)), "weight_scale is F32 [95, 1]"),
    "a scale of no shape": (change("weight_scale", torch.ones(96, 1, 1)), "weight_scale is F32 [96, 1, 1]"),
    "one scale in a heap": (change("weight_scale", torch.ones(1, 1, 1)), "weight_scale is F32 [1, 1, 1]"),
    "a norm of 8 bits": (norm_of_8_bits, "model.norm.weight_scale is F32 [1] for a matrix of [96]"),
    "scales that are no floats": (change("weight_scale", torch.ones(96, 1).byte()), "weight_scale is U8 [96, 1]"),
    "AWQ": (all_of(change("weight", None), change("qweight", torch.ones(2))), "qweight belongs to a quantisation"),
    "NVFP4": (change("weight", torch.zeros(96, 72, dtype=torch.uint8)), "weight is stored as U8"),
    "a zero point": (all_of(change("weight", INTEGERS), change("weight_zero_point", torch.ones(1))), "a zero point"),
    "a head of 8 bits": (quantised_head, "lm_head.weight is quantised; embedding and head are read as floats only"),
    "an empty scale of packed integers": (
        all_of(
            change("weight", None),
            change("weight_packed", torch.zeros(96, 18, dtype=torch.int32)),
            change("weight_scale", torch.ones(96, 0)),
        ),
        "weight_scale is F32 [96, 0]",
    ),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_what_is_not_read_is_refused_by_validation_and_by_the_worker_in_the_same_words(
    tmp_path: Path, name: str
) -> None:
    damage, says = NOT_READ[name]
    stored, _ = written(tmp_path, by_channel)
    tensors = load_file(stored / "model.safetensors")
    damage(tensors)
    save_file(tensors, stored / "model.safetensors")
    verdict, (finding,) = judged(stored)
    assert (verdict, finding.code) == (Verdict.DOES_NOT_FIT, "TDM-QUANTIZATION-NOT-READ")
    assert says in finding.message
    assert finding.where in finding.message
    with pytest.raises(CannotStart) as caught:
        start(replace(tiny_settings(), target=stored))
    assert caught.value.failure.message == f"{finding.message} {finding.action}".strip()


@pytest.mark.parametrize("rotations", [{}, {"config_groups": {"R3": {"type": "hadamard"}}}])
def test_weights_that_ask_for_rotated_activations_are_refused(tmp_path: Path, rotations: dict[str, Any]) -> None:
    method = {"quant_method": "compressed-tensors", "transform_config": rotations}
    target = copy_of("target", tmp_path, quantization_config=method)
    verdict, findings = judged(target)
    if not rotations:
        assert verdict is Verdict.FITS
        return
    assert [finding.where for finding in findings] == ["quantization_config.transform_config"]
    with pytest.raises(CannotStart, match="activations are to be rotated"):
        start(replace(tiny_settings(), target=target))


def test_a_layer_of_floats_among_quantised_ones_is_read_as_it_stands(tmp_path: Path) -> None:
    stored, meant = written(tmp_path, by_channel)
    tensors, floats = load_file(stored / "model.safetensors"), load_file(meant / "model.safetensors")
    tensors[f"{PROJECTION}.weight"] = floats[f"{PROJECTION}.weight"]
    del tensors[f"{PROJECTION}.weight_scale"]
    save_file(tensors, stored / "model.safetensors")
    assert judged(stored) == (Verdict.FITS, [])
    assert same_weights(stored, meant)


def test_a_drafter_of_8_bits_is_refused_by_validation_and_by_the_worker(tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path)
    tensors = load_file(drafter / "model.safetensors")
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, drafter / "model.safetensors")
    verdict, (finding,) = judged(TINY_PAIR / "target", drafter)
    assert (verdict, finding.code) == (Verdict.DOES_NOT_FIT, "TDM-DTYPE-NOT-SUPPORTED")
    with pytest.raises(CannotStart) as caught:
        start(replace(tiny_settings(), drafter=drafter))
    assert caught.value.failure.message == f"{finding.message} {finding.action}".strip()
