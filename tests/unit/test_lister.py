"""Listing everything: what was stored is told, also of a list that breaks off."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from kubernetes.aio import client

from tandem_operator import kube, lister
from tandem_operator.lister import Lister
from tandem_operator.metrics import Metrics
from tandem_operator.queue import Key, WorkQueue
from tandem_operator.store import OBJECT, Store


class Server:
    """Lists so many SpeculativeDeployments of each namespace, two a page. `fails`: what the page is answered with that
    is asked for as this one of all."""

    def __init__(self, fails: dict[int, Exception] | None = None) -> None:
        self._fails, self.asked = fails or {}, 0

    async def page(self, _: object, path: str, query: dict[str, str]) -> kube.RawList:
        if not path.endswith(OBJECT.plural):
            return kube.RawList(metadata=kube.ListMeta(resource_version="9"))
        self.asked += 1
        if failure := self._fails.get(self.asked):
            raise failure
        namespace, first = path.split("/")[-2], int(query["continue"] or 0)
        names = ["a", "b", "c", "d"][first : first + 2]
        items = [{"metadata": {"name": n, "namespace": namespace, "uid": n, "resourceVersion": "5"}} for n in names]
        more = str(first + 2) if first + 2 < 4 else ""
        metadata = kube.ListMeta.model_validate({"resourceVersion": "9", "continue": more})
        return kube.RawList(metadata=metadata, items=items)


async def nothing(_: Key) -> float | None:
    return None


async def heard(monkeypatch: pytest.MonkeyPatch, server: Server, namespaces: tuple[str, ...], lists: int) -> list[Key]:
    """Keys that were queued, in so many rounds."""

    async def fine(_: object) -> str:
        return ""

    monkeypatch.setattr(kube, "page", server.page)
    monkeypatch.setattr(lister, "crd_problem", fine)
    monkeypatch.setattr(lister, "WITHOUT_CRD_SECONDS", 0.0)
    queue = WorkQueue(nothing)
    told: list[Key] = []
    monkeypatch.setattr(queue, "add", told.append)
    rounds = 0

    async def sleep(_: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == lists:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    made = Lister(client.ApiClient.__new__(client.ApiClient), Store(), queue, namespaces, Metrics())
    with pytest.raises(asyncio.CancelledError):
        await made.run()
    assert made.crd_found.is_set() == (lists > 1 or not server._fails)
    return told


ALL = {Key(namespace, name) for namespace in ("x", "y") for name in "abcd"}
FAILURES: list[Exception] = [client.ApiException(status=500), aiohttp.ClientError(), TimeoutError()]


async def test_everything_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = await heard(monkeypatch, Server(), ("x", "y"), lists=2)
    assert (len(told), set(told)) == (8, ALL)


@pytest.mark.parametrize("failure", FAILURES, ids=["refused", "cut off", "no answer"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_what_was_listed_before_a_page_that_fails_is_told_as_well(
    monkeypatch: pytest.MonkeyPatch, at: int, failure: Exception
) -> None:
    """Nobody tells it again: for whoever lists it later, the watch among them, it is known."""
    told = await heard(monkeypatch, Server({at: failure}), ("x", "y"), lists=1)
    assert len(told) == 2 * (at - 1)
    told = await heard(monkeypatch, Server({at: failure}), ("x", "y"), lists=2)
    assert (len(told), set(told)) == (8, ALL)


async def test_an_operator_that_waited_long_for_its_lease_is_not_late_with_its_first_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = WorkQueue(nothing)
    found = Lister(client.ApiClient.__new__(client.ApiClient), Store(), queue, (), Metrics())
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: 1_000_000.0)

    async def slow(_: object) -> str:
        queue.beat_seconds = loop.time()
        assert found.ailment() == ""
        raise asyncio.CancelledError

    monkeypatch.setattr(lister, "crd_problem", slow)
    with pytest.raises(asyncio.CancelledError):
        await found.run()
