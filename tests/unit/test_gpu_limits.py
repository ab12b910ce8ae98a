"""What a worker says about the GPU it finds, and about errors of the GPU: words for whoever is called at night."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tandem_worker.engine import gpu
from tandem_worker.engine.gpu import GIB, GpuProblem, explained, too_little_free, unsupported
from tandem_worker.models.random_pair import llama_8b

TARGET, DRAFTER = llama_8b()


def test_a_share_that_is_free_is_taken() -> None:
    assert too_little_free(0.5, free_bytes=70 * GIB, total_bytes=140 * GIB) == ""


def test_a_share_that_is_not_free_is_refused_with_the_figures() -> None:
    said = too_little_free(0.5, free_bytes=42 * GIB, total_bytes=140 * GIB)
    assert "0.5 of the GPU's 140.0 GiB is asked for, 70.0 GiB, but 42.0 GiB is free" in said


def test_a_machine_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(GpuProblem, match=r"torch sees no GPU \(CUDA_VISIBLE_DEVICES=''\)") as told:
        gpu.claim(None)
    assert told.value.reason == "NoGpu"


def test_the_8b_pair_is_supported() -> None:
    assert unsupported(TARGET, DRAFTER) == ""
    assert unsupported(TARGET, None) == ""


@pytest.mark.parametrize(
    ("target", "drafter", "said"),
    [
        ({"head_dim": 80}, {}, "The target's head_dim is 80; on a GPU the engine runs 16, 32, 64, 128, 256."),
        ({}, {"head_dim": 96}, "The drafter's head_dim is 96; on a GPU the engine runs 16, 32, 64, 128, 256."),
        ({"hidden_size": 2050}, {}, "The target's hidden_size is 2050; on a GPU it must be a multiple of 8."),
        ({}, {"intermediate_size": 9}, "The drafter's intermediate_size is 9; on a GPU it must be a multiple of 8."),
        ({"kv_heads": 5}, {}, "The target has 32 heads for 5 key heads; they must divide evenly."),
    ],
)
def test_shapes_that_the_kernels_do_not_take_are_refused_by_name(
    target: dict[str, int], drafter: dict[str, int], said: str
) -> None:
    assert unsupported(replace(TARGET, **target), replace(DRAFTER, **drafter)) == said  # type: ignore[arg-type]


OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.10 GiB is "
    "free. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True"
)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (torch.OutOfMemoryError(OUT_OF_MEMORY), "OutOfGpuMemory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), "OutOfGpuMemory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors ..."), "GpuFailed"),
        (RuntimeError("CUDA error: device-side assert triggered"), "GpuFailed"),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), "GpuFailed"),
    ],
)
def test_errors_of_the_gpu_are_explained_in_one_line(failure: Exception, reason: str) -> None:
    problem = explained(failure)
    assert problem is not None
    assert problem.reason == reason
    assert "\n" not in str(problem)
    assert "PYTORCH" not in str(problem)


def test_other_errors_are_not_the_gpus() -> None:
    assert explained(RuntimeError("shapes differ")) is None
    assert explained(ValueError("CUDA")) is None
