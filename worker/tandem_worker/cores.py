"""How many cores a container may use.

A CPU limit is a quota of time, which torch does not see: on a node of 64 cores it would start 64 threads on a limit of
4, and each product would wait for threads that are held back for most of every period.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def allowed_cores(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Whole ones, at least 1: those that the process may run on, or fewer where its cgroups have a quota."""
    quotas = [quota for folder in _folders(cgroups, membership) if (quota := _quota(folder))]
    return max(1, math.floor(min([len(os.sched_getaffinity(0)), *quotas])))


def _folders(cgroups: Path, membership: Path) -> Iterator[Path]:
    """Where quotas of this process may stand. Within a container its own cgroup is usually the root of what it sees."""
    yield from (cgroups, cgroups / "cpu", cgroups / "cpu,cpuacct")
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            yield cgroups / controllers / path.lstrip("/")


def _quota(folder: Path) -> float | None:
    """Cores, or None: no limit, or no such folder."""
    version_2 = _text(folder / "cpu.max").split()
    version_1 = [_text(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    for numbers in (version_2, version_1):
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers):  # not: max, -1
            quota, period = map(int, numbers)
            return quota / period if period else None
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""
