"""The parts of a Gateway API HTTPRoute that are read and written. Whatever else it holds goes back as it came."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

GATEWAY, GATEWAY_VERSION = "gateway.networking.k8s.io", "v1"


class _Open(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True)


class BackendRef(_Open):
    name: str
    group: str = ""
    kind: str = "Service"
    namespace: str | None = None
    port: int | None = None
    weight: int = 1


class RouteRule(_Open):
    backend_refs: list[BackendRef] = []


class RouteSpec(_Open):
    rules: list[RouteRule] = []


class RouteMetadata(_Open):
    name: str
    resource_version: str = ""


class HttpRoute(_Open):
    metadata: RouteMetadata
    spec: RouteSpec = RouteSpec()
