"""Whoever is asked to end before its work has begun ends then, also as the first process of a container: for that one
the kernel drops a signal without a handler, and the container keeps its GPU for the whole grace period.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster.certificates import Authority
from localcluster.controlplane import kubeconfig
from unit.pairs import TINY_PAIR
from unit.serving import wait_for


def listens(process: subprocess.Popen[bytes]) -> bool:
    """It has a handler for SIGTERM (signals that are caught, a mask: proc(5))."""
    assert process.poll() is None, "it has ended by itself"
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def is_read(pipe: Path) -> bool:
    try:
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # and kept: who reads waits for more
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "command", [("serve", "--model=tiny", "--port=0"), ("validate", f"--drafter={TINY_PAIR / 'drafter'}")]
)
def test_a_worker_that_has_only_begun_to_load(tmp_path: Path, command: tuple[str, ...]) -> None:
    os.mkfifo(config := tmp_path / "config.json")
    process = subprocess.Popen([sys.executable, "-m", "tandem_worker", *command, f"--target={tmp_path}"])
    try:
        wait_for(lambda: is_read(config), tries=3000)
        assert listens(process)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()


@pytest.mark.parametrize("lease", [["--lease-namespace=ns"], []], ids=["waits for its lease", "can not list"])
def test_an_operator_whose_api_server_is_away(tmp_path: Path, lease: list[str]) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig("https://127.0.0.1:1", tmp_path / "ca.crt", {"token": "t"}))
    Authority.create(tmp_path)
    command = [sys.executable, "-m", "tandem_operator", "--worker-image=worker", "--http-port=0", *lease]
    process = subprocess.Popen(command, env={**os.environ, "KUBECONFIG": str(file)})
    try:
        wait_for(lambda: listens(process), tries=3000)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
