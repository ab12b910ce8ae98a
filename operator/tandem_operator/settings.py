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
    lease_namespace: str = ""  # where the Lease is that one operator at a time holds; empty: none is asked for
    identity: str = ""  # of the holder; empty: made up
    workers: int = 32  # passes at once: a worker that hangs holds one of them up for seconds
    resync_seconds: float = 120.0
