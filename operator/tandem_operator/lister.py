"""Lists everything now and then, so that a watch that has gone deaf delays us by a minute and no more.

It looks at the CRD too: a missing one is waited for, an older one is said aloud.
"""

from __future__ import annotations

import asyncio
import logging

from kubernetes.aio import client

from tandem_operator import kube, names, web
from tandem_operator.crd_check import crd_problem
from tandem_operator.metrics import Metrics
from tandem_operator.queue import Key, WorkQueue
from tandem_operator.store import KINDS, OBJECT, Kind, Store

log = logging.getLogger(__name__)

LIST_EVERY_SECONDS, WITHOUT_CRD_SECONDS = 60.0, 3.0
PAGE = 100  # so that no answer keeps the loop from turning for long


class Lister:
    def __init__(
        self, api: client.ApiClient, store: Store, queue: WorkQueue, namespaces: tuple[str, ...], metrics: Metrics
    ) -> None:
        self._api, self._store, self._queue = api, store, queue
        self._namespaces, self._metrics = namespaces, metrics
        self._tried_seconds = asyncio.get_running_loop().time()
        self._problem = ""
        self.crd_found = asyncio.Event()  # and everything was listed once

    def ailment(self) -> str:
        now = asyncio.get_running_loop().time()
        return web.ailment(self._queue, self._tried_seconds, now, LIST_EVERY_SECONDS)

    async def run(self) -> None:
        self._tried_seconds = asyncio.get_running_loop().time()  # it may have waited for the lease for long
        while True:
            news: set[Key] = set()
            try:
                await self._check_crd()
                for kind in reversed(KINDS):  # children first: an object is then seen with all that it has
                    await self._list(kind, news)
                self.crd_found.set()
            except kube.UNANSWERED as error:
                log.warning("the objects could not be listed: %s", kube.words(error))
            for key in news:  # of a list that broke off, too: what the store has is news to nobody else
                self._queue.add(key)
            self._tried_seconds = asyncio.get_running_loop().time()
            await asyncio.sleep(LIST_EVERY_SECONDS if self.crd_found.is_set() else WITHOUT_CRD_SECONDS)

    async def _check_crd(self) -> None:
        problem = await crd_problem(self._api)
        self._metrics.crd_is_own.set(not problem)
        if problem and problem != self._problem:
            log.error(problem)
        self._problem = problem

    async def _list(self, kind: Kind, news: set[Key]) -> None:
        """Adds to `news` whom there is some for."""
        for namespace in self._namespaces or ("",):
            listed: set[tuple[str, str]] = set()
            page, version = kube.RawList(), 0
            while page.metadata.next_page or not version:
                query = {"limit": str(PAGE), "continue": page.metadata.next_page}
                labels = "" if kind is OBJECT else names.OURS
                page = await kube.page(self._api, kind.path_of_all(namespace), {**query, "labelSelector": labels})
                version = version or int(page.metadata.resource_version)
                for body in page.items:
                    listed.add((body["metadata"]["namespace"], body["metadata"]["name"]))
                    if owner := self._store.put(kind, body):
                        news.add(owner)
            news |= self._store.without(kind, listed, version, filter(None, [namespace]))
