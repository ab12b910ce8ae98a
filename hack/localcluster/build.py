"""Finds the Kubernetes binaries, or builds them.

In this order: what TANDEM_KUBE_BIN names (a multi-call binary, or a folder), what lies in the folder that
KUBEBUILDER_ASSETS names, then for whatever is still missing one multi-call binary built from `kube/`.
"""

from __future__ import annotations

import os
from pathlib import Path

from tools.gobuild import GoProgram
from tools.once import ToolError

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
"""What a local cluster needs."""
NODE_COMPONENTS = ("kubelet", "kube-proxy")
"""What it needs for a real node, too; always built here."""

SOURCE = Path(__file__).parent / "kube"
KUBERNETES_VERSION = "v1.34.4"
# Without the version flags the server reports v0.0.0-master+$Format:%H$, which neither kubectl nor helm can parse.
LINKER_FLAGS = " ".join(
    ["-s", "-w"]
    + [
        f"-X k8s.io/component-base/version.{name}={value}"
        for name, value in {"gitVersion": KUBERNETES_VERSION, "gitMajor": "1", "gitMinor": "34"}.items()
    ]
)
KUBE = GoProgram(
    name="localkube",
    cache_name="kube",
    title=f"Kubernetes {KUBERNETES_VERSION}",
    source=SOURCE,
    package=".",
    linker_flags=LINKER_FLAGS,
    usual_time="usually 8 to 12 minutes on 2 cores the first time, under 90 seconds when Go's build cache is warm",
)


def binaries() -> dict[str, Path]:
    """Path of each of COMPONENTS. A multi-call binary appears under several names and must be called by that name.

    Builds what is missing, which may take minutes. Raises ToolError.
    """
    found: dict[str, Path] = {}
    for variable in ("KUBEBUILDER_ASSETS", "TANDEM_KUBE_BIN"):
        if value := os.environ.get(variable):
            found |= _named(variable, Path(value))
    if missing := [name for name in COMPONENTS if name not in found]:
        built = KUBE.build()
        found |= dict.fromkeys(missing, built)
    return found


def _named(variable: str, path: Path) -> dict[str, Path]:
    if path.is_file():
        return dict.fromkeys(COMPONENTS, path.absolute())
    if not path.is_dir():
        raise ToolError(f"{variable} names {path}, which does not exist; name a folder of binaries or unset it")
    return {name: (path / name).absolute() for name in COMPONENTS if (path / name).is_file()}
