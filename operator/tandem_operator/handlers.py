"""kopf: news only. Every event goes into the store and, if it is news, a key into the queue; nothing is decided here.

Only `on.event` is used. kopf's `daemon`, `timer` and `on.delete` put a finalizer on the object, and then a deletion
hangs while the operator is down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import kopf

from tandem_operator import names
from tandem_operator.api import GROUP
from tandem_operator.queue import WorkQueue
from tandem_operator.store import KINDS, OBJECT, Kind, Store

OURS: dict[str, Any] = {names.MANAGED_BY: names.FIELD_MANAGER, names.NAME: kopf.PRESENT}


def registry(store: Store, queue: WorkQueue) -> kopf.OperatorRegistry:
    handlers = kopf.OperatorRegistry()
    for kind in KINDS:
        labels = None if kind is OBJECT else OURS
        kopf.on.event(kind.group, kind.version, kind.plural, labels=labels, registry=handlers)(
            _told(kind, store, queue)
        )
    return handlers


def _told(kind: Kind, store: Store, queue: WorkQueue) -> Callable[..., Awaitable[None]]:
    async def on_event(*, event: kopf.RawEvent, **_: Any) -> None:
        change = store.drop if event["type"] == "DELETED" else store.put
        if owner := change(kind, cast(dict[str, Any], event["object"])):
            queue.add(owner)

    return on_event


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
