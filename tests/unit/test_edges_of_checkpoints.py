"""What published checkpoints are at their edges: what is validated as fitting is served, and what is not is told in
words, by a finding, and soon.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from tandem_worker.checkpoint import open_checkpoint, strict_json
from tandem_worker.checkpoint.tokenizer import read_tokenizer
from tandem_worker.checks import pairing as pairing_module
from tandem_worker.checks.judge import judge, open_pairing
from tandem_worker.contract import SelfTestOutcome, ValidationReport, Verdict
from tandem_worker.engines import load
from tandem_worker.finding import Finding
from tandem_worker.models.load import padded
from tandem_worker.probe.build import as_halves
from tandem_worker.probe.prompts import Prompt, tokenize
from tandem_worker.server.start import start
from tandem_worker.validate import Mode, Request, validate
from unit.pairs import TINY_PAIR, copy_of
from unit.serving import generate, load_pair, make_engine, prompts, tiny_settings

TARGET, DRAFTER = TINY_PAIR / "target", TINY_PAIR / "drafter"
FIT = (Verdict.FITS, Verdict.FITS_WITH_WARNINGS)


def changed(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


def probed(target: Path, drafter: Path, texts: Path = TINY_PAIR / "prompts.jsonl") -> ValidationReport:
    return validate(Request(target, drafter, Mode.PROBE, 4, 1.3, prompts=texts))


def padded_target(folder: Path, rows: int) -> Path:
    size = json.loads((TARGET / "config.json").read_text())["vocab_size"]

    def pad(tensors: dict[str, Tensor]) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name in tensors:
                tensors[name] = torch.nn.functional.pad(tensors[name], (0, 0, 0, rows))

    return changed(copy_of("target", folder, vocab_size=size + rows), pad)


@pytest.mark.parametrize("rows", [1, 16, 128])
def test_a_drafter_is_served_with_a_target_whose_vocabulary_is_padded_beyond_its_own(tmp_path: Path, rows: int) -> None:
    target = padded_target(tmp_path, rows)
    assert judge(open_pairing(target, DRAFTER, load("builtin"))).verdict in FIT
    report = probed(target, DRAFTER)
    assert report.verdict in FIT, report.summary
    worker = start(replace(tiny_settings(), target=target))
    worker.engine.stop()
    assert worker.status().self_test.outcome is SelfTestOutcome.ALIVE
    some = prompts()[:3]
    said = generate(make_engine(pair=load_pair(target, DRAFTER)), some, 20)
    assert said == generate(make_engine(), some, 20)


@pytest.mark.parametrize("missing", [1, 8])
def test_a_drafter_whose_t2d_ends_before_the_padding_is_served(tmp_path: Path, missing: int) -> None:
    def cut(tensors: dict[str, Tensor]) -> None:
        assert not tensors["t2d"][-missing:].any(), "else these ids could not be drafted any more"
        tensors["t2d"] = tensors["t2d"][:-missing].clone()

    target, drafter = padded_target(tmp_path, 16), copy_of("drafter", tmp_path)
    size = json.loads((target / "config.json").read_text())["vocab_size"]
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    changed(drafter, lambda tensors: tensors.update(t2d=torch.nn.functional.pad(tensors["t2d"], (0, 16))))
    changed(drafter, cut)
    assert judge(open_pairing(target, drafter, load("builtin"))).verdict in FIT
    report = probed(target, drafter)
    assert report.verdict in FIT, report.summary
    worker = start(replace(tiny_settings(), target=target, drafter=drafter))
    worker.engine.stop()
    assert worker.status().self_test.outcome is SelfTestOutcome.ALIVE


@pytest.mark.parametrize(("have", "need", "after"), [(3, 5, 5), (5, 5, 5), (7, 5, 7)])
def test_a_map_of_drafted_ids_is_made_longer_and_never_cut(have: int, need: int, after: int) -> None:
    marked = padded("t2d", torch.ones(have, dtype=torch.bool), (need,))
    assert (len(marked), int(marked.sum())) == (after, have)
    assert len(padded("d2t", torch.ones(have), (need,))) == have


@pytest.mark.parametrize(
    "saved",
    [
        {"truncation": {"max_length": 4, "direction": "Right", "strategy": "LongestFirst", "stride": 0}},
        {"truncation": {"max_length": 4, "direction": "Left", "strategy": "LongestFirst", "stride": 0}},
        {"padding": {"strategy": {"Fixed": 40}}},
        {"padding": {"strategy": "BatchLongest", "pad_to_multiple_of": 8}},
    ],
    ids=["cut behind", "cut in front", "padded", "padded to a multiple"],
)
def test_a_text_is_read_whole_whatever_the_tokenizer_was_last_used_for(
    tmp_path: Path, saved: dict[str, dict[str, object]]
) -> None:
    text = "Q: Where does the water of a river come from?"
    expected = Tokenizer.from_file(str(TARGET / "tokenizer.json")).encode(text).ids
    padding = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    saved = {name: padding | value if name == "padding" else value for name, value in saved.items()}
    target = copy_of("target", tmp_path)
    file = target / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | saved))
    assert Tokenizer.from_file(str(file)).encode(text).ids != expected
    assert read_tokenizer(target).encode(text).ids == expected
    (row,) = tokenize([Prompt(text)], open_checkpoint(target), 512, 512)
    assert row == expected


def found(target: Path, drafter: Path, engine: str = "builtin") -> dict[str, Finding]:
    return {finding.code: finding for finding in judge(open_pairing(target, drafter, load(engine))).findings}


@pytest.mark.parametrize("engine", ["builtin", "sglang@0.5.23", "vllm@0.33.0", "any"])
@pytest.mark.parametrize("layers", [2, 3])
def test_a_drafter_with_fewer_layers_than_its_config_says_fits_nowhere(
    tmp_path: Path, engine: str, layers: int
) -> None:
    drafter = copy_of("drafter", tmp_path, num_hidden_layers=layers)
    assert found(TARGET, drafter, engine)["TDM-LAYER-COUNT"].expected == "1"
    assert judge(open_pairing(TARGET, drafter, load(engine))).verdict is Verdict.DOES_NOT_FIT


@pytest.mark.parametrize("layers", [10_001, 1_000_000, 10**9, 2**53])
@pytest.mark.parametrize("part", ["target", "drafter"])
def test_a_count_of_layers_that_can_not_be_is_told_at_once(tmp_path: Path, part: str, layers: int) -> None:
    wrong = copy_of(part, tmp_path, num_hidden_layers=layers)
    pair = (wrong, DRAFTER) if part == "target" else (TARGET, wrong)
    assert judge(open_pairing(*pair, load("builtin"))).verdict not in FIT
    assert "TDM-VALIDATOR-FAILED" not in found(*pair)


def test_a_map_longer_than_any_vocabulary_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_pairing(TARGET, DRAFTER, load("builtin")).d2t is not None
    monkeypatch.setattr(pairing_module, "LARGEST_VOCABULARY", 8)
    pairing = open_pairing(TARGET, DRAFTER, load("builtin"))
    assert (pairing.d2t, pairing.t2d) == (None, None)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize("depth", [200, 253, 254, 255, 300])
def test_json_is_read_however_deep_it_is_nested(depth: int) -> None:
    value = strict_json.parse(nested(depth))
    for _ in range(depth):
        assert isinstance(value, dict)
        value = value["a"]
    assert value == 1


@pytest.mark.parametrize("depth", [2000, 100_000])
def test_json_too_deep_for_any_reader_is_refused_in_words(depth: int) -> None:
    with pytest.raises(strict_json.JsonError, match="nested too deeply"):
        strict_json.parse(nested(depth))


@pytest.mark.parametrize("text", ["a", "", "ab"])
def test_texts_too_short_to_draft_after_are_told_as_too_little(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": text}) + "\n" if text else "\n")
    report = probed(TARGET, DRAFTER, file)
    assert report.verdict is Verdict.COULD_NOT_CHECK
    assert {finding.code for finding in report.findings} & {"TDM-TOO-LITTLE-TEXT", "TDM-PROMPTS-UNUSABLE"}


def rotated_neighbours(x: Tensor, angles: Tensor) -> Tensor:
    """x [..., D], angles [D/2]: each pair of neighbours is turned."""
    even, odd = x[..., ::2], x[..., 1::2]
    turned = even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()
    return torch.stack(turned, -1).flatten(-2)


def rotated_halves(x: Tensor, angles: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1)


def test_turning_neighbours_is_turning_halves_of_permuted_weights_biases_and_gains() -> None:
    heads, size, inputs = 3, 8, 5
    torch.manual_seed(0)
    x, y = torch.randn(2, inputs, dtype=torch.float64)
    parts = [torch.randn(shape, dtype=torch.float64) for shape in ((heads * size, inputs), (heads * size,), (size,))]
    queries, keys = ([part + shift for part in parts] for shift in (0.1, 0.2))

    def made(x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
        rows = (weight @ x + bias).view(heads, size)
        return rows / rows.pow(2).mean(-1, keepdim=True).sqrt() * gain

    angles = torch.rand(2, size // 2, dtype=torch.float64)
    plain = [rotated_neighbours(made(x, *part), a) for part, x, a in zip((queries, keys), (x, y), angles, strict=True)]
    permuted = [[as_halves(one, size) for one in part] for part in (queries, keys)]
    halves = [rotated_halves(made(x, *part), a) for part, x, a in zip(permuted, (x, y), angles, strict=True)]
    assert torch.allclose((plain[0] * plain[1]).sum(-1), (halves[0] * halves[1]).sum(-1))
