"""What the cluster tests share: a namespace of one's own, pod manifests, waiting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from localcluster import Cluster

T = TypeVar("T")

Manifest = dict[str, Any]


def eventually(check: Callable[[], T], timeout_seconds: float = 30) -> T:
    """The first true result of `check`; an AssertionError or a false result is tried again until the time is up."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            if (result := check()) or time.monotonic() > deadline:
                assert result, f"not within {timeout_seconds} s"
                return result
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


@dataclass(frozen=True)
class Namespace:
    """A namespace of the cluster, fresh for one test."""

    cluster: Cluster
    name: str

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={self.name}", *arguments, stdin=stdin)

    def apply(self, *objects: Manifest) -> None:
        """Objects without a namespace go into this one."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, kind: str, name: str) -> Manifest:
        found: Manifest = json.loads(self.kubectl("get", kind, name, "--output=json"))
        return found

    def list(self, kind: str, selector: str = "") -> list[Manifest]:
        found: list[Manifest] = json.loads(self.kubectl("get", kind, f"--selector={selector}", "--output=json"))[
            "items"
        ]
        return found

    def wait(self, kind_and_name: str, condition: str, timeout_seconds: int = 30) -> None:
        """As `kubectl wait --for`: condition=Ready, delete, jsonpath={.status.phase}=Running."""
        self.kubectl("wait", kind_and_name, f"--for={condition}", f"--timeout={timeout_seconds}s")

    def logs(self, pod: str, *arguments: str) -> str:
        return self.kubectl("logs", pod, *arguments)

    def service_url(self, name: str, port: int | str) -> str:
        return self.cluster.service_url(self.name, name, port)


def pod(name: str, *command: str, labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """A pod of one container `main`; what belongs to the container is found by name, the rest to the pod's spec."""
    of_pod = ("restartPolicy", "volumes", "initContainers", "terminationGracePeriodSeconds", "serviceAccountName")
    container = {key: value for key, value in spec.items() if key not in of_pod}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            **{key: value for key, value in spec.items() if key in of_pod},
            "containers": [{"name": "main", "image": "localhost/shell:dev", "command": list(command), **container}],
        },
    }
