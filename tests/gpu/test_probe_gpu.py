"""The probe on a GPU. What it computes is held to transformers on the CPU; here stands what only a card shows."""

from __future__ import annotations

import subprocess
import sys

ATTEND = """
import torch
from tandem_worker.models.layers import CausalAttention
from tandem_worker.models.teacher_forced import UnrolledAttention

q, k, v = (torch.randn(4, 100, heads, 128, dtype=torch.bfloat16, device="cuda") for heads in (32, 8, 8))
CausalAttention()(0, q, k, v)
places = torch.arange(8, 40, device="cuda").repeat(4, 1)
UnrolledAttention(places)(0, q[:, 8:40], k, v)
torch.cuda.synchronize()
print([line for line in open("/proc/self/maps") if "libcudnn_engines" in line])
"""


def test_attention_does_not_wait_for_cudnn_to_be_loaded() -> None:
    """It takes seconds, from a disk. torch prefers it on Hopper; on other cards this holds anyway."""
    told = subprocess.run([sys.executable, "-c", ATTEND], capture_output=True, text=True, check=False)
    assert told.stdout == "[]\n", told.stderr
