"""The process that owns a cluster: starts every component, ends and removes them all.

It runs until it gets SIGTERM, until its owner (if it has one) is gone, or until a component dies. In the first two
cases the cluster's directory goes, too; in the last one it stays, without processes, for the logs to be read.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from localcluster import processes
from localcluster.controlplane import ControlPlane
from localcluster.kubelet import isolation
from localcluster.settings import Layout, Settings

_POLL_SECONDS = 0.05
_START_LIMIT_SECONDS = 120
_RESERVATION_PORT = 20249
# How much Go lets its memory grow by before it collects: at its own 100 an API server spends much of its time on that.
_GOGC = "300"


class Supervisor:
    def __init__(self, layout: Layout, owner: int | None) -> None:
        self.layout = layout
        self.settings = Settings.model_validate_json(layout.settings.read_text())
        self.owner = os.pidfd_open(owner) if owner else None
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.told_to_stop = self.told_to_restart = False

    def run(self) -> None:
        """Until the end of the cluster."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGUSR1, self._note_restart)
        failure = ""
        try:
            self._start()
            while not self._ending():
                self._restart_if_told()
                time.sleep(_POLL_SECONDS)
            failure = self._dead_component()
        except TimeoutError as error:
            failure = str(error)
        finally:
            self._end()
        if failure:
            self.layout.failure.write_text(failure)
        else:
            shutil.rmtree(self.layout.directory)

    def _start(self) -> None:
        real_node = self.settings.kubelet is not None
        if real_node:
            isolation.leave_network()
            isolation.make_control_group(self.settings.control_group)
            node_address = isolation.NODE_ADDRESS
        else:
            network, self.reservation = _reserve_network()
            node_address = f"{network}.0.1"
        plane = ControlPlane.create(self.layout, node_address, real_node)
        commands = plane.commands()
        self.layout.etcd_url.write_text(f"http://127.0.0.1:{plane.etcd_port}")
        self._spawn_binary("etcd", commands)
        self._spawn_binary("kube-apiserver", commands)
        if real_node:
            node = [*isolation.IN_NAMESPACES, sys.executable, "-m", "localcluster.kubelet", str(self.layout.directory)]
            self._spawn("node", node, death_signal=signal.SIGKILL)
        else:
            agent = [sys.executable, "-m", "localcluster.agent", str(self.layout.directory), node_address]
            # On the supervisor's sudden death the agent gets the chance to end the pods' grandchildren, too.
            self._spawn("agent", agent, death_signal=signal.SIGTERM)
        self._wait(lambda: _api_is_ready(plane.url, self.layout.certificate_authority), "the API server")
        self._spawn_binary("kube-controller-manager", commands)
        self._spawn_binary("kube-scheduler", commands)
        self.commands = commands
        if self.settings.hollow:
            hollow = [sys.executable, "-m", "hollow", str(self.layout.directory), node_address]
            self._spawn("hollow", hollow, death_signal=signal.SIGTERM)

    def _restart_if_told(self) -> None:
        if self.told_to_restart:
            self.told_to_restart = False
            self.children["kube-apiserver"].kill()
            self.children["kube-apiserver"].wait()
            self._spawn_binary("kube-apiserver", self.commands)

    def _spawn_binary(self, name: str, commands: dict[str, list[str]]) -> None:
        self._spawn(name, [str(self.layout.binaries / name), *commands[name]], death_signal=signal.SIGKILL)

    def _spawn(self, name: str, command: list[str], death_signal: int) -> None:
        with (self.layout.logs / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(
                command,
                cwd=self.layout.state,
                env={**os.environ, "GOGC": _GOGC},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=processes.dies_with_parent(death_signal),
            )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_LIMIT_SECONDS
        while not condition() and not self._ending():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} was not ready after {_START_LIMIT_SECONDS} s; see {self.layout.logs}")
            time.sleep(_POLL_SECONDS)

    def _ending(self) -> bool:
        owner_is_gone = self.owner is not None and bool(select.select([self.owner], [], [], 0)[0])
        return self.told_to_stop or owner_is_gone or bool(self._dead_component())

    def _dead_component(self) -> str:
        """What died and the end of its log; empty if we are ending for another reason."""
        if self.told_to_stop:
            return ""
        for name, child in self.children.items():
            if (code := child.poll()) is not None:
                lines = (self.layout.logs / f"{name}.log").read_text(errors="replace").splitlines()
                return "\n".join([f"{name} ended by itself with exit code {code}; its last lines:", *lines[-10:]])
        return ""

    def _stop(self, *_: object) -> None:
        self.told_to_stop = True

    def _note_restart(self, *_: object) -> None:
        self.told_to_restart = True

    def _end(self) -> None:
        agent = self.children.get("agent")
        if agent:
            agent.terminate()
            try:
                agent.wait(5)
            except subprocess.TimeoutExpired:
                agent.kill()
        for child in self.children.values():
            child.kill()
            child.wait()
        processes.end_all([processes.cluster_marker(self.layout.directory)])
        isolation.remove_control_group(self.settings.control_group)


def _reserve_network() -> tuple[str, socket.socket]:
    """The first two numbers of the addresses that nodes, pods and Services of this cluster take (`127.65`).

    Held by a bound socket, so that clusters side by side do not share addresses.
    """
    for second in range(65, 255):
        network = f"127.{second}"
        holder = socket.socket()
        try:
            holder.bind((f"{network}.0.1", _RESERVATION_PORT))
        except OSError:
            holder.close()
        else:
            return network, holder
    raise TimeoutError("no loopback network is free between 127.65.0.0 and 127.254.0.0")


def _api_is_ready(url: str, certificate_authority: Path) -> bool:
    context = ssl.create_default_context(cafile=str(certificate_authority))
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--owner", type=int, help="end when this process is gone")
    arguments = parser.parse_args()
    layout = Layout(arguments.directory)
    marker, _, value = processes.cluster_marker(layout.directory).partition("=")
    os.environ[marker] = value
    Supervisor(layout, arguments.owner).run()


if __name__ == "__main__":
    main()
