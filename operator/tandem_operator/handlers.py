"""kopf: news only. Every event goes into the store and, if it is news, a key into the queue; nothing is decided here.

Only `on.event` is used. kopf's `daemon`, `timer` and `on.delete` put a finalizer on the object, and then a deletion
hangs while the operator is down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import kopf

from tandem_operator import names
from tandem_operator.api import GROUP
from tandem_operator.lister import PAGE
from tandem_operator.queue import WorkQueue
from tandem_operator.store import CHILDREN, KINDS, Kind, Store


def registry(store: Store, queue: WorkQueue) -> kopf.OperatorRegistry:
    handlers = kopf.OperatorRegistry()
    for kind in KINDS:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=handlers)(_told(kind, store, queue))
    return handlers


class NothingCompared(kopf.DiffBaseStorage):
    """No handler asks what changed, so no copy of an object is made at each event."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return cast(kopf.BodyEssence, {})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        raise AssertionError("nothing is kept in annotations")


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
    settings.watching.chunk_size = PAGE
    for kind in CHILDREN.values():  # else every pod of the cluster would be news
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = names.OURS
    settings.scanning.disabled = True  # no right to watch CRDs is needed; the CRD is there before kopf starts
    settings.networking.request_timeout = 30
    settings.posting.enabled = False  # events are our own, with a closed catalogue
    settings.process.ultimate_exiting_timeout = 20
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP, v1=False)
    settings.persistence.diffbase_storage = NothingCompared()
    return settings
