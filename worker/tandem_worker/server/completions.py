"""`POST /v1/completions`: from the request's prompts to the engine and back, as one answer or as a stream."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

from tandem_worker.contract import Origin
from tandem_worker.engine.request import Finish, Listener, Request, Sampling
from tandem_worker.engine.thread import EngineThread
from tandem_worker.server.api import ApiError, Choice, Completion, CompletionRequest, Usage
from tandem_worker.server.text import StopStrings, TextStream

MAX_PROMPTS = 128


@dataclass(frozen=True)
class Vocabulary:
    tokenizer: Tokenizer
    size: int

    def encode(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        """Raises ApiError for too many prompts, an empty one, and a token that is none."""
        if len(prompts) > MAX_PROMPTS:
            raise ApiError(400, f"A request may hold {MAX_PROMPTS} prompts, this one holds {len(prompts)}.", "prompt")
        encoded = [self.tokenizer.encode(one).ids if isinstance(one, str) else one for one in prompts]
        for tokens in encoded:
            if not tokens:
                raise ApiError(400, "The prompt is empty.", "prompt")
            if max(tokens) >= self.size:
                raise ApiError(400, f"Token {max(tokens)} is not in the vocabulary of {self.size}.", "prompt")
        return encoded


@dataclass
class Answer:
    """One choice, as far as it has come."""

    request: Request
    text: TextStream
    stops: StopStrings
    completion_tokens: int = 0
    finish: Finish | None = None


class Job:
    """The choices of one HTTP request while the engine works on them."""

    def __init__(
        self,
        engine: EngineThread,
        tokenizer: Tokenizer,
        asked: CompletionRequest,
        prompts: Sequence[list[int]],
        origin: Origin,
    ) -> None:
        """Raises ApiError when a prompt is too long."""
        self._engine, self._model = engine, asked.model
        self._id, self._created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        self._include_usage = asked.stream_options is not None and asked.stream_options.include_usage
        self._events: asyncio.Queue[tuple[int, list[int], Finish | None]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        samplings = [_sampling(asked, index) for index in range(len(prompts))]
        for prompt, sampling in zip(prompts, samplings, strict=True):
            _check_length(len(prompt), sampling.max_tokens, engine.engine.context_limit)
        self._answers = [
            Answer(
                Request(tuple(prompt), sampling, self._listener(index), origin),
                TextStream(tokenizer, prompt),
                StopStrings(asked.stop),
            )
            for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]

    async def whole(self) -> Completion:
        """Raises ApiError when the engine fails."""
        texts = [""] * len(self._answers)
        async for choice in self._choices():
            texts[choice.index] += choice.text
        choices = [
            Choice(index=index, text=texts[index], finish_reason=_reason(answer.finish))
            for index, answer in enumerate(self._answers)
        ]
        return self._completion(choices, self._usage())

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events. A failure of the engine is an event too: the status line is long gone."""
        try:
            async for choice in self._choices():
                yield _event(self._completion([choice]).model_dump_json(exclude={"usage"}))
            if self._include_usage:
                yield _event(self._completion([], self._usage()).model_dump_json())
        except ApiError as failure:
            yield _event(json.dumps(failure.body()))
        yield _event("[DONE]")

    async def _choices(self) -> AsyncIterator[Choice]:
        """Pieces of text as they come. Whoever stops listening ends the requests, and their pages are free again."""
        for answer in self._answers:
            self._engine.submit(answer.request)
        try:
            while any(answer.finish is None for answer in self._answers):
                index, tokens, finish = await self._events.get()
                choice = self._take(index, tokens, finish)
                if choice is not None:
                    yield choice
        finally:
            for answer in self._answers:
                if answer.finish is None:
                    self._engine.end(answer.request, Finish.CANCELLED)

    def _take(self, index: int, tokens: list[int], finish: Finish | None) -> Choice | None:
        answer = self._answers[index]
        if answer.finish is not None:  # what came after its stop string
            return None
        if finish is Finish.FAILED:
            raise ApiError(500, "The engine failed; the worker will be replaced.", code="engine_broken")
        if finish is Finish.CANCELLED:
            raise ApiError(503, "The worker is shutting down; ask again.", code="shutting_down")
        answer.completion_tokens += len(tokens)
        shown = [token for token in tokens if token not in self._engine.engine.eos_token_ids]
        last = finish is not None
        text, stopped = answer.stops.push(answer.text.push(shown, last), last)
        if stopped and not last:
            self._engine.end(answer.request, Finish.STOP)
        answer.finish = Finish.STOP if stopped else finish
        if not text and answer.finish is None:
            return None
        return Choice(index=index, text=text, finish_reason=_reason(answer.finish))

    def _listener(self, index: int) -> Listener:
        def listen(tokens: list[int], finish: Finish | None) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._events.put_nowait, (index, tokens, finish))

        return listen

    def _completion(self, choices: list[Choice], usage: Usage | None = None) -> Completion:
        return Completion(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)

    def _usage(self) -> Usage:
        return Usage.of(
            sum(len(answer.request.prompt) for answer in self._answers),
            sum(answer.completion_tokens for answer in self._answers),
        )


def _sampling(asked: CompletionRequest, index: int) -> Sampling:
    """Prompts of one request draw independently, also with a seed."""
    seed = secrets.randbits(63) if asked.seed is None else asked.seed + index
    return Sampling(asked.max_tokens, asked.temperature, asked.top_p, seed)


def _check_length(prompt_tokens: int, max_tokens: int, limit: int) -> None:
    if prompt_tokens + max_tokens > limit:
        message = (
            f"This model's context holds {limit} tokens, but {prompt_tokens + max_tokens} are asked for "
            f"({prompt_tokens} in the prompt, {max_tokens} for the completion). Shorten the prompt or max_tokens."
        )
        raise ApiError(400, message, "prompt", "context_length_exceeded")


def _reason(finish: Finish | None) -> Literal["stop", "length"] | None:
    return None if finish is None else "stop" if finish is Finish.STOP else "length"


def _event(data: str) -> str:
    return f"data: {data}\n\n"
