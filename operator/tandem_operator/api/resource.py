"""The object as a whole."""

from __future__ import annotations

from datetime import datetime

from tandem_operator.api.base import ApiModel
from tandem_operator.api.spec import Spec
from tandem_operator.api.status import Status


class Metadata(ApiModel):
    name: str
    namespace: str
    uid: str
    resource_version: str = ""
    generation: int = 1
    annotations: dict[str, str] = {}
    deletion_timestamp: datetime | None = None


class SpeculativeDeployment(ApiModel):
    metadata: Metadata
    spec: Spec
    status: Status = Status()
