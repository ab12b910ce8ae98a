"""The machine's GPUs and which container may use which: what NVIDIA's device plugin does on a real node.

A GPU may be offered several times, for containers to share it in turns: the plugin's `sharing.timeSlicing.replicas`.
Nobody divides its memory then; the containers have to. A container that asks for none sees none.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence

from localcluster.settings import Gpu
from tools.once import ToolError

RESOURCE = "nvidia.com/gpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_QUERY = ["nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits"]


class NoGpu(ToolError):
    pass


def machine_gpus() -> tuple[Gpu, ...]:
    """As nvidia-smi lists them. Raises NoGpu when there is none, with what it said."""
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoGpu(f"nvidia-smi, which tells what GPUs there are, does not run: {error}") from error
    if answer.returncode:
        raise NoGpu(f"nvidia-smi ended with {answer.returncode}: {(answer.stdout + answer.stderr).strip()}")
    gpus = parse(answer.stdout)
    if not gpus:
        raise NoGpu("nvidia-smi finds no GPU")
    return gpus


def parse(text: str) -> tuple[Gpu, ...]:
    """Lines of `uuid, name, MiB`; what is no such line is left out."""
    rows = ([cell.strip() for cell in line.split(",")] for line in text.splitlines())
    return tuple(Gpu(uuid=r[0], name=r[1], memory_mib=int(r[2])) for r in rows if len(r) == 3 and r[2].isdigit())


class Allocator:
    """Hands out GPUs to containers, by pod; the same again when a container starts again."""

    def __init__(self, gpus: Sequence[Gpu], shares: int) -> None:
        self._gpus, self._shares = tuple(gpus), shares
        self._given: dict[tuple[str, str], list[str]] = {}  # (pod uid, container) -> uuids

    def environment(self, pod_uid: str, container: str, wanted: int) -> dict[str, str]:
        """Nothing where the node only claims to have GPUs. Raises NoGpu when fewer are free."""
        if not self._gpus:
            return {}
        key = pod_uid, container
        if key not in self._given:
            self._given[key] = self._choose(wanted)
        return {VISIBLE: ",".join(dict.fromkeys(self._given[key]))}

    def release(self, pod_uid: str) -> None:
        self._given = {key: uuids for key, uuids in self._given.items() if key[0] != pod_uid}

    def _choose(self, wanted: int) -> list[str]:
        """One after the other, each time the GPU that the fewest share."""
        users = Counter(uuid for uuids in self._given.values() for uuid in uuids)
        chosen: list[str] = []
        for _ in range(wanted):
            uuid = min((gpu.uuid for gpu in self._gpus), key=lambda uuid: users[uuid])
            if users[uuid] >= self._shares:
                raise NoGpu(f"{wanted} {RESOURCE} wanted, {len(chosen)} free")
            users[uuid] += 1
            chosen.append(uuid)
        return chosen


def labels(gpus: Sequence[Gpu], shares: int) -> dict[str, str]:
    """As NVIDIA's GPU feature discovery labels a node."""
    if not gpus:
        return {}
    shared = "-SHARED" if shares > 1 else ""
    return {
        f"{RESOURCE}.count": str(len(gpus)),
        f"{RESOURCE}.memory": str(gpus[0].memory_mib),
        f"{RESOURCE}.product": gpus[0].name.replace(" ", "-") + shared,
        f"{RESOURCE}.replicas": str(shares),
    }
