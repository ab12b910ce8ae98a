"""What a worker says about the GPU it finds, and about errors of the GPU: words for whoever is called at night."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem_worker.checks.builtin import beyond_kernels, indivisible
from tandem_worker.engine import gpu
from tandem_worker.engine.gpu import GIB, GpuProblem, explained, too_little_free
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


def test_fewer_gpus_than_are_to_share_a_target_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpu.enough(2)
    with pytest.raises(GpuProblem, match=r"over 4 GPUs is asked for, torch sees 2\. .* nvidia\.com/gpu") as told:
        gpu.enough(4)
    assert told.value.reason == "NoGpu"


def test_compiled_kernels_are_kept_where_a_pod_may_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # so that it is put back at the end
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    gpu.keep_kernels()
    assert "TRITON_CACHE_DIR" not in os.environ, "below a home folder that can be written to, as Triton has it"
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    gpu.keep_kernels()
    assert os.environ["TRITON_CACHE_DIR"] == str(Path(tempfile.gettempdir()) / "triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/chosen")
    gpu.keep_kernels()
    assert os.environ["TRITON_CACHE_DIR"] == "/chosen"


def test_the_kernels_compute_the_8b_pair_with_every_norm_of_the_drafter() -> None:
    flags = {"norm_before_fc": True, "fc_norm": True, "norm_output": True, "qk_norm": True, "qkv_bias": True}
    assert beyond_kernels(TARGET, replace(DRAFTER, **flags)) == []  # type: ignore[arg-type]
    assert beyond_kernels(TARGET, None) == []


@pytest.mark.parametrize(
    ("target", "drafter", "said"),
    [
        ({"head_dim": 80}, {}, "the target's head_dim of 80, which is none of 16, 32, 64, 128, 256"),
        ({}, {"head_dim": 96}, "the drafter's head_dim of 96, which is none of 16, 32, 64, 128, 256"),
        ({"hidden_size": 2050}, {}, "the target's hidden_size of 2050, which is no multiple of 8"),
        ({}, {"intermediate_size": 9}, "the drafter's intermediate_size of 9, which is no multiple of 8"),
        ({"family": "newer"}, {}, "targets of the family newer"),
        ({"out_bias": True}, {}, "a bias of attention's output"),
        ({}, {"layers": 2}, "a drafter of several layers"),
    ],
)
def test_what_the_kernels_do_not_compute_is_named(target: dict[str, Any], drafter: dict[str, Any], said: str) -> None:
    found = beyond_kernels(replace(TARGET, **target), replace(DRAFTER, **drafter))
    assert found == [said]


@pytest.mark.parametrize(
    ("changes", "gpus", "said"),
    [
        ({}, 1, ""),
        ({}, 8, ""),
        ({}, 16, "16 GPUs can not share this target: it has 8 key-value heads, which does not divide by 16; choose 2"),
        ({"vocab_size": 32001}, 2, "it has a vocabulary of 32001, which does not divide by 2; serve it on one"),
        ({"intermediate_size": 1000}, 2, "it has an MLP of 1000 columns, in parts that are multiples of 8, which"),
    ],
)
def test_a_target_that_gpus_can_not_share_is_told_with_what_would_fit(
    changes: dict[str, Any], gpus: int, said: str
) -> None:
    found = indivisible(replace(TARGET, **changes), gpus)
    assert said in found
    assert bool(found) == bool(said)


OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.10 GiB is "
    "free. Process 7 has 1.0 GiB memory in use. "
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True"
)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (torch.OutOfMemoryError(OUT_OF_MEMORY), "OutOfGpuMemory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), "OutOfGpuMemory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors ..."), "GpuFailed"),
        (RuntimeError("CUDA error: device-side assert triggered"), "GpuFailed"),
        (
            RuntimeError("NCCL error in: NCCLUtils.cpp:77, unhandled system error, NCCL version 2.29\nLast error:"),
            "GpuFailed",
        ),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), "GpuFailed"),
    ],
)
def test_errors_of_the_gpu_are_explained_in_one_line(failure: Exception, reason: str) -> None:
    problem = explained(failure)
    assert problem is not None
    assert problem.reason == reason
    assert "\n" not in str(problem)
    assert "PYTORCH" not in str(problem)
    assert "Process" not in str(problem)


def test_other_errors_are_not_the_gpus() -> None:
    assert explained(RuntimeError("shapes differ")) is None
    assert explained(ValueError("CUDA")) is None
