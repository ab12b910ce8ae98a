"""Answers to what a person asked for are told once each, whatever the API server says and whoever restarts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import client

from tandem_operator.api import Metadata, SpeculativeDeployment, Status
from tandem_operator.api.status import Answer, AnswerOutcome, Command
from tandem_operator.events import Events
from unit.world import spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RESOURCE = SpeculativeDeployment(metadata=Metadata(name="pair", namespace="ns", uid="uid"), spec=spec())


UNAVAILABLE = client.ApiException(status=503, reason="Service Unavailable")


def answered(value: str = "0123456789", at: datetime = NOW) -> Status:
    answer = Answer(command=Command.PROMOTE, value=value, outcome=AnswerOutcome.REFUSED, message="no canary", at=at)
    return Status(answers=[answer])


class Server:
    """What the API server does with events: it keeps one of a name. `refuses`: so many requests end in `failure`."""

    def __init__(self, refuses: int = 0, failure: Exception = UNAVAILABLE) -> None:
        self.kept: dict[str, Any] = {}
        self.asked = 0
        self._refuses, self._failure = refuses, failure

    async def create(self, group: str, version: str, namespace: str, plural: str, body: Any) -> None:
        self.asked += 1
        if self.asked <= self._refuses:
            raise self._failure
        if body["metadata"]["name"] in self.kept:
            raise client.ApiException(status=409, reason="AlreadyExists")
        self.kept[body["metadata"]["name"]] = body


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A life of the operator that talks to the server."""

    def begun(server: Server) -> Events:
        monkeypatch.setattr(
            client.CustomObjectsApi,
            "create_namespaced_custom_object",
            lambda self, *args: server.create(*args),
        )
        return Events(client.ApiClient.__new__(client.ApiClient))

    return begun


def passes(events: Events, status: Status, count: int, now: datetime = NOW) -> None:
    async def run() -> None:
        for _ in range(count):
            await events.tell_answers(RESOURCE, status, now)

    asyncio.run(run())


def test_an_answer_is_told_once_in_many_passes_and_asks_the_api_server_once(process: Any) -> None:
    server = Server()
    passes(process(server), answered(), 5)
    (event,) = server.kept.values()
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "PromoteRefused", "No canary")
    assert server.asked == 1


def test_an_operator_that_comes_after_tells_the_same_event_again_and_one_is_kept(process: Any) -> None:
    server = Server()
    passes(process(server), answered(), 2)
    passes(process(server), answered(), 2)
    assert len(server.kept) == 1
    assert server.asked == 2


@pytest.mark.parametrize(
    "failure", [UNAVAILABLE, TimeoutError(), aiohttp.ServerDisconnectedError()], ids=["503", "no answer", "cut off"]
)
def test_an_answer_that_could_not_be_told_is_told_with_the_next_pass(process: Any, failure: Exception) -> None:
    server = Server(3, failure)
    passes(process(server), answered(), 6)
    assert len(server.kept) == 1
    assert server.asked == 4


def test_what_is_older_than_events_are_kept_does_not_come_back(process: Any) -> None:
    server = Server()
    passes(process(server), answered(), 2, now=NOW + timedelta(hours=2))
    assert server.kept == {}


def test_another_value_or_the_same_at_another_time_is_another_answer(process: Any) -> None:
    server = Server()
    events = process(server)
    for status in (answered(), answered("9876543210"), answered(at=NOW + timedelta(minutes=1))):
        passes(events, status, 2, now=NOW + timedelta(minutes=1))
    assert len(server.kept) == 3
