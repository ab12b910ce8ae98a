"""The kubelet's HTTPS endpoint, as far as `kubectl logs` needs it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from localcluster.agent.container import ContainerRunner
from localcluster.agent.logfile import read_chunk, start_of_last_lines

PORT = 20250
_POLL_SECONDS = 0.1
_CHUNK_BYTES = 1 << 16

Lookup = Callable[[str, str, str], ContainerRunner | None]
"""(namespace, pod, container)"""


async def serve(address: str, folder: Path, lookup: Lookup) -> web.AppRunner:
    """Serve on `address`:PORT with kubelet.crt and kubelet.key of `folder`."""

    async def logs(request: web.Request) -> web.StreamResponse:
        info = request.match_info
        runner = lookup(info["namespace"], info["pod"], info["container"])
        if runner is None:
            return web.Response(status=404, text=f"no container {info['container']} in pod {info['pod']} here\n")
        return await _send(request, runner)

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "kubelet.crt", folder / "kubelet.key")
    server = web.AppRunner(application, access_log=None)
    await server.setup()
    await web.TCPSite(server, address, PORT, ssl_context=context, shutdown_timeout=0.1).start()
    return server


async def _send(request: web.Request, runner: ContainerRunner) -> web.StreamResponse:
    path = runner.log_path(previous=request.query.get("previous") == "true")
    if not path.exists():
        name = runner.container.name
        return web.Response(status=400, text=f'container "{name}" is waiting to start, or never ran before\n')
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    lines = int(request.query["tailLines"]) if "tailLines" in request.query else None
    offset = start_of_last_lines(path, lines)
    left = int(request.query.get("limitBytes", 1 << 62))
    follow = request.query.get("follow") == "true"
    while left > 0:
        # Asked before reading: what it wrote before it ended is read below.
        lives = runner.running and path == runner.log_path()
        chunk = read_chunk(path, offset, min(left, _CHUNK_BYTES))
        if chunk:
            await response.write(chunk)
            offset, left = offset + len(chunk), left - len(chunk)
        elif follow and lives:
            await asyncio.sleep(_POLL_SECONDS)
        else:
            break
    await response.write_eof()
    return response
