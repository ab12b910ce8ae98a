"""Process 1 of a real node: prepares its file systems, imports images, runs containerd, kubelet and kube-proxy.

Ends when one of them does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from localcluster.kubelet import configs
from localcluster.kubelet.isolation import NODE_ADDRESS
from localcluster.settings import KubeletNode, Layout, Settings, write_atomically

NODE_NAME = "local"
_START_SECONDS = 90

# What kubelet wants of the machine's kernel. It reads this here and leaves the kernel alone.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


class Node:
    def __init__(self, layout: Layout, node: KubeletNode, control_group: str) -> None:
        self.layout, self.node, self.control_group = layout, node, control_group
        self.folder = layout.directory / "node"
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        os.environ["PATH"] = f"{node.programs / 'usr/bin'}:{node.programs / 'usr/sbin'}:{os.environ['PATH']}"

    def run(self) -> None:
        """Until a part of it ends."""
        self._mount()
        self._configure()
        self._spawn("containerd", f"--config={self.folder / 'containerd.toml'}")
        self._wait_for_containerd()
        self._import_images()
        self._spawn(
            *(str(self.layout.binaries / "kubelet"), f"--config={self.folder / 'kubelet.json'}"),
            *(f"--kubeconfig={self.layout.agent_kubeconfig}", f"--root-dir={self.folder / 'kubelet'}"),
            *(f"--hostname-override={NODE_NAME}", f"--node-ip={NODE_ADDRESS}"),
        )
        self._spawn(
            *(str(self.layout.binaries / "kube-proxy"), f"--kubeconfig={self.layout.state / 'proxy.kubeconfig'}"),
            *(f"--hostname-override={NODE_NAME}", "--proxy-mode=iptables", "--masquerade-all", "--oom-score-adj=0"),
            # The kernel's table of connections is left as it is.
            *("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0"),
            "--conntrack-tcp-timeout-close-wait=0",
        )
        self._until_ready()
        self.layout.ready.touch()
        while all(child.poll() is None for child in self.children.values()):
            time.sleep(0.2)

    def _mount(self) -> None:
        """In this mount namespace only: a fresh /run, and what is written below /var goes to the node's folder, which
        lies in memory: a gigabyte of images, gone with the node."""
        self.folder.mkdir()
        for path in ("/run", str(self.folder)):
            _mount("-t", "tmpfs", "tmpfs", path)
        for path in ("/var/lib", "/var/log"):
            upper, work = (self.folder / kind / path[1:].replace("/", "-") for kind in ("upper", "work"))
            upper.mkdir(parents=True)
            work.mkdir(parents=True)
            _mount("-t", "overlay", f"-olowerdir={path},upperdir={upper},workdir={work}", "overlay", path)
        for name, value in _KERNEL_SETTINGS.items():
            file = self.folder / "kernel" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(value)
            _mount("--bind", str(file), f"/proc/sys/{name}")
        if self.node.environment:
            _lay_environment(self.folder / "environment", self.node.environment)

    def _configure(self) -> None:
        spec = None
        if self.node.environment:
            spec = self.folder / "environment.json"
            basic = _output("ctr", "oci", "spec")
            spec.write_text(configs.with_environment(basic, self.folder / "environment"))
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "pods.conflist").write_text(configs.cni())
        plugins = self.node.programs / "usr" / "lib" / "cni"
        (self.folder / "containerd.toml").write_text(configs.containerd(self.folder, plugins, spec))
        write_atomically(self.folder / "kubelet.json", configs.kubelet(self.layout.state, self.control_group))

    def _spawn(self, program: str, *arguments: str) -> None:
        name = Path(program).name
        with (self.layout.logs / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(
                [program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def _wait_for_containerd(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while subprocess.run(["ctr", "version"], capture_output=True, check=False).returncode:
            if self.children["containerd"].poll() is not None or time.monotonic() > deadline:
                raise SystemExit("containerd did not start; see containerd.log")
            time.sleep(0.1)

    def _import_images(self) -> None:
        for archive in self.node.archives:
            subprocess.run(["ctr", "--namespace=k8s.io", "images", "import", str(archive)], check=True)

    def _until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        node = f"node/{NODE_NAME}"
        while self._kubectl("get", node):
            if time.monotonic() > deadline:
                raise SystemExit(f"kubelet did not make itself known in {_START_SECONDS} s; see kubelet.log")
            time.sleep(0.2)
        patch = [
            {"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(self.node.claimed_gpus)},
        ]
        if self._kubectl("patch", node, "--subresource=status", "--type=json", f"--patch={json.dumps(patch)}"):
            raise SystemExit("the node could not be given its GPUs")
        if self._kubectl("wait", node, "--for=condition=Ready", f"--timeout={_START_SECONDS}s"):
            raise SystemExit(f"the node was not ready in {_START_SECONDS} s; see kubelet.log")

    def _kubectl(self, *arguments: str) -> int:
        program = str(self.layout.binaries / "kubectl")
        return subprocess.run(
            [program, f"--kubeconfig={self.layout.kubeconfig}", *arguments], stdin=subprocess.DEVNULL, check=False
        ).returncode


def _lay_environment(folder: Path, site_packages: Path) -> None:
    """A virtual environment for the image's own Python, with the packages of this machine's."""
    inside = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    inside.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    _mount("--bind", str(site_packages), str(inside))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    layout = Layout(Path(sys.argv[1]))
    settings = Settings.model_validate_json(layout.settings.read_text())
    assert settings.kubelet
    Node(layout, settings.kubelet, settings.control_group).run()


if __name__ == "__main__":
    main()
