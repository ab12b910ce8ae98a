"""The HTTP surface: generation as with OpenAI, health, metrics, status, and the operator's one command."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from tandem_worker.contract import WorkerStatus
from tandem_worker.server.admin import Refused
from tandem_worker.server.api import ApiError
from tandem_worker.server.envelope import Envelope
from tandem_worker.server.generation import add_generation
from tandem_worker.server.worker import Worker

log = logging.getLogger(__name__)


def make_app(worker: Worker) -> FastAPI:
    app = FastAPI(title="tandem-worker", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Envelope)
    _answer_errors(app)
    _add_probes(app, worker)
    _add_models(app, worker)
    add_generation(app, worker)
    _add_admin(app, worker)
    return app


def _add_probes(app: FastAPI, worker: Worker) -> None:
    @app.get("/health")  # where clients of vLLM look
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
        return JSONResponse(failure.body(), failure.status, failure.headers)

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
