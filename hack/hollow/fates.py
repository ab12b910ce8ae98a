"""What workers and validations do by their drafter, told while they live: one file, which a test writes.

    {namespace: {drafter: {"rate": 0.05, "requests_per_second": 60, "verdict": "DoesNotFit"}}}

A drafter is named by the last part of its path. What the file does not say stays as the pod was told.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from localcluster.agent.model import Pod
from localcluster.settings import write_atomically

_DRAFTER = re.compile(r"/models/(?!target\b)([\w-]+)")
Told = dict[str, dict[str, dict[str, Any]]]


def drafter_of(pod: Pod) -> str:
    """Empty: it has none."""
    found = _DRAFTER.search(json.dumps(pod.spec.model_dump(mode="json")))
    return found[1] if found else ""


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
