"""The two routes that generate text: who may come in, what becomes a job, and how an answer goes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tandem_worker.contract import ORIGIN_HEADER, Origin
from tandem_worker.engine.request import Sampling
from tandem_worker.server.api import ApiError, GenerationRequest
from tandem_worker.server.chat import ChatForm, ChatRequest
from tandem_worker.server.completions import CompletionForm, CompletionRequest
from tandem_worker.server.envelope import request_id
from tandem_worker.server.forms import Form, stream, whole
from tandem_worker.server.job import Job
from tandem_worker.server.worker import Worker

REVISION_HEADER = "x-tandem-revision"
RETRY_AFTER_SECONDS = 1


def add_generation(app: FastAPI, worker: Worker) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        prompts = asked.prompts()
        with ExitStack() as held:
            _admit(worker, asked, len(prompts), held)
            encoded = await asyncio.to_thread(worker.vocabulary.encode, prompts)  # long ones take long
            samplings = [asked.sampling(asked.max_tokens, asked.logprobs, index) for index in range(len(encoded))]
            job = _job(worker, request, f"cmpl-{request_id(request)}", encoded, samplings, asked)
            form = CompletionForm(job, worker.vocabulary, asked.model, int(time.time()), asked.logprobs)
            return await _answer(worker, request, asked, job, form, held)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(asked: ChatRequest, request: Request) -> Response:
        with ExitStack() as held:
            _admit(worker, asked, 1, held)
            text = await asyncio.to_thread(worker.template.prompt, asked.messages)
            prompt = await asyncio.to_thread(worker.vocabulary.encode_rendered, text)
            longest = asked.longest or max(1, worker.engine.engine.context_limit - len(prompt))
            sampling = asked.sampling(longest, asked.top_logprobs if asked.logprobs else None)
            job = _job(worker, request, f"chatcmpl-{request_id(request)}", [prompt], [sampling], asked)
            form = ChatForm(job, worker.vocabulary, asked.model, int(time.time()), asked.logprobs)
            return await _answer(worker, request, asked, job, form, held)


def _admit(worker: Worker, asked: GenerationRequest, choices: int, held: ExitStack) -> None:
    """Takes places for the choices, which `held` gives back. Raises ApiError."""
    if asked.model != worker.identity.model:
        message = f"The model {asked.model!r} does not exist; this worker serves {worker.identity.model!r}."
        raise ApiError(404, message, "model", "model_not_found")
    if worker.unhealthy():
        raise ApiError(503, worker.unhealthy(), code="engine_broken")
    if worker.full:
        worker.metrics.refused.inc()
        message = f"{worker.max_waiting} requests and more wait already; ask again in {RETRY_AFTER_SECONDS} s."
        raise ApiError(429, message, code="overloaded", headers={"retry-after": str(RETRY_AFTER_SECONDS)})
    held.enter_context(worker.in_flight.places(choices))


def _job(
    worker: Worker,
    request: Request,
    identifier: str,
    prompts: list[list[int]],
    samplings: list[Sampling],
    asked: GenerationRequest,
) -> Job:
    calibration = request.headers.get(ORIGIN_HEADER) == Origin.CALIBRATION
    origin = Origin.CALIBRATION if calibration else Origin.USER
    pairs = list(zip(prompts, samplings, strict=True))
    return Job(identifier, worker.engine, worker.mailbox(), worker.vocabulary, pairs, asked.stop, origin)


async def _answer(
    worker: Worker, request: Request, asked: GenerationRequest, job: Job, form: Form, held: ExitStack
) -> Response:
    headers = {REVISION_HEADER: worker.identity.revision}
    if worker.draining:
        headers["connection"] = "close"  # so that the client's next request finds another worker
    if asked.stream:
        return Streamed(stream(job, form, asked.stream_options), headers, held.pop_all())
    text = await _unless_disconnected(request, whole(job, form))
    return Response(text, media_type="application/json", headers=headers)


class Streamed(StreamingResponse):
    """Keeps its places until the last byte is out, or the client is gone."""

    def __init__(self, events: AsyncIterator[str], headers: dict[str, str], held: ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


async def _unless_disconnected(request: Request, work: Coroutine[None, None, str]) -> str:
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
