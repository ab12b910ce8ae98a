"""A client with real completion requests: what users of the Service see, counted.

Every request opens a connection of its own, because a Service chooses a pod per connection. Nothing is tried again:
a request that fails is a user who saw an error.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

REQUEST_LIMIT_SECONDS = 60


@dataclass(frozen=True)
class Load:
    """What is asked for. Greedy, so that every run asks for the same text."""

    url: str  # of the Service, without a path
    model: str
    prompts: Sequence[str]
    concurrency: int = 2
    max_tokens: int = 64
    stream_every: int = 2  # every n-th request streams; 0: none does


@dataclass(frozen=True)
class Outcome:
    """One request as its user saw it. `failure` is empty, or the kind of failure."""

    seconds: float
    tokens: int = 0
    failure: str = ""
    prompt: str = ""
    text: str = ""


@dataclass(frozen=True)
class Statistics:
    """Of all requests of one load. `seconds` is the time from the first request to the end of the last."""

    requests: int
    tokens: int
    seconds: float
    median_request_seconds: float
    failures: Mapping[str, int]

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def statistics(outcomes: Iterable[Outcome], seconds: float) -> Statistics:
    outcomes = list(outcomes)
    finished = sorted(outcome.seconds for outcome in outcomes if not outcome.failure)
    return Statistics(
        requests=len(outcomes),
        tokens=sum(outcome.tokens for outcome in outcomes),
        seconds=seconds,
        median_request_seconds=finished[len(finished) // 2] if finished else 0.0,
        failures=Counter(outcome.failure for outcome in outcomes if outcome.failure),
    )


def read_prompts(path: Path) -> tuple[str, ...]:
    """The `prompt` of every line of a JSON-lines file."""
    return tuple(json.loads(line)["prompt"] for line in path.read_text().splitlines() if line.strip())


async def send(load: Load, requests: int) -> Statistics:
    """Send so many requests, `load.concurrency` at a time, and wait for all of them."""
    numbers = iter(range(requests))
    outcomes: list[Outcome] = []
    start = time.monotonic()
    async with _session(load) as session:

        async def user() -> None:
            for number in numbers:
                outcomes.append(await complete(session, load, number))

        await asyncio.gather(*(user() for _ in range(load.concurrency)))
    return statistics(outcomes, time.monotonic() - start)


@dataclass
class Background:
    """Users who keep asking for as long as the block of `background` runs."""

    outcomes: list[Outcome] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def statistics(self) -> Statistics:
        """Of all requests that ended so far."""
        return statistics(self.outcomes, time.monotonic() - self.started)


@asynccontextmanager
async def background(load: Load, pause_seconds: float = 0.0) -> AsyncIterator[Background]:
    """Keeps `load.concurrency` users busy until the block ends; then lets every request that was begun end, too."""
    seen = Background()
    numbers = itertools.count()
    over = asyncio.Event()
    async with _session(load) as session:

        async def user() -> None:
            while not over.is_set():
                seen.outcomes.append(await complete(session, load, next(numbers)))
                await asyncio.sleep(pause_seconds)

        users = [asyncio.create_task(user()) for _ in range(load.concurrency)]
        try:
            yield seen
        finally:
            over.set()
            await asyncio.gather(*users)


async def complete(session: aiohttp.ClientSession, load: Load, number: int) -> Outcome:
    """One greedy completion of prompt `number`, modulo how many there are."""
    stream = bool(load.stream_every) and number % load.stream_every == 0
    body: dict[str, object] = {
        "model": load.model,
        "prompt": load.prompts[number % len(load.prompts)],
        "max_tokens": load.max_tokens,
        "temperature": 0,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    start, prompt = time.monotonic(), str(body["prompt"])
    try:
        async with session.post(f"{load.url}/v1/completions", json=body) as response:
            if response.status != 200:
                return Outcome(time.monotonic() - start, failure=f"HTTP {response.status}", prompt=prompt)
            tokens, text = await (_streamed(response) if stream else _whole(response))
    except (aiohttp.ClientError, OSError, ValueError, LookupError) as error:
        return Outcome(time.monotonic() - start, failure=failure_kind(error), prompt=prompt)
    return Outcome(time.monotonic() - start, tokens, "" if tokens else "empty answer", prompt, text)


def failure_kind(error: Exception) -> str:
    """A few words by which failures are counted: the same for every request that failed alike."""
    if isinstance(error, TimeoutError):
        return f"no answer in {REQUEST_LIMIT_SECONDS} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "connection refused"
    if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, ConnectionError, EOFError)):
        return "connection lost"
    if isinstance(error, ValueError | LookupError | aiohttp.ContentTypeError):
        return "not an OpenAI answer"
    return type(error).__name__


async def _whole(response: aiohttp.ClientResponse) -> tuple[int, str]:
    """Tokens and text."""
    answer = await response.json()
    return int(answer["usage"]["completion_tokens"]), str(answer["choices"][0]["text"])


async def _streamed(response: aiohttp.ClientResponse) -> tuple[int, str]:
    """Of a stream of server-sent events. One that ends before its `[DONE]` was cut off."""
    tokens, text = 0, ""
    async for line in response.content:
        data = line.decode().strip().removeprefix("data:").strip()
        if data == "[DONE]":
            return tokens, text
        event = json.loads(data) if data else {}
        text += "".join(choice["text"] for choice in event.get("choices", ()))
        if usage := event.get("usage"):
            tokens = int(usage["completion_tokens"])
    raise ConnectionError("the stream ended before [DONE]")


def _session(load: Load) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=load.concurrency),
        timeout=aiohttp.ClientTimeout(total=REQUEST_LIMIT_SECONDS),
    )
