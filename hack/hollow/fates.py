"""What workers and validations do by their drafter, told while they live: one file, which a test writes.

    {namespace: {drafter: {"rate": 0.05, "requests_per_second": 60, "verdict": "DoesNotFit"}}}

A drafter is named by its folder on the host. What the file does not say stays as the pod was told.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localcluster.agent.model import Pod
from localcluster.settings import write_atomically

Told = dict[str, dict[str, dict[str, Any]]]


def drafter_of(pod: Pod) -> str:
    """The folder that its volume shows. Empty: it has none."""
    folders = (volume.host_path for volume in pod.spec.volumes if volume.name == "drafter")
    return next((Path(folder.path).name for folder in folders if folder), "")


class Fates:
    def __init__(self, path: Path) -> None:
        self._path, self._changed = path, 0
        self._told: Told = {}

    def of(self, pod: Pod) -> dict[str, Any]:
        if not self._path.exists():
            return {}
        if (changed := self._path.stat().st_mtime_ns) != self._changed:
            self._told, self._changed = json.loads(self._path.read_text()), changed
        mine = self._told.get(pod.metadata.namespace, {})
        return mine.get(drafter_of(pod), {}) if mine else {}


def tell(path: Path, namespace: str, fates: dict[str, dict[str, Any]]) -> None:
    """Of one namespace. One process at a time may write."""
    told: Told = json.loads(path.read_text()) if path.exists() else {}
    write_atomically(path, json.dumps({**told, namespace: fates}))
