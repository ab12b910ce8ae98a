"""The endpoints of a serving pod, and `POST /sim`."""

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from simulator.arguments import Imitated
from simulator.commands import Refused, admit
from simulator.engine import Engine, Failed
from tandem_worker.contract import ORIGIN_HEADER, Origin

Fields = TypeAdapter(dict[str, Any])
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CompletionRequest(BaseModel):
    """Of OpenAI's request, what a simulator heeds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str
    prompt: str | list[int]
    max_tokens: int = Field(16, ge=1)
    stream: bool = False

    @property
    def prompt_tokens(self) -> int:
        return max(1, len(self.prompt) // 4 if isinstance(self.prompt, str) else len(self.prompt))


def error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "simulated", "code": status}}, status=status)


def chunk(asked: CompletionRequest, number: int, tokens: int, finish_reason: str | None) -> dict[str, object]:
    """A completion, whole or in part: `tokens` words."""
    choice = {"index": 0, "text": " word" * tokens, "logprobs": None, "finish_reason": finish_reason}
    created = int(time.time())
    return {
        "id": f"cmpl-{number}",
        "object": "text_completion",
        "created": created,
        "model": asked.model,
        "choices": [choice],
    }


class Server:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._completions = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._hang])
        common = [
            web.get("/metrics", self.metrics),
            web.get("/v1/models", self.models),
            web.post("/v1/completions", self.completions),
            web.post("/sim", self.sim),
        ]
        of_its_own = {
            Imitated.TANDEM: [
                web.get("/healthz", self.healthz),
                web.get("/readyz", self.readyz),
                web.get("/status", self.status),
                web.post("/admin/speculation", self.speculation),
            ],
            Imitated.SGLANG: [
                web.get("/health", self.readyz),
                web.get("/ready", self.readyz),
                web.get("/server_info", self.version),
            ],
            Imitated.VLLM: [web.get("/health", self.readyz), web.get("/version", self.version)],
        }
        app.add_routes([*common, *of_its_own[self.engine.arguments.command]])
        return app

    @web.middleware
    async def _hang(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/sim":
            await self.engine.until(lambda: not self.engine.behaviour.hang)
        return await handler(request)

    async def healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok") if self.engine.ready else web.Response(text="loading", status=503)

    async def version(self, request: web.Request) -> web.Response:
        newest = {Imitated.SGLANG: "0.5.23", Imitated.VLLM: "0.33.0"}
        said = self.engine.behaviour.engine_version or newest[self.engine.arguments.command]
        return web.json_response({"version": said})

    async def status(self, request: web.Request) -> web.Response:
        return web.json_response(text=self.engine.status().model_dump_json())

    async def metrics(self, request: web.Request) -> web.Response:
        if self.engine.behaviour.metrics_missing:
            return error(404, "Told to have no metrics.")
        return web.Response(body=self.engine.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def models(self, request: web.Request) -> web.Response:
        model = {"id": self.engine.arguments.model, "object": "model", "created": 0, "owned_by": "tandem"}
        return web.json_response({"object": "list", "data": [] if self.engine.behaviour.empty_model_list else [model]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = CompletionRequest.model_validate_json(await request.read())
        except ValidationError as failure:
            return error(400, str(failure))
        if asked.model != self.engine.arguments.model or self.engine.behaviour.empty_model_list:
            return error(404, f"The model {asked.model!r} does not exist.")
        calibration = request.headers.get(ORIGIN_HEADER) == Origin.CALIBRATION
        new_tokens = min(asked.max_tokens, self.engine.behaviour.completion_tokens or asked.max_tokens)
        steps = self.engine.generate(
            Origin.CALIBRATION if calibration else Origin.USER, asked.prompt_tokens, new_tokens
        )
        self._completions += 1
        try:
            async with aclosing(steps):
                return await self._answer(request, asked, steps, new_tokens)
        except Failed:
            return error(500, "Told to fail.")

    async def _answer(
        self, request: web.Request, asked: CompletionRequest, steps: AsyncGenerator[int, None], new_tokens: int
    ) -> web.StreamResponse:
        number, reason = self._completions, "stop" if new_tokens < asked.max_tokens else "length"
        usage = {"prompt_tokens": asked.prompt_tokens, "completion_tokens": new_tokens}
        usage["total_tokens"] = sum(usage.values())
        if not asked.stream:
            tokens = sum([count async for count in steps])
            return web.json_response(chunk(asked, number, tokens, reason) | {"usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        emitted = 0
        async for count in steps:
            if not response.prepared:
                await response.prepare(request)
            emitted += count
            part = chunk(asked, number, count, reason if emitted == new_tokens else None)
            await response.write(f"data: {json.dumps(part)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def speculation(self, request: web.Request) -> web.Response:
        arguments = self.engine.arguments
        try:
            command = admit(request.headers.get("Authorization"), arguments.operator_key_file, arguments.pod_uid)
        except Refused as refused:
            return web.json_response({"reason": refused.reason}, status=refused.status)
        if command.enabled and not self.engine.can_speculate:
            return web.json_response({"reason": "Started without a drafter."}, status=409)
        self.engine.carry_out(command)
        return await self.status(request)

    async def sim(self, request: web.Request) -> web.Response:
        """Changes the behaviour; answers with the whole of it."""
        try:
            await self.engine.tell(Fields.validate_json(await request.read()))
        except ValidationError as failure:
            return error(400, str(failure))
        return web.json_response(text=self.engine.behaviour.model_dump_json())
