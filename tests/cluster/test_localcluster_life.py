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
from localcluster.settings import Gpu

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


GPU_POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: shell
    command: [sh, -c, 'echo "sees $CUDA_VISIBLE_DEVICES."']
    resources: {limits: {LIMIT}}
"""


def test_a_machines_gpus_are_offered_in_shares_and_given_to_those_who_ask(tmp_path: Path) -> None:
    gpus = (Gpu(uuid="GPU-a", name="NVIDIA H200", memory_mib=143771),)
    with Cluster.start("gpus", tmp_path, gpus=gpus, gpu_shares=2) as cluster:
        cluster.kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=30s")
        asks, does_not = (
            GPU_POD.replace("NAME", name).replace("LIMIT", limit)
            for name, limit in (("asks", "nvidia.com/gpu: 1"), ("does-not", "cpu: 1"))
        )
        cluster.kubectl("apply", "-f", "-", stdin=f"{asks}---{does_not}")
        for name, sees in (("asks", "sees GPU-a.\n"), ("does-not", "sees .\n")):
            cluster.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
            assert cluster.kubectl("logs", name) == sees
        node = "jsonpath={.status.allocatable.nvidia\\.com/gpu} {.metadata.labels.nvidia\\.com/gpu\\.product}"
        assert cluster.kubectl("get", "node", "local", "-o", node) == "2 NVIDIA-H200-SHARED"


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
