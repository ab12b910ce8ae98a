"""The streamed forward on a GPU: what the CPU computes, in the memory of one layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tandem_worker.probe.stream import stream
from unit.quantising import int4
from unit.test_families import MODELS, written
from unit.test_quantised import TOKENS, of_experts, quantised
from unit.test_stream import LAYER_BYTES, deep_target

CUDA = torch.device("cuda")
WEIGHTS_BYTES = LAYER_BYTES // 2  # of a layer, as bfloat16


def test_memory_is_that_of_one_layer(tmp_path: Path) -> None:
    target, rows = deep_target(tmp_path / "target", torch.bfloat16), [torch.tensor([1, 2, 3])]
    stream(target, rows, (), CUDA)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    stream(target, rows, (), CUDA)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 1.5 * WEIGHTS_BYTES  # three tokens need next to nothing


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3", "qwen3-moe", "deepseek-v3", "kimi-k2"])
def test_streams_are_those_of_the_cpu(tmp_path: Path, name: str) -> None:
    """The checkpoints are float32, and so is the arithmetic of either."""
    layers = written(MODELS[name], tmp_path).config.num_hidden_layers
    rows = [torch.arange(40), torch.arange(90, 70, -1)]
    agree(tmp_path, rows, layers, 1e-3)


def test_quantised_experts_are_those_of_the_cpu(tmp_path: Path) -> None:
    stored, _ = quantised(tmp_path, int4, of_experts)
    agree(stored, [TOKENS], 3, 1e-3)


def agree(folder: Path, rows: list[Tensor], layers: int, tolerance: float) -> None:
    found, expected = stream(folder, rows, range(layers + 1), CUDA), stream(folder, rows, range(layers + 1))
    for i in range(layers + 1):
        assert near(found.states[i], expected.states[i], tolerance)
    assert near(found.final, expected.final, tolerance)
    assert near(found.logits(found.final).cpu(), expected.logits(expected.final), tolerance)
    assert near(found.logits(found.final).cpu(), expected.logits(expected.final), tolerance)  # with the head kept


def near(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((found.float() - expected).abs().max() < tolerance * expected.abs().max())
