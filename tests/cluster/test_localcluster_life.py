"""Starting and ending local clusters: side by side, twice, and when something dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.support import eventually
from localcluster import Cluster
from localcluster.cluster import ClusterError
from localcluster.paths import CHECKOUT

pytestmark = pytest.mark.cluster


def processes_of(directory: Path) -> list[int]:
    """Everything alive that was told of this directory: by its command line or its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in told:
                found.append(int(entry.name))
    return found


POD = """
apiVersion: v1
kind: Pod
metadata: {name: family}
spec:
  serviceAccountName: default
  containers:
  - {name: main, image: shell, command: [sh, -c, "sleep 1000 & setsid sleep 1000 & wait"]}
"""


def start_pod(cluster: Cluster) -> None:
    cluster.kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=30s")
    cluster.kubectl("apply", "-f", "-", stdin=POD)
    cluster.kubectl("wait", "pod/family", "--for=condition=Ready", "--timeout=30s")


def command_line(folder: Path, command: str, *rest: str) -> subprocess.CompletedProcess[str]:
    """`python -m localcluster COMMAND` for the cluster `left`."""
    line = [sys.executable, "-m", "localcluster", command, "--name=left", f"--dir={folder}", *rest]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT / "hack")}
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


def test_clusters_side_by_side_and_nothing_left_of_any(tmp_path: Path) -> None:
    assert command_line(tmp_path, "status").returncode == 1
    assert "is down" in command_line(tmp_path, "kubeconfig").stderr
    assert command_line(tmp_path, "up").returncode == 0
    with Cluster.start("right", tmp_path) as right:
        start_pod(right)
        assert Cluster.start("right", tmp_path).kubectl("get", "pods", "-o", "name") == "pod/family\n"  # found, not new
        assert command_line(tmp_path, "kubectl", "--", "get", "pods", "-o", "name").stdout == ""
    assert not processes_of(right.layout.directory)
    assert "cluster left is up" in command_line(tmp_path, "status").stdout
    assert Path(command_line(tmp_path, "kubeconfig").stdout.strip()).is_file()
    assert command_line(tmp_path, "down").returncode == 0
    assert not processes_of(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_cluster_ends_with_its_owner(tmp_path: Path) -> None:
    script = f"""
import pathlib, time
from localcluster import Cluster
Cluster.start("owned", pathlib.Path({str(tmp_path)!r}))
print("up", flush=True)
time.sleep(1000)
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT / "hack")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout
    assert owner.stdout.readline() == "up\n"
    start_pod(Cluster("owned", tmp_path))
    owner.kill()
    owner.wait()
    owner.stdout.close()
    eventually(lambda: not processes_of(tmp_path) and not list(tmp_path.iterdir()))


def test_no_process_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    cluster = Cluster.start("orphaned", tmp_path)
    start_pod(cluster)
    os.kill(int(cluster.layout.supervisor.read_text()), signal.SIGKILL)
    eventually(lambda: not processes_of(tmp_path))
    cluster.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_component_that_dies_takes_the_cluster_down_and_is_named(tmp_path: Path) -> None:
    cluster = Cluster.start("broken", tmp_path)
    start_pod(cluster)
    (agent,) = [
        pid for pid in processes_of(tmp_path) if b"localcluster.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: cluster.failure() and not processes_of(tmp_path))
    assert cluster.failure().startswith("agent ended by itself with exit code -9")
    with pytest.raises(ClusterError, match=r"kubectl get pods"):
        cluster.kubectl("get", "pods")
    cluster.stop()
