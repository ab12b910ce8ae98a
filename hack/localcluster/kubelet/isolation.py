"""Namespaces and control groups of a real node."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BRIDGE = "pods0"
NODE_ADDRESS, POD_NETWORK, SERVICE_NETWORK = "10.244.0.1", "10.244.0.0/16", "10.96.0.0/16"
_CLONE_NEWNET = 0x40000000
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_REMOVAL_SECONDS = 20
_libc = ctypes.CDLL(None, use_errno=True)

IN_NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""Prefix of the node's command: it is process 1 of what it starts, and all of that dies with it."""


def leave_network() -> None:
    """From now on this process, which has one thread, and its children have a network of their own without uplink.

    The node's address is that of the bridge to which pods are plugged. Raises OSError, CalledProcessError.
    """
    _check(_libc.unshare(_CLONE_NEWNET))
    for command in (
        "ip link set lo up",
        f"ip link add {BRIDGE} type bridge",
        f"ip address add {NODE_ADDRESS}/{POD_NETWORK.partition('/')[2]} dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
        f"ip route add {SERVICE_NETWORK} dev {BRIDGE}",  # iptables turns them into pods, but only what has a route
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


@contextmanager
def network_of(process: int) -> Iterator[None]:
    """While the block runs, the calling thread, and what it starts, are in the network of another process."""
    with _namespace(f"/proc/{process}/ns/net") as inner, _namespace("/proc/thread-self/ns/net") as outer:
        _check(_libc.setns(inner, _CLONE_NEWNET))
        try:
            yield
        finally:
            _check(_libc.setns(outer, _CLONE_NEWNET))


def make_control_group(name: str) -> None:
    """In every hierarchy there is."""
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # of version 1, where they begin empty
            if (hierarchy / file).exists() and hierarchy.name == "cpuset":
                (hierarchy / name / file).write_text((hierarchy / file).read_text())


def remove_control_group(name: str) -> None:
    """With all that is below it; waits for processes that are about to end. Raises TimeoutError."""
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while found := [hierarchy / name for hierarchy in _hierarchies() if (hierarchy / name).exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes in {found[0]} do not end")
        for group in found:
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):  # not empty yet, or gone already
                    os.rmdir(folder)
        time.sleep(0.05)


def _hierarchies() -> list[Path]:
    """One in version 2; one for each controller in version 1."""
    if (_CONTROL_GROUPS / "cgroup.controllers").exists() or not _CONTROL_GROUPS.exists():
        return [_CONTROL_GROUPS]
    return [path for path in _CONTROL_GROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


@contextmanager
def _namespace(path: str) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def _check(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
