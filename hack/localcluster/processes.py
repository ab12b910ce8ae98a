"""Processes that cannot outlive the cluster.

Two nets: the kernel kills a direct child when its parent dies (PR_SET_PDEATHSIG), and every process of a cluster
carries a marker in its environment, which grandchildren inherit, so that `end_all` finds whatever was left behind.
(A process that clears its environment and detaches itself escapes the second net.)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


def cluster_marker(directory: Path) -> str:
    """Environment variable of every process of the cluster in this directory."""
    return f"TANDEM_LOCALCLUSTER={directory}"


def pod_marker(uid: str) -> str:
    """Environment variable of every process of this pod."""
    return f"TANDEM_LOCALCLUSTER_POD={uid}"


def dies_with_parent(death_signal: int = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn`. The parent is the *thread* that starts the process: start from one that stays."""

    def set_death_signal() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, death_signal)

    return set_death_signal


def kill_all(markers: Iterable[str]) -> list[int]:
    """Send SIGKILL to every process that carries one of the markers, this one excepted; their ids."""
    wanted = {marker.encode() for marker in markers}
    killed = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            # The process may have ended meanwhile, or belong to someone else. A zombie's environment is empty.
            with contextlib.suppress(OSError):
                if not wanted.isdisjoint(Path(entry.path, "environ").read_bytes().split(b"\0")):
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed.append(int(entry.name))
    return killed


def end_all(markers: Iterable[str], timeout_seconds: float = 10) -> None:
    """Kill every process that carries one of the markers, this one excepted, and wait until they are gone."""
    markers = list(markers)
    deadline = time.monotonic() + timeout_seconds
    while alive := kill_all(markers):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {alive} do not end")
        time.sleep(0.02)
