"""Quantised checkpoints become the weights that their own libraries make; experts that no token visits are not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem_worker.checkpoint import CheckpointError, TensorInfo
from tandem_worker.checkpoint.source import Stored
from tandem_worker.finding import Verdict
from tandem_worker.models import reader
from tandem_worker.models.quantised import kept, mxfp4, scaled, unpacked
from tandem_worker.probe.stream import stream
from tandem_worker.probe.streamed import Streamed
from unit.quantising import Quantise, Tensors, int4
from unit.test_families import KIMI_YARN, LATENT, MODELS, close, written

FIXTURE = load_file(Path(__file__).parent / "data" / "compressed_tensors.safetensors")  # hack/quantised_fixture.py
TOKENS = torch.tensor([5, 17, 40])
EXPERT = "model.layers.{}.mlp.experts.{}.{}_proj"


# --- one matrix ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int4", "int8", "int4_channel"])
def test_packed_integers_are_read_as_compressed_tensors_reads_them(name: str) -> None:
    expected = FIXTURE[f"{name}.weight"]
    found = unpacked(FIXTURE[f"{name}.weight_packed"], FIXTURE[f"{name}.weight_scale"], expected.shape)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["fp8_channel", "fp8_tensor"])
def test_scaled_floats_are_read_as_compressed_tensors_reads_them(name: str) -> None:
    expected = FIXTURE[f"{name}.weight"]
    assert torch.equal(scaled(FIXTURE[f"{name}.values"], FIXTURE[f"{name}.weight_scale"], (128, 128)), expected)


def test_scales_of_blocks_are_read_as_transformers_reads_them() -> None:
    values = torch.randn(256, 384).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3) + 0.5
    assert torch.equal(
        scaled(values, scale, (128, 128)),
        transformers.integrations.finegrained_fp8.Fp8Dequantize(None)._dequantize_one(values, scale),
    )


def test_the_last_block_may_be_cut_off() -> None:
    """576 rows of kv_a_proj_with_mqa are four and a half blocks."""
    values = torch.ones(200, 130).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = scaled(values, scale, (128, 128))
    assert found[[127, 127, 128, 199], [127, 128, 127, 129]].tolist() == [1, 2, 3, 4]


KEPT = {  # scale of a matrix [200, 384] in blocks of [128, 128]; how many scales an output has
    "one for all": (torch.rand(()) + 0.5, 1),
    "by output": (torch.rand(200) + 0.5, 1),
    "by output, upright": ((torch.rand(200, 1) + 0.5).bfloat16(), 1),
    "by block": (torch.rand(2, 3) + 0.5, 3),
    "by block of inputs": (torch.rand(1, 3) + 0.5, 3),
}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("form", KEPT)
def test_what_stays_in_8_bits_stands_for_the_weight_that_would_be_loaded(form: str, dtype: torch.dtype) -> None:
    """In bfloat16, as on a GPU: bit by bit."""
    values, (scale, blocks) = (torch.randn(200, 384) * 30).to(dtype), KEPT[form]
    stays = kept(Stored("", (), (200, 384)), [values, scale])
    assert stays is not None
    assert stays.values is values
    assert stays.scale.shape == (blocks, 200)
    assert stays.scale.is_contiguous()
    assert torch.equal(stays.restored(torch.bfloat16), scaled(values, scale, (128, 128)).bfloat16())


@pytest.mark.parametrize(
    ("shape", "block", "scale"),
    [
        ((200, 320), (128, 128), torch.ones(2, 3)),  # the last block of inputs is cut off
        ((200, 384), (64, 64), torch.ones(4, 6)),  # narrower than a kernel's tile
        ((200, 400), (128, 200), torch.ones(2, 2)),  # borders that no tile has
        ((200, 24), (128, 128), torch.ones(1)),  # rows that the copy engine does not take
    ],
)
def test_what_kernels_do_not_multiply_by_does_not_stay(
    shape: tuple[int, int], block: tuple[int, int], scale: Tensor
) -> None:
    assert kept(Stored("", (), shape, block), [torch.ones(shape).to(torch.float8_e4m3fn), scale]) is None


def blocks_and_scales(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
    return blocks, torch.randint(122, 126, shape, dtype=torch.uint8, generator=generator)


def test_four_bit_floats_are_read_as_transformers_reads_them() -> None:
    blocks, scales = blocks_and_scales(6, 10, 2)
    expected = transformers.integrations.mxfp4.convert_moe_packed_tensors(
        blocks, scales, dtype=torch.float32
    )  # [E, I, O]: turned over
    assert torch.equal(torch.stack([mxfp4(*one).T for one in zip(blocks, scales, strict=True)]), expected)


# --- a whole checkpoint ----------------------------------------------------------------------------------------------


def kimi(folder: Path) -> Tensors:
    """Written to `folder`; returns its tensors."""
    sizes = {**LATENT, "hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 64}
    config = transformers.DeepseekV3Config(
        **sizes, n_group=1, topk_group=1, routed_scaling_factor=2.8, rope_parameters=KIMI_YARN
    )
    written(lambda: transformers.DeepseekV3ForCausalLM(config), folder)
    return load_file(folder / "model.safetensors")


def float8(weight: Tensor) -> tuple[Tensors, Tensor]:
    """Blocks of 32 by 32."""
    rows, columns = (-(-size // 32) for size in weight.shape)
    scale = torch.rand(rows, columns) / 200 + 0.001
    spread = scale.repeat_interleave(32, 0)[: len(weight)].repeat_interleave(32, 1)[:, : weight.shape[1]]
    values = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": scale}, values.float() * spread


def quantised(folder: Path, quantise: Quantise, chosen: Callable[[str], bool]) -> tuple[Path, Path]:
    """Two checkpoints: quantised where `chosen`, and the weights that this stands for."""
    tensors = kimi(folder / "plain")
    config = json.loads((folder / "plain" / "config.json").read_text())
    stored: Tensors = {}
    meant: Tensors = {}
    for name, tensor in tensors.items():
        if chosen(name):
            parts, weight = quantise(tensor)
            stored |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
            meant[name] = weight
        else:
            stored[name] = meant[name] = tensor
    method = {"quant_method": "any", "weight_block_size": [32, 32]}
    for kind, content, extra in (("stored", stored, {"quantization_config": method}), ("meant", meant, {})):
        (folder / kind).mkdir()
        (folder / kind / "config.json").write_text(json.dumps(config | extra))
        save_file(content, folder / kind / "model.safetensors")
    return folder / "stored", folder / "meant"


def of_experts(name: str) -> bool:
    return ".experts." in name


def matrices(name: str) -> bool:
    return name.endswith(("_proj.weight", "_mqa.weight"))


def run(folder: Path) -> Streamed:
    return stream(folder, [TOKENS], range(4))


@pytest.mark.parametrize(("quantise", "chosen"), [(int4, of_experts), (float8, matrices)], ids=["kimi", "deepseek"])
def test_a_quantised_target_streams_as_the_weights_it_stands_for(
    tmp_path: Path, quantise: Quantise, chosen: Callable[[str], bool]
) -> None:
    stored, meant = quantised(tmp_path, quantise, chosen)
    found, expected = run(stored), run(meant)
    assert torch.equal(found.final, expected.final)
    assert all(torch.equal(found.states[i], expected.states[i]) for i in range(4))


def test_stacked_experts_of_four_bit_floats_stream_as_the_weights_they_stand_for(tmp_path: Path) -> None:
    written(MODELS["gpt-oss"], tmp_path / "meant")
    config = json.loads((tmp_path / "meant" / "config.json").read_text())
    meant = load_file(tmp_path / "meant" / "model.safetensors")
    stored = dict(meant)
    for name in [name for name in meant if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = meant[name].shape
        blocks, scales = blocks_and_scales(experts, outputs, inputs // 32)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        meant[name] = transformers.integrations.mxfp4.convert_moe_packed_tensors(
            blocks, scales, dtype=torch.float32
        ).contiguous()
        del stored[name]
    save_file(meant, tmp_path / "meant" / "model.safetensors")
    (tmp_path / "stored").mkdir()
    save_file(stored, tmp_path / "stored" / "model.safetensors")
    (tmp_path / "stored" / "config.json").write_text(json.dumps(config | {"quantization_config": {"any": "thing"}}))
    found, expected = run(tmp_path / "stored"), run(tmp_path / "meant")
    assert len(stored) == len(meant) + 6
    close(found.final, expected.final)


def test_only_experts_that_a_token_visits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, _ = quantised(tmp_path, int4, of_experts)
    names: list[str] = []

    def watched(info: TensorInfo, page_locked: bool = False) -> Tensor:
        names.append(info.name)
        return read(info, page_locked)

    read = reader.read
    monkeypatch.setattr(reader, "read", watched)
    stream(stored, [TOKENS[:1]], ())
    experts = {tuple(name.split(".")[2:6:3]) for name in names if ".experts." in name}
    assert len(experts) == 4  # one token, two experts in each of two layers
    assert len(names) == len(set(names))


def test_a_scale_that_is_not_a_number_is_named(tmp_path: Path) -> None:
    stored, _ = quantised(tmp_path, int4, of_experts)
    tensors = load_file(stored / "model.safetensors")
    for expert in range(8):
        tensors[EXPERT.format(2, expert, "up") + ".weight_scale"][0, 0] = torch.nan
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        run(stored)
    assert caught.value.verdict is Verdict.DOES_NOT_FIT
    assert caught.value.finding.where.startswith("model.layers.2.mlp.experts.")
    assert caught.value.finding.where.endswith("up_proj.weight_scale")


def without(part: str) -> Callable[[Tensors, str], None]:
    def change(tensors: Tensors, module: str) -> None:
        del tensors[module + part]

    return change


def added(part: str) -> Callable[[Tensors, str], None]:
    def change(tensors: Tensors, module: str) -> None:
        tensors[module + part] = torch.zeros(2)

    return change


def as_awq(tensors: Tensors, module: str) -> None:
    tensors[f"{module}.qweight"] = tensors.pop(f"{module}.weight_packed")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (as_awq, "qweight"),
        (without(".weight_scale"), "weight_packed"),
        (added(".weight_zero_point"), "weight_zero_point"),
        (added(".weight_g_idx"), "weight_g_idx"),
    ],
)
def test_what_is_quantised_in_another_way_is_refused_before_the_first_layer(
    tmp_path: Path, change: Callable[[Tensors, str], None], told: str
) -> None:
    stored, _ = quantised(tmp_path, int4, of_experts)
    tensors = load_file(stored / "model.safetensors")
    change(tensors, EXPERT.format(1, 3, "down"))
    save_file(tensors, stored / "model.safetensors")
    progress: list[Any] = []
    with pytest.raises(CheckpointError) as caught:
        stream(stored, [TOKENS], (), on_progress=progress.append)
    assert caught.value.verdict is Verdict.COULD_NOT_CHECK
    assert caught.value.finding.code == "TDM-QUANTIZATION-NOT-READ"
    assert caught.value.finding.where == f"{EXPERT.format(1, 3, 'down')}.{told}"
    assert not progress
