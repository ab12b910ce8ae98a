"""The handle to a cluster: start it, use it, stop it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from localcluster import processes
from localcluster.build import KUBE, NODE_COMPONENTS, binaries
from localcluster.kubelet import isolation
from localcluster.paths import CHECKOUT, clusters_directory
from localcluster.settings import Gpu, KubeletNode, Layout, ServiceAddress, ServiceTable, Settings

DEFAULT_NAME = "tandem"
_START_LIMIT_SECONDS = 300  # a real node imports images first
_STOP_LIMIT_SECONDS = 20


class ClusterError(Exception):
    """A sentence for the user."""


class Cluster:
    """A cluster. As a context manager it stops at the end; it also stops when the process that started it dies.

    with Cluster.start(name="mine") as cluster:
        cluster.kubectl("get", "nodes")
    """

    def __init__(self, name: str = DEFAULT_NAME, directory: Path | None = None) -> None:
        """Names a cluster, running or not. Its files lie in the folder `name` of `directory`."""
        self.name = name
        self.layout = Layout((directory or clusters_directory()).absolute() / name)
        self._process: subprocess.Popen[bytes] | None = None  # the supervisor, if this handle started it

    @classmethod
    def start(
        cls,
        name: str = DEFAULT_NAME,
        directory: Path | None = None,
        images: Mapping[str, Sequence[str]] | None = None,
        gpus: int | Sequence[Gpu] = 16,
        gpu_shares: int = 1,
        restart_delay_seconds: float = 1.0,
        restart_delay_limit_seconds: float = 30.0,
        owner: int | None = None,
        outlives_caller: bool = False,
        hollow: bool = False,
        kubelet: KubeletNode | None = None,
    ) -> Self:
        """Start a cluster, or find it running, and wait until pods can be scheduled.

        `images` adds rows to the image table (images.py). `gpus` is how many the node claims to have, or which it has
        (gpus.py), each for `gpu_shares` containers. The cluster ends with the process `owner`, this one by
        default, or, if it `outlives_caller`, only when stopped. Raises ClusterError, or ToolError.
        """
        cluster = cls(name, directory)
        settings = Settings(
            name=name,
            claimed_gpus=gpus if isinstance(gpus, int) else 0,
            gpus=() if isinstance(gpus, int) else tuple(gpus),
            gpu_shares=gpu_shares,
            images={image: list(command) for image, command in (images or {}).items()},
            restart_delay_seconds=restart_delay_seconds,
            restart_delay_limit_seconds=restart_delay_limit_seconds,
            hollow=hollow,
            kubelet=kubelet,
        )
        components = {} if cluster.running() else binaries()  # may build for minutes, so before the lock
        if components and kubelet:
            components |= dict.fromkeys(NODE_COMPONENTS, KUBE.build())
        with cluster._starting():
            if not cluster.running():
                cluster._clear()
                cluster._launch(settings, components, owner=None if outlives_caller else owner or os.getpid())
        cluster._wait_until_ready()
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.layout.kubeconfig

    @property
    def logs_dir(self) -> Path:
        """One log per component, and audit.log with every request in JSON lines."""
        return self.layout.logs

    def running(self) -> bool:
        return self._supervisor() is not None

    def failure(self) -> str:
        """Why the cluster ended by itself; empty if it did not."""
        return self.layout.failure.read_text() if self.layout.failure.exists() else ""

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints, as administrator. Raises ClusterError with what it says."""
        result = subprocess.run(
            [str(self.layout.binaries / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    @contextmanager
    def network(self) -> Iterator[None]:
        """While the block runs, this thread, and what it starts, are in the network of a cluster with a real node;
        from elsewhere nothing of it can be reached. Raises ClusterError."""
        supervisor = self._supervisor()
        if supervisor is None:
            raise ClusterError(f"cluster {self.name} is down")
        with isolation.network_of(supervisor):
            yield

    def services(self) -> tuple[ServiceAddress, ...]:
        """Every Service port and where it is served here."""
        if Settings.model_validate_json(self.layout.settings.read_text()).kubelet:
            return self._real_services()
        try:
            return ServiceTable.model_validate_json(self.layout.services.read_text()).services
        except FileNotFoundError:
            return ()

    def _real_services(self) -> tuple[ServiceAddress, ...]:
        """Those with an address of their own, which kube-proxy serves in the cluster's network."""
        found = json.loads(self.kubectl("get", "services", "--all-namespaces", "--output=json"))["items"]
        return tuple(
            ServiceAddress(
                namespace=item["metadata"]["namespace"],
                name=item["metadata"]["name"],
                port=port["port"],
                port_name=port.get("name", ""),
                host=item["spec"]["clusterIP"],
                local_port=port["port"],
            )
            for item in found
            if item["spec"].get("clusterIP", "None") != "None"
            for port in item["spec"]["ports"]
        )

    def service_url(self, namespace: str, name: str, port: int | str, timeout_seconds: float = 10) -> str:
        """Where this machine reaches what a pod would call http://NAME.NAMESPACE.svc:PORT.

        Waits for the node agent to have seen the Service. Raises ClusterError.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            for service in self.services():
                if (service.namespace, service.name) == (namespace, name) and port in (service.port, service.port_name):
                    return service.url
            if time.monotonic() > deadline:
                raise ClusterError(f"no Service {namespace}/{name} with port {port} after {timeout_seconds} s")
            time.sleep(0.05)

    def restart_api_server(self) -> None:
        """Kill it and start it again; returns at once."""
        if supervisor := self._supervisor():
            os.kill(supervisor, signal.SIGUSR1)

    def compact(self) -> None:
        """Throw away what etcd remembers of the past: a watch that wants to go on from there is told `410 Gone`."""
        url = self.layout.etcd_url.read_text()
        header = _post(f"{url}/v3/kv/range", {"key": "AA==", "count_only": True})["header"]
        _post(f"{url}/v3/kv/compaction", {"revision": header["revision"], "physical": True})

    def stop(self) -> None:
        """End every process of the cluster and remove its directory. Does nothing if there is none."""
        if supervisor := self._supervisor():
            handle = os.pidfd_open(supervisor)
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            select.select([handle], [], [], _STOP_LIMIT_SECONDS)  # readable when it has ended
            os.close(handle)
        self._clear()
        if self._process:
            self._process.wait()

    def _clear(self) -> None:
        """Whatever a cluster that ended badly left behind."""
        processes.end_all([processes.cluster_marker(self.layout.directory)])
        isolation.remove_control_group(Settings(name=self.name).control_group)
        shutil.rmtree(self.layout.directory, ignore_errors=True)

    def _supervisor(self) -> int | None:
        """Its process id if it lives: it holds the lock on its file as long as it does."""
        try:
            with self.layout.supervisor.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            return int(self.layout.supervisor.read_text() or 0) or None
        return None

    def _launch(self, settings: Settings, components: Mapping[str, Path], owner: int | None) -> None:
        for folder in (self.layout.logs, self.layout.binaries, self.layout.pods):
            folder.mkdir(parents=True, mode=0o700)
        for name, binary in components.items():
            (self.layout.binaries / name).symlink_to(binary)
        self.layout.settings.write_text(settings.model_dump_json())
        command = [sys.executable, "-m", "localcluster.supervisor", str(self.layout.directory)]
        command += [f"--owner={owner}"] if owner else []
        python_path = os.pathsep.join(str(CHECKOUT / folder) for folder in ("hack", "operator", "worker"))
        with (self.logs_dir / "supervisor.log").open("wb") as log, self.layout.supervisor.open("w") as lock:
            # The supervisor inherits the locked file: the lock ends with it, and there is no moment without one.
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": python_path, "NO_PROXY": "*", "no_proxy": "*"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[lock.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is not meant for it
            )
            lock.write(str(self._process.pid))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_LIMIT_SECONDS
        while not self.layout.ready.exists():
            ended = self._process.poll() is not None if self._process else not self.running()
            if ended or time.monotonic() > deadline:
                raise ClusterError(f"cluster {self.name} did not start; logs are in {self.logs_dir}\n{self._why()}")
            time.sleep(0.05)

    def _why(self) -> str:
        log = self.logs_dir / "supervisor.log"
        return self.failure() or (log.read_text()[-2000:] if log.exists() else "")

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """One start at a time per folder of clusters; the lock is on the folder and leaves no file."""
        folder = self.layout.directory.parent
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        told: dict[str, Any] = json.load(answer)
        return told
