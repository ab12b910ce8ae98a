"""The HTTP surface: OpenAI's completions, health, metrics, status, and the operator's one command."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from tandem_worker.contract import ORIGIN_HEADER, Origin, WorkerStatus
from tandem_worker.server.admin import Refused
from tandem_worker.server.api import ApiError, Completion, CompletionRequest
from tandem_worker.server.completions import Job
from tandem_worker.server.worker import Worker

log = logging.getLogger(__name__)

REVISION_HEADER = "x-tandem-revision"


def make_app(worker: Worker) -> FastAPI:
    app = FastAPI(title="tandem-worker", docs_url=None, redoc_url=None, openapi_url=None)
    _answer_errors(app)
    _add_probes(app, worker)
    _add_models(app, worker)
    _add_completions(app, worker)
    _add_admin(app, worker)
    return app


def _add_probes(app: FastAPI, worker: Worker) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        reason = worker.unhealthy()
        return PlainTextResponse(reason or "ok", 503 if reason else 200)

    @app.get("/readyz")
    async def readyz() -> Response:
        reason = worker.unready()
        return PlainTextResponse(reason or "ok", 503 if reason else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(worker.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/status")
    async def status() -> WorkerStatus:
        return worker.status()


def _add_models(app: FastAPI, worker: Worker) -> None:
    @app.get("/v1/models")
    async def models() -> JSONResponse:
        model = {
            "id": worker.identity.model,
            "object": "model",
            "created": worker.started_at,
            "owned_by": "tandem",
            "max_model_len": worker.engine.engine.context_limit,
        }
        return JSONResponse({"object": "list", "data": [model]})


def _add_completions(app: FastAPI, worker: Worker) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        if asked.model != worker.identity.model:
            message = f"The model {asked.model!r} does not exist; this worker serves {worker.identity.model!r}."
            raise ApiError(404, message, "model", "model_not_found")
        if worker.unhealthy():
            raise ApiError(503, worker.unhealthy(), code="engine_broken")
        calibration = request.headers.get(ORIGIN_HEADER) == Origin.CALIBRATION
        origin = Origin.CALIBRATION if calibration else Origin.USER
        prompts = await asyncio.to_thread(worker.vocabulary.encode, asked.prompts())  # long ones take long
        job = Job(worker.engine, worker.vocabulary.tokenizer, asked, prompts, origin)
        headers = {REVISION_HEADER: worker.identity.revision}
        if worker.draining:
            headers["connection"] = "close"  # so that the client's next request finds another worker
        if asked.stream:
            return StreamingResponse(_counted(worker, job.stream()), media_type="text/event-stream", headers=headers)
        with worker.in_flight:
            completion = await _unless_disconnected(request, job.whole())
        return Response(completion.model_dump_json(), media_type="application/json", headers=headers)


async def _counted(worker: Worker, events: AsyncIterator[str]) -> AsyncIterator[str]:
    with worker.in_flight:
        async for event in events:
            yield event


async def _unless_disconnected(request: Request, work: Coroutine[None, None, Completion]) -> Completion:
    """Cancels `work` when the client leaves before the answer is there."""
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ApiError(499, "The client closed the connection.")
        return answer.result()
    finally:
        for task in (answer, gone):
            task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_admin(app: FastAPI, worker: Worker) -> None:
    @app.post("/admin/speculation")
    async def speculation(request: Request) -> WorkerStatus:
        command = worker.gate.admit(request.headers.get("authorization"))
        if command.enabled and not worker.engine.engine.can_speculate:
            raise Refused(409, "Speculation can not be switched on: the worker was started without a drafter.")
        worker.carry_out(command)
        log.info("Speculation switched %s by the operator: %s", "on" if command.enabled else "off", command.reason)
        return worker.status()


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, failure: ApiError) -> Response:
        return JSONResponse(failure.body(), failure.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, failure: RequestValidationError) -> Response:
        problem = failure.errors()[0]
        where = ".".join(str(part) for part in problem["loc"][1:])
        return JSONResponse(ApiError(400, f"{where or 'body'}: {problem['msg']}", where or None).body(), 400)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, failure: HTTPException) -> Response:
        return JSONResponse(ApiError(failure.status_code, str(failure.detail)).body(), failure.status_code)

    @app.exception_handler(Refused)
    async def refused(request: Request, failure: Refused) -> Response:
        return JSONResponse({"reason": failure.reason}, failure.status)
