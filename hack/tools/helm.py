"""helm, built from its released module; its versions of k8s.io are those that the local cluster has compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.gobuild import GoProgram
from tools.once import ToolError

HELM_VERSION = "v3.19.5"
# Without the last four `helm template` and `helm lint` take the cluster for one of version 1.20.
LINKER_FLAGS = f"-s -w -X helm.sh/helm/v3/internal/version.version={HELM_VERSION} " + " ".join(
    f"-X helm.sh/helm/v3/pkg/{package}.k8sVersion{part}={number}"
    for package in ("chartutil", "lint/rules")
    for part, number in {"Major": "1", "Minor": "34"}.items()
)
HELM = GoProgram(
    name="helm",
    cache_name="helm",
    title=f"helm {HELM_VERSION}",
    source=Path(__file__).parent / "helm_module",
    package="helm.sh/helm/v3/cmd/helm",
    linker_flags=LINKER_FLAGS,
    usual_time="usually 3 minutes on 2 cores the first time, and only once",
)


def helm(*arguments: str, kubeconfig: Path | None = None, stdin: str | None = None) -> str:
    """What helm prints. Raises ToolError with what it says."""
    command = [str(HELM.build()), *([f"--kubeconfig={kubeconfig}"] if kubeconfig else []), *arguments]
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ToolError(f"helm {' '.join(arguments)}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout
