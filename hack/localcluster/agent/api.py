"""The agent's way to the API server: raw JSON in, typed models out, and watches that outlive hiccups."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from localcluster.agent.model import Object

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

Hiccup = (ApiException, aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError)
_RETRY_SECONDS = 0.3
_WATCH_SECONDS = 240  # below the client's own limit of 300 s, so that a quiet watch ends in order


async def connect(kubeconfig: Path) -> client.ApiClient:
    configuration = client.Configuration()
    await config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
    return client.ApiClient(configuration)


async def read(request: Any) -> bytes:
    """The answer of one of the client's `..._without_preload_content` calls. Raises ApiException."""
    response = await request
    body: bytes = await response.read()
    if response.status >= 400:
        raise ApiException(status=response.status, reason=body.decode(errors="replace"))
    return body


def timestamp(moment: datetime | None = None) -> str:
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Watched(Generic[T]):
    """All objects of a kind, kept current by list and watch. `on_change(old, new)` follows each change."""

    def __init__(self, list_call: Callable[..., Any], model: type[T], on_change: Callable[[T | None, T | None], None]):
        self.objects: dict[tuple[str, str], T] = {}
        self.synced = asyncio.Event()
        self._list_call = list_call
        self._model = model
        self._on_change = on_change

    def get(self, namespace: str, name: str) -> T | None:
        return self.objects.get((namespace, name))

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                version = await self._list()
                self.synced.set()
                while version:
                    version = await self._follow(version)
            except Hiccup as error:
                log.info("watching %s: %s", self._model.__name__, str(error)[:200])
            await asyncio.sleep(_RETRY_SECONDS)

    async def _list(self) -> str:
        answer = json.loads(await read(self._list_call()))
        found = [self._model.model_validate(item) for item in answer["items"]]
        for key in self.objects.keys() - {item.key for item in found}:
            self._set(key, None)
        for item in found:
            self._set(item.key, item)
        version: str = answer["metadata"]["resourceVersion"]
        return version

    async def _follow(self, version: str) -> str:
        """One watch request; the version to go on from, or nothing if a new list is needed."""
        response = await self._list_call(
            watch=True, resource_version=version, allow_watch_bookmarks=True, timeout_seconds=_WATCH_SECONDS
        )
        try:
            if response.status >= 400:
                return ""
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return ""
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    item = self._model.model_validate(event["object"])
                    self._set(item.key, None if event["type"] == "DELETED" else item)
        finally:
            response.close()
        return version

    def _set(self, key: tuple[str, str], new: T | None) -> None:
        old = self.objects.pop(key, None)
        if new:
            self.objects[key] = new
        if old != new:
            self._on_change(old, new)
