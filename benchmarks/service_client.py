"""A client of a worker's API that does what a plan says, hangs up when it says so, and checks what it is told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from service_plan import Asked, End, Outcome

LIMIT_SECONDS = 120.0
ENDINGS = {"stop", "length"}


class Told(Exception):
    """The answer is not what it must be."""


async def ask(session: aiohttp.ClientSession, model: str, asked: Asked) -> Outcome:
    """Never raises: whatever happens is an outcome. Times are taken of streams with one choice."""
    stay = asked.leave_after_seconds
    try:
        async with asyncio.timeout(LIMIT_SECONDS if stay is None else stay):
            async with session.post(asked.route, json={"model": model, **asked.body}) as answer:
                if answer.status == 429:
                    return Outcome(End.REFUSED)
                if answer.status != 200:
                    return Outcome(End.WRONG, problem=f"{answer.status}: {await answer.text()} to {dict(asked.body)}")
                if asked.stream:
                    return await _streamed(answer, asked)
                return _whole(await answer.json(), asked)
    except TimeoutError:
        if stay is not None:
            return Outcome(End.LEFT)
        return Outcome(End.STUCK, problem=f"no end after {LIMIT_SECONDS:g} s: {asked}")
    except (Told, aiohttp.ClientError, ValueError, KeyError) as problem:
        return Outcome(End.WRONG, problem=f"{type(problem).__name__}: {problem}; asked {dict(asked.body)}")


def _whole(answer: dict[str, Any], asked: Asked) -> Outcome:
    choices = answer["choices"]
    texts = [_text(choice) for choice in choices]
    endings = {choice["index"]: choice["finish_reason"] for choice in choices}
    tokens = answer["usage"]["completion_tokens"]
    _check(asked, texts, endings, tokens)
    return Outcome(End.FINISHED, tokens, "\0".join(texts))


async def _streamed(answer: aiohttp.ClientResponse, asked: Asked) -> Outcome:
    texts, endings = [""] * asked.choices, dict[int, str]()
    asked_at = newest = time.perf_counter()
    first: float | None = None
    gaps: list[tuple[float, int]] = []
    tokens = events = 0
    async for event in _events(answer):
        if "error" in event:
            raise Told(f"an error in the stream: {event['error']}")
        for choice in event["choices"]:
            texts[choice["index"]] += _text(choice)
            if choice["finish_reason"]:
                endings[choice["index"]] = choice["finish_reason"]
        now, told = time.perf_counter(), event["usage"]["completion_tokens"] if event.get("usage") else tokens
        if told > tokens:
            if asked.choices == 1 and first is not None:
                gaps.append((now - newest, told - tokens))
            elif asked.choices == 1:
                first = now - asked_at
            newest, tokens = now, told
        events += 1
        if asked.leave_after_events is not None and events >= asked.leave_after_events:
            return Outcome(End.LEFT, tokens, "", first, gaps)
    _check(asked, texts, endings, tokens)
    return Outcome(End.FINISHED, tokens, "\0".join(texts), first, gaps)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Up to [DONE], which must come."""
    async for line in answer.content:
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
    raise Told("the stream ended without [DONE]")


def _text(choice: Mapping[str, Any]) -> str:
    text = choice["text"] if "text" in choice else choice.get("message", choice.get("delta"))["content"]
    return text or ""


def _check(asked: Asked, texts: Sequence[str], endings: Mapping[int, str | None], tokens: int) -> None:
    most = asked.body["max_tokens"]
    if set(endings) != set(range(asked.choices)) or not set(endings.values()) <= ENDINGS:
        raise Told(f"{asked.choices} choices ended as {dict(endings)}")
    if not asked.choices <= tokens <= asked.choices * most:
        raise Told(f"{tokens} tokens for {asked.choices} choices of {most} at most")
    if set(endings.values()) == {"length"} and tokens != asked.choices * most:
        raise Told(f"ended by length after {tokens} of {asked.choices * most} tokens")
    stops = asked.body.get("stop", ())
    for stop in [stops] if isinstance(stops, str) else stops:
        if any(stop in text for text in texts):
            raise Told(f"the stop string {stop!r} is in the text")
