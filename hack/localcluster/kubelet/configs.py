"""What containerd, CNI and kubelet are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localcluster.kubelet.isolation import BRIDGE, NODE_ADDRESS, POD_NETWORK

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "localhost/tandem-pause:dev"
ENVIRONMENT_CLASS = "environment"
"""Runtime handler, and RuntimeClass, of pods whose /opt/tandem is the node's and not their image's. NVIDIA's runtime
brings the driver into containers in the same way."""
ENVIRONMENT_MOUNT = "/opt/tandem"


def containerd(folder: Path, plugins: Path, environment_spec: Path | None) -> str:
    """config.toml. `plugins`: of CNI."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    handlers = {"runc": "", **({ENVIRONMENT_CLASS: str(environment_spec)} if environment_spec else {})}
    runtimes = "".join(
        f"""
[{cri}.containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{spec}"
"""
        for name, spec in handlers.items()
    )
    # Without the right to lower OOM scores, which root may lack in a virtual machine, runc would not start a pod.
    return f"""\
version = 2
root = "{folder / "containerd"}"
state = "/run/containerd"
[grpc]
address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder / "opt"}"
[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
[{cri}.containerd]
discard_unpacked_layers = true
[{cri}.cni]
bin_dir = "{plugins}"
conf_dir = "{folder / "cni"}"
{runtimes}"""


def cni() -> str:
    """A bridge; addresses are counted."""
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": POD_NETWORK, "gateway": NODE_ADDRESS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/cni",
        },
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})


def kubelet(state: Path, control_group: str) -> str:
    """KubeletConfiguration. Whoever reaches this network may do all: nobody else does."""
    return json.dumps({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": str(state / "kubelet.crt"),
        "tlsPrivateKeyFile": str(state / "kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{control_group}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": ["none"],
        "oomScoreAdj": 0,
        # The disk is the machine's own affair.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "5s",  # a changed ConfigMap reaches running pods
        "maxPods": 50,
    })  # fmt: skip


def with_environment(spec: str, environment: Path) -> str:
    """A container's basic OCI spec that brings the node's folder along."""
    changed: dict[str, Any] = json.loads(spec)
    mount = {
        "destination": ENVIRONMENT_MOUNT,
        "type": "bind",
        "source": str(environment),
        "options": ["rbind", "ro", "nosuid", "nodev"],
    }
    return json.dumps({**changed, "mounts": [*changed["mounts"], mount]})
