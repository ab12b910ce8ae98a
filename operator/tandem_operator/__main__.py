"""`tandem-operator`: settings and start. The main loop of an object is in `reconcile.py`, decisions are in `plan/`."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import Annotated

import typer

from tandem_operator.run import run
from tandem_operator.settings import Settings

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def main_command(
    worker_image: Annotated[str, typer.Option(envvar="TANDEM_WORKER_IMAGE", help="Image of workers and validation.")],
    allowed_host_path: Annotated[
        list[str] | None,
        typer.Option(envvar="TANDEM_ALLOWED_HOST_PATHS", help="Prefix that hostPath sources may lie in. Repeatable."),
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(envvar="TANDEM_NAMESPACES", help="Namespace to serve; default: all. Repeatable.")
    ] = None,
    http_host: Annotated[str, typer.Option(envvar="TANDEM_HTTP_HOST")] = "0.0.0.0",
    http_port: Annotated[int, typer.Option(envvar="TANDEM_HTTP_PORT")] = 8080,
    resync_seconds: Annotated[float, typer.Option(envvar="TANDEM_RESYNC_SECONDS", min=1)] = 120.0,
    lease_namespace: Annotated[
        str,
        typer.Option(envvar="TANDEM_LEASE_NAMESPACE", help="Of the Lease that one operator at a time holds; '': none."),
    ] = "",
    identity: Annotated[str, typer.Option(envvar="TANDEM_IDENTITY", help="Of the holder of the Lease: the pod.")] = "",
) -> None:
    logging.basicConfig(
        level=os.environ.get("TANDEM_LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line for every event seen is no news
    settings = Settings(
        worker_image=worker_image,
        allowed_host_paths=tuple(allowed_host_path or ()),
        namespaces=tuple(namespace or ()),
        http_host=http_host,
        http_port=http_port,
        resync_seconds=resync_seconds,
        lease_namespace=lease_namespace,
        identity=identity,
    )
    with suppress(asyncio.CancelledError):  # asked to stop before kopf ran
        asyncio.run(run(settings))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
