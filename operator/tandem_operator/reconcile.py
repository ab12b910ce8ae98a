"""The main loop of one object: observe -> plan -> apply."""

from __future__ import annotations

import logging
import time

from kubernetes.aio import client

from tandem_operator.apply import apply
from tandem_operator.clock import Clock
from tandem_operator.events import Events
from tandem_operator.metrics import Metrics
from tandem_operator.observe import InvalidObject, observe
from tandem_operator.plan import Context, Settings, plan
from tandem_operator.queue import GONE, Key
from tandem_operator.store import Store
from tandem_operator.workers import Workers
from tandem_operator.writer import Writer

log = logging.getLogger(__name__)

CONFLICT_AGAIN_SECONDS = 0.2


class Reconciler:
    def __init__(
        self, api: client.ApiClient, store: Store, workers: Workers, settings: Settings, metrics: Metrics
    ) -> None:
        self._api, self._store, self._workers, self._settings, self._metrics = api, store, workers, settings, metrics
        self._events, self._clock = Events(api), Clock()
        self._writer = Writer(api, store)

    async def __call__(self, key: Key) -> float | None:
        """One pass; returns after how many seconds the next is due, as `queue.Reconcile` has it."""
        started = time.monotonic()
        try:
            sight = await observe(self._api, self._store, self._workers, key)
            if sight is None:
                self._metrics.forget(key)
                self._events.forget(key)
                self._clock.forget(key)
                self._writer.forget(key)
                return GONE
            now, clock_set = self._clock.read(key)
            decided = plan(Context(sight.observed, self._settings, now, clock_set))
            self._metrics.show(key, sight.observed.resource, decided.status)
            applied = await apply(self._api, self._store, self._writer, self._workers, sight, decided, now)
            if applied is None:
                return CONFLICT_AGAIN_SECONDS
            self._clock.moved_along(key)
            # After status: an event that was told is a transition that was recorded.
            await self._events.tell_all(sight.observed.resource, applied.status, applied.events, now)
            return applied.again_seconds
        except InvalidObject as error:
            # Written by another operator, or under its CRD: nothing is touched, what serves goes on serving.
            self._metrics.forget(key)
            log.error("%s/%s can't be read by this operator, is the CRD its own? %s", *key, error)
            self._metrics.invalid.inc()
            return None
        except Exception:
            self._metrics.errors.inc()
            raise
        finally:
            self._metrics.reconcile_seconds.observe(time.monotonic() - started)
