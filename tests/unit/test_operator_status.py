"""Writing the status while others write the same object: what the plan was about must not have changed, and no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubernetes.aio import client

from tandem_operator.api import Metadata, SpeculativeDeployment, Status
from tandem_operator.apply import STATUS_TRIES, write_status
from tandem_operator.store import Store
from unit.world import spec

SEEN = SpeculativeDeployment(
    metadata=Metadata(name="pair", namespace="ns", uid="uid", resource_version="1", generation=3),
    spec=spec(),
)
PLANNED = Status(weight=50)


class Server:
    """Holds one object. `meddles`: before each of so many writes somebody else changes it, as `changes` says."""

    def __init__(self, meddles: int = 0, **changes: Any) -> None:
        self.stored, self._meddles, self._changes = SEEN, meddles, changes

    def _meddle(self) -> None:
        metadata = self.stored.metadata
        update = {"resource_version": str(int(metadata.resource_version) + 1), **self._changes.get("metadata", {})}
        rest = {name: value for name, value in self._changes.items() if name != "metadata"}
        self.stored = self.stored.model_copy(update={"metadata": metadata.model_copy(update=update), **rest})

    async def replace(self, *args: Any, **_: Any) -> Any:
        body = args[-1]
        if self._meddles > 0:
            self._meddles -= 1
            self._meddle()
        if body["metadata"]["resourceVersion"] != self.stored.metadata.resource_version:
            raise client.ApiException(status=409, reason="Conflict")
        self.stored = self.stored.model_copy(update={"status": Status.model_validate(body["status"])})
        return await self.get()

    async def get(self, *_: Any) -> Any:
        return self.stored.model_dump(mode="json", by_alias=True, exclude_none=True)


def written(monkeypatch: pytest.MonkeyPatch, server: Server) -> bool:
    api = client.CustomObjectsApi
    monkeypatch.setattr(api, "replace_namespaced_custom_object_status", lambda self, *a, **k: server.replace(*a, **k))
    monkeypatch.setattr(api, "get_namespaced_custom_object", lambda self, *a: server.get(*a))
    return asyncio.run(write_status(client.ApiClient.__new__(client.ApiClient), Store(), SEEN, PLANNED))


@pytest.mark.parametrize("meddles", [0, 1, STATUS_TRIES - 1])
def test_a_writer_of_other_things_does_not_keep_the_status_from_being_written(
    monkeypatch: pytest.MonkeyPatch, meddles: int
) -> None:
    server = Server(meddles, metadata={"annotations": {"someone": "else"}})
    assert written(monkeypatch, server)
    assert server.stored.status.weight == 50
    assert server.stored.metadata.annotations == ({"someone": "else"} if meddles else {})


def test_one_who_is_quicker_every_time_is_given_up_for_this_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(STATUS_TRIES, metadata={"labels": {"a": "b"}})
    assert not written(monkeypatch, server)


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": {"generation": 4}, "spec": spec("b")},
        {"metadata": {"uid": "another"}},
        {"metadata": {"annotations": {"tandem.dev/abort": "0123456789"}}},
        {"status": Status(weight=10)},
    ],
    ids=["edited", "made anew", "a command", "another operator's status"],
)
def test_a_plan_for_what_is_no_more_is_not_written(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    server = Server(1, **changes)
    assert not written(monkeypatch, server)
    assert server.stored.status.weight != 50
