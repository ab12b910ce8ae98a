"""The demo's client counts what a user of the Service sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from demo.load import Load, Outcome, background, read_prompts, send, statistics


@pytest.fixture
async def service() -> AsyncIterator[TestServer]:
    """Answers as an OpenAI server does: prompt `tokens:N` gives N tokens; other prompts name what goes wrong."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["prompt"] == "refuse":
            return web.json_response({"error": {}}, status=503)
        if body["prompt"] == "nonsense":
            return web.Response(text="<html>")
        usage = {"completion_tokens": int(body["prompt"].removeprefix("tokens:").removeprefix("cut:"))}
        if not body["stream"]:
            return web.json_response({"choices": [{"text": "x"}], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"text": "x"}], "usage": null}\n\n')
        if not body["prompt"].startswith("cut"):
            await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    server = TestServer(app)
    async with server:
        yield server


def load(server: TestServer, *prompts: str, stream_every: int = 2) -> Load:
    return Load(str(server.make_url("")).rstrip("/"), "tiny", prompts, stream_every=stream_every)


async def test_tokens_of_whole_and_streamed_answers_are_counted(service: TestServer) -> None:
    seen = await send(load(service, "tokens:5", "tokens:7"), requests=6)
    assert (seen.requests, seen.tokens, seen.failed) == (6, 3 * 5 + 3 * 7, 0)
    assert seen.tokens_per_second == pytest.approx(36 / seen.seconds)


async def test_failures_are_counted_by_kind(service: TestServer) -> None:
    seen = await send(load(service, "refuse", "tokens:3", "nonsense", "tokens:0", stream_every=0), requests=8)
    assert seen.failures == {"HTTP 503": 2, "not an OpenAI answer": 2, "empty answer": 2}
    assert (seen.requests, seen.tokens) == (8, 6)


async def test_a_stream_that_is_cut_off_is_a_failed_request(service: TestServer) -> None:
    seen = await send(load(service, "cut:5", stream_every=1), requests=2)
    assert seen.failures == {"connection lost": 2}


async def test_nobody_listening_is_a_failed_request() -> None:
    nowhere = Load(f"http://127.0.0.1:{unused_port()}", "tiny", ("tokens:1",))
    assert (await send(nowhere, requests=3)).failures == {"connection refused": 3}


async def test_background_users_go_on_until_the_block_ends_and_finish_what_they_began(service: TestServer) -> None:
    async with background(load(service, "tokens:2"), pause_seconds=0.001) as clients:
        await send(load(service, "tokens:2"), requests=10)
    ended = clients.statistics()
    assert ended.requests > 0
    assert ended.failed == 0
    assert ended.tokens == 2 * ended.requests
    await asyncio.sleep(0.02)
    assert clients.statistics().requests == ended.requests


def test_the_median_is_of_requests_that_finished() -> None:
    outcomes = [Outcome(1.0, 4), Outcome(2.0, 4), Outcome(3.0, 4), Outcome(60.0, failure="no answer in 60 s")]
    seen = statistics(outcomes, seconds=6.0)
    assert seen.median_request_seconds == 2.0
    assert seen.tokens_per_second == 2.0
    assert seen.failures == {"no answer in 60 s": 1}


def test_no_request_at_all_has_no_speed() -> None:
    seen = statistics([], seconds=0.0)
    assert (seen.tokens_per_second, seen.median_request_seconds, seen.failed) == (0.0, 0.0, 0)


def test_prompts_are_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": 0, "prompt": "one\\n"}\n\n{"id": 1, "prompt": "two"}\n')
    assert read_prompts(file) == ("one\n", "two")
