"""Events about pods, for `kubectl describe` and `kubectl get events`."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import Any

from kubernetes.aio import client

from localcluster.agent.api import Hiccup, read, timestamp
from localcluster.agent.model import Pod

_REPEAT_SECONDS = 60


class Recorder:
    """Writes events in the background. A lost one is no harm, a repeated one is written once a minute."""

    def __init__(self, core: client.CoreV1Api, node: str) -> None:
        self._core = core
        self._node = node
        self._writing: set[asyncio.Task[None]] = set()
        self._written: dict[tuple[str, str, str], float] = {}  # pod uid, reason, message -> time

    def record(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        """`kind` is Normal or Warning."""
        key, now = (pod.metadata.uid, reason, message), time.monotonic()
        if kind == "Warning" and now - self._written.get(key, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return
        self._written[key] = now
        task = asyncio.create_task(self._write(pod, kind, reason, message))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        now, metadata = timestamp(), pod.metadata
        about = {"apiVersion": "v1", "kind": "Pod", "name": metadata.name, "namespace": metadata.namespace}
        event: Any = {
            "metadata": {"name": f"{metadata.name}.{uuid.uuid4().hex[:16]}", "namespace": metadata.namespace},
            "involvedObject": about | {"uid": metadata.uid},
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": "kubelet", "host": self._node},
        }
        with contextlib.suppress(*Hiccup):
            await read(self._core.create_namespaced_event_without_preload_content(metadata.namespace, event))
