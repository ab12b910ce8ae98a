"""What the operator is started with. Every option is also an environment variable (TANDEM_…)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True)

    worker_image: str
    allowed_host_paths: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()  # empty: the whole cluster
    http_host: str = "0.0.0.0"
    http_port: int = 8080
    workers: int = 8
    resync_seconds: float = 120.0
