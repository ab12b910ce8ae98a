"""The GPU as a worker finds it: whether its share of the memory is free, and what the GPU's errors mean to whoever
reads them at night.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import torch

GIB = 1 << 30


class GpuProblem(Exception):
    """`reason` is a CamelCase word for conditions and events."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def keep_kernels() -> None:
    """Compiled kernels are kept below the home folder; in a pod, which can not write there, as long as it lives."""
    if not os.access(os.path.expanduser("~"), os.W_OK):  # an arbitrary user of a pod may have no home at all
        os.environ.setdefault("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / "triton"))


def multiplies_8_bits() -> bool:
    """Whether the GPU converts FP8 itself: from compute capability 8.9 on. Elsewhere the kernels do not compile."""
    return torch.cuda.get_device_capability() >= (8, 9)


def claim(fraction: float | None) -> None:
    """Sees to it that there is a GPU, and that `fraction` of its memory is free; the process takes no more than that.

    Without a fraction it takes what it needs. Raises GpuProblem.
    """
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        raise GpuProblem("NoGpu", f"torch sees no GPU{seen}. Ask for one in resources.limits, or serve on the CPU.")
    if fraction is None:
        return
    free, total = torch.cuda.mem_get_info()
    if problem := too_little_free(fraction, free, total):
        raise GpuProblem("InsufficientGpuMemory", problem)
    torch.cuda.set_per_process_memory_fraction(fraction)


def enough(gpus: int) -> None:
    """Raises GpuProblem when there are fewer."""
    if (seen := torch.cuda.device_count()) < gpus:
        asked = "Set engine.tensorParallel and the limit of nvidia.com/gpu to the same number"
        raise GpuProblem("NoGpu", f"Tensor parallelism over {gpus} GPUs is asked for, torch sees {seen}. {asked}.")


def too_little_free(fraction: float, free_bytes: int, total_bytes: int) -> str:
    """A sentence, or nothing."""
    if free_bytes >= fraction * total_bytes:
        return ""
    return (
        f"{fraction:g} of the GPU's {total_bytes / GIB:.1f} GiB is asked for, {fraction * total_bytes / GIB:.1f} GiB, "
        f"but {free_bytes / GIB:.1f} GiB is free: other processes hold the rest. Lower the memory fractions of those "
        "who share the GPU so that they add up to less than 1, or move one of them."
    )


def explained(failure: BaseException) -> GpuProblem | None:
    """The problem behind an error of torch or Triton; None when it is not the GPU's."""
    if isinstance(failure, GpuProblem):
        return failure
    said = str(failure)
    first = re.split("\n| (?:Process|Including|If reserved) ", said)[0].strip()
    if isinstance(failure, torch.OutOfMemoryError) or "out of memory" in said:
        return GpuProblem(
            "OutOfGpuMemory",
            f"{first} Weights, caches and graphs need more than the GPU, or "
            "engine.gpuMemoryFraction, lets this worker have: raise the fraction, free the GPU, or take a larger one.",
        )
    if isinstance(failure, RuntimeError) and any(word in said for word in ("CUDA", "NCCL", "Triton Error")):
        return GpuProblem("GpuFailed", f"{first}. The process can not go on with this GPU context and must start anew.")
    return None
