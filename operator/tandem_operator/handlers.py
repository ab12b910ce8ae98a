"""kopf: wake-ups only. Every event puts a key into the queue; nothing is decided and nothing is written here.

Only `on.event` is used. kopf's `daemon`, `timer` and `on.delete` put a finalizer on the object, and then a deletion
hangs while the operator is down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kopf

from tandem_operator import names
from tandem_operator.api import GROUP, PLURAL, VERSION
from tandem_operator.queue import Key, WorkQueue

OURS: dict[str, Any] = {names.MANAGED_BY: names.FIELD_MANAGER, names.NAME: kopf.PRESENT}


def registry(queue: WorkQueue) -> kopf.OperatorRegistry:
    handlers = kopf.OperatorRegistry()

    async def on_object(*, name: str, namespace: str | None, **_: Any) -> None:
        queue.add(Key(namespace or "", name))

    async def on_child(*, labels: Mapping[str, str], namespace: str | None, **_: Any) -> None:
        queue.add(Key(namespace or "", labels[names.NAME]))

    kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)(on_object)
    for group, version, plural in (("apps", "v1", "deployments"), ("batch", "v1", "jobs"), ("", "v1", "pods")):
        kopf.on.event(group, version, plural, labels=OURS, registry=handlers)(on_child)
    return handlers


def kopf_settings() -> kopf.OperatorSettings:
    """Without the watch time-outs a silent connection leaves the operator deaf for ever (kopf #585, #957, #1120)."""
    settings = kopf.OperatorSettings()
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.watching.reconnect_backoff = 2
    settings.scanning.disabled = True  # no right to watch CRDs is needed; the CRD is there before kopf starts
    settings.networking.request_timeout = 30
    settings.posting.enabled = False  # events are our own, with a closed catalogue
    settings.process.ultimate_exiting_timeout = 20
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP, v1=False)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP, v1=False)
    return settings
