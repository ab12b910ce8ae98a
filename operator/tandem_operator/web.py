"""`/healthz` and `/metrics` of the operator. Health is progress, not an open port."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from tandem_operator.metrics import Metrics
from tandem_operator.queue import WorkQueue

BEAT_MOST_SECONDS, STUCK_MOST_SECONDS = 30.0, 300.0


def ailment(queue: WorkQueue, last_list_seconds: float, now_seconds: float, list_every_seconds: float) -> str:
    """Why the operator makes no progress, or an empty string. Times are of the event loop's clock.

    An API server that is away is not our ailment: a list that failed counts as tried.
    """
    if not queue.beat_seconds:
        return ""  # it waits for the lease, as it should
    if now_seconds - queue.beat_seconds > BEAT_MOST_SECONDS:
        return f"the work queue has not turned for {now_seconds - queue.beat_seconds:.0f} s"
    if queue.stuck_seconds() > STUCK_MOST_SECONDS:
        return f"a reconcile has been running for {queue.stuck_seconds():.0f} s"
    if now_seconds - last_list_seconds > 5 * list_every_seconds:
        return f"objects have not been listed for {now_seconds - last_list_seconds:.0f} s"
    return ""


async def serve(host: str, port: int, metrics: Metrics, queue: WorkQueue, ails: Callable[[], str]) -> web.AppRunner:
    """Start the server; the caller cleans the runner up."""

    async def healthz(_: web.Request) -> web.Response:
        problem = ails()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def show_metrics(_: web.Request) -> web.Response:
        metrics.look(queue, ails())
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=metrics.exposition(), headers=headers)

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", show_metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
