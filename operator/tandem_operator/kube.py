"""The parts of Kubernetes objects that we read, typed at the boundary; what we do not read is ignored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio import client
from pydantic import Field

from tandem_operator.api.base import ApiModel


class Owner(ApiModel):
    uid: str
    controller: bool = False


class Meta(ApiModel):
    name: str
    uid: str = ""
    namespace: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[Owner] = []
    deletion_timestamp: datetime | None = None

    def owned_by(self, uid: str) -> bool:
        return any(owner.uid == uid for owner in self.owner_references)

    def ours(self, uid: str) -> bool:
        """Of the object with this uid, or nobody's: then it may be taken over."""
        return self.owned_by(uid) or not any(owner.controller for owner in self.owner_references)


class Named(ApiModel):
    metadata: Meta


class Condition(ApiModel):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class Waiting(ApiModel):
    reason: str = ""
    message: str = ""


class Terminated(ApiModel):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class Running(ApiModel):
    """Since when is not read."""


class ContainerState(ApiModel):
    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class Container(ApiModel):
    restart_count: int = 0
    image_id: str = Field(default="", alias="imageID")
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()

    @property
    def ended(self) -> Terminated | None:
        """How the container last ended: now, or before the restart that it waits for."""
        return self.state.terminated or self.last_state.terminated


class PodStatus(ApiModel):
    pod_ip: str = Field(default="", alias="podIP")
    conditions: list[Condition] = []
    container_statuses: list[Container] = []
    init_container_statuses: list[Container] = []

    @property
    def containers(self) -> list[Container]:
        return [*self.init_container_statuses, *self.container_statuses]


class PodObject(ApiModel):
    metadata: Meta
    status: PodStatus = PodStatus()


class ReplicasSpec(ApiModel):
    replicas: int = 1


class ReplicasStatus(ApiModel):
    ready_replicas: int = 0
    conditions: list[Condition] = []


class DeploymentObject(ApiModel):
    metadata: Meta
    spec: ReplicasSpec = ReplicasSpec()
    status: ReplicasStatus = ReplicasStatus()


class JobStatus(ApiModel):
    conditions: list[Condition] = []


class JobObject(ApiModel):
    metadata: Meta
    status: JobStatus = JobStatus()


class ControllerRevisionObject(ApiModel):
    metadata: Meta
    revision: int
    data: dict[str, Any]


class ConfigMapObject(ApiModel):
    data: dict[str, str] = {}


class ServiceObject(ApiModel):
    metadata: Meta


class ListMeta(ApiModel):
    resource_version: str = ""
    next_page: str = Field(default="", alias="continue")


class RawList(ApiModel):
    """A page of a list, its items as they came."""

    metadata: ListMeta = ListMeta()
    items: list[dict[str, Any]] = []


class CrdSchema(ApiModel):
    openapi: dict[str, Any] = Field(default={}, alias="openAPIV3Schema")


class CrdVersion(ApiModel):
    name: str
    crd_schema: CrdSchema = Field(default=CrdSchema(), alias="schema")


class CrdSpec(ApiModel):
    versions: list[CrdVersion]


class CrdObject(ApiModel):
    spec: CrdSpec


T = TypeVar("T", bound=ApiModel)

UNANSWERED = (client.ApiException, aiohttp.ClientError, TimeoutError)
"""What a request to the API server raises that was refused, or came to nothing."""


def words(error: Exception) -> str:
    """The API server's own, or what became of the request."""
    if not isinstance(error, client.ApiException):
        return f"{type(error).__name__} {error}".strip()
    try:
        status = client.V1Status.from_json(error.body or "")
        return (status.message if status else "") or str(error.reason)
    except ValueError:
        return str(error.reason)


async def got(kind: type[T], call: Callable[..., Awaitable[Any]], *args: str, **selectors: str) -> T:
    """Call a reading method of the client (its `…_without_preload_content` form) and parse what comes back.

    Raises ApiException for what the API server refuses.
    """
    response = await call(*args, **selectors)
    body = await response.read()
    if response.status != 200:
        raise client.ApiException(status=response.status, reason=response.reason, body=body.decode(errors="replace"))
    return kind.model_validate_json(body)


async def page(api: client.ApiClient, path: str, query: dict[str, str]) -> RawList:
    """A list, or a part of one, as it came. Raises ApiException."""

    async def ask() -> Any:
        request = await api.param_serialize(
            "GET", path, query_params=[(k, v) for k, v in query.items() if v], auth_settings=["BearerToken"]
        )
        answer = await api.call_api(*request)
        return answer.response

    return await got(RawList, ask)
