"""The demo's own look at the GPU, and the process that takes its memory away."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_HOG = """
import sys, time, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(max(0, int(free - float(sys.argv[1]) * total)), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(3600)
"""


def processes_on_gpu() -> set[int]:
    """Ids of the processes that hold memory of a GPU, as nvidia-smi tells them; none where there is no GPU."""
    if not shutil.which("nvidia-smi"):
        return set()
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return {int(line) for line in answer.stdout.split() if line.isdigit()}


@asynccontextmanager
async def hogged(left_fraction: float) -> AsyncIterator[None]:
    """A process that leaves no more than this share of the GPU's memory, as long as the block runs."""
    hog = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HOG, str(left_fraction), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert hog.stdout
        if await hog.stdout.readline() != b"held\n":
            raise RuntimeError("the process that was to take the GPU's memory ended")
        yield
    finally:
        if hog.returncode is None:
            hog.kill()
        await hog.wait()
