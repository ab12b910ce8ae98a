"""The choices of one HTTP request while the engine works on them: tokens in, pieces of text out.

Knows nothing of the shape in which clients want them; see `completions` and `chat` for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem_worker.contract import Origin
from tandem_worker.engine.request import Finish, Listener, Logprob, Request, Sampling
from tandem_worker.engine.thread import EngineThread
from tandem_worker.server.api import ApiError, Ending, Usage
from tandem_worker.server.mailbox import Mailbox
from tandem_worker.server.text import StopStrings, TextStream
from tandem_worker.server.vocabulary import Vocabulary

log = logging.getLogger(__name__)


class Told(NamedTuple):
    """A token with its logarithm of probability, and where its text begins in the answer."""

    logprob: Logprob
    offset: int


class Piece(NamedTuple):
    choice: int
    text: str
    tokens: list[Told]  # where logarithms were asked for
    ending: Ending | None
    usage: Usage  # so far, of all choices


@dataclass
class Answer:
    """One choice, as far as it has come."""

    request: Request
    text: TextStream
    stops: StopStrings
    decoded: int = 0  # characters, of all tokens that came
    shown: int = 0  # of these, what was handed out
    unsaid: list[Told] = field(default_factory=list)  # tokens whose text is held back
    unread: list[int] = field(default_factory=list)  # tokens, where they are gathered up to the end
    completion_tokens: int = 0
    finish: Finish | None = None


class Job:
    def __init__(
        self,
        identifier: str,
        engine: EngineThread,
        mailbox: Mailbox,
        vocabulary: Vocabulary,
        prompts: Sequence[tuple[list[int], Sampling]],
        stops: Sequence[str],
        origin: Origin,
    ) -> None:
        """Raises ApiError when a prompt is too long, or a setting names a token that is none."""
        self.identifier, self._engine = identifier, engine
        self._events: asyncio.Queue[tuple[int, list[int], Finish | None]] = asyncio.Queue()
        self._mailbox, self._stops, self._gathered = mailbox, stops, False
        for prompt, sampling in prompts:
            _check_length(len(prompt), sampling.max_tokens, engine.engine.context_limit)
            vocabulary.check([token for token, _ in sampling.logit_bias], "logit_bias")
        self.answers = [
            Answer(
                Request(tuple(prompt), sampling, self._listener(index), origin),
                TextStream(vocabulary.tokenizer, prompt),
                StopStrings(stops),
            )
            for index, (prompt, sampling) in enumerate(prompts)
        ]

    @property
    def usage(self) -> Usage:
        return Usage.of(
            sum(len(answer.request.prompt) for answer in self.answers),
            sum(answer.completion_tokens or len(answer.unread) for answer in self.answers),
        )

    async def pieces(self, gathered: bool = False) -> AsyncIterator[Piece]:
        """As they come, or gathered: each answer in one piece, unless a stop string has to be looked for in between.
        Whoever stops listening ends the requests, and their pages are free again. Raises ApiError when the engine, or a
        request, fails."""
        self._gathered = gathered and not self._stops
        for answer in self.answers:
            self._engine.submit(answer.request)
        started = time.monotonic()
        try:
            while any(answer.finish is None for answer in self.answers):
                index, tokens, finish = await self._events.get()
                piece = self._take(index, tokens, finish)
                if piece is not None:
                    yield piece
        finally:
            for answer in self.answers:
                if answer.finish is None:
                    self._engine.end(answer.request, Finish.CANCELLED)
            self._log(time.monotonic() - started)

    def _log(self, seconds: float) -> None:
        """Never a word of the text."""
        usage, ends = self.usage, [answer.finish or Finish.CANCELLED for answer in self.answers]
        words = self.identifier, usage.prompt_tokens, usage.completion_tokens, seconds, ", ".join(ends)
        log.info("Request %s: %d prompt tokens, %d generated, %.2f s, %s", *words)

    def _take(self, index: int, tokens: list[int], finish: Finish | None) -> Piece | None:
        answer = self.answers[index]
        if answer.finish is not None:  # what came after its stop string
            return None
        if finish is Finish.FAILED:
            answer.finish = finish
            if error := answer.request.error:
                raise ApiError(500, f"This request failed: {error}.", code="request_failed")
            raise ApiError(500, "The engine failed; the worker will be replaced.", code="engine_broken")
        if finish is Finish.CANCELLED:
            answer.finish = finish
            raise ApiError(503, "The worker is shutting down; ask again.", code="shutting_down")
        first, answer.completion_tokens = answer.completion_tokens, answer.completion_tokens + len(tokens)
        text, stopped = self._decode(answer, tokens, first, last=finish is not None)
        if stopped and finish is None:
            self._engine.end(answer.request, Finish.STOP)
        answer.finish = Finish.STOP if stopped else finish
        if not text and answer.finish is None:
            return None
        answer.shown += len(text)
        said, answer.unsaid = answer.unsaid, []
        if stopped:  # nothing is told of tokens behind the stop string
            said = [told for told in said if told.offset < max(answer.shown, 1)]
        return Piece(index, text, said, _ending(answer.finish), self.usage)

    def _decode(self, answer: Answer, tokens: list[int], first: int, last: bool) -> tuple[str, bool]:
        """What may be shown of the tokens' text, and whether a stop string was met."""
        ends = frozenset() if answer.request.sampling.ignore_eos else self._engine.engine.eos_token_ids
        if answer.request.sampling.logprobs is None:
            text = answer.text.push([token for token in tokens if token not in ends], last)
            return answer.stops.push(text, last)
        text = ""
        for i, (token, logprob) in enumerate(zip(tokens, answer.request.logprobs[first:], strict=False)):
            answer.unsaid.append(Told(logprob, answer.decoded))
            piece = answer.text.push([] if token in ends else [token], last and i == len(tokens) - 1)
            answer.decoded += len(piece)
            text += piece
        return answer.stops.push(text, last)

    def _listener(self, index: int) -> Listener:
        def arrived(tokens: list[int], finish: Finish | None) -> None:
            if self._gathered:
                unread = self.answers[index].unread
                unread += tokens
                if finish is None:
                    return
                tokens = unread
            self._events.put_nowait((index, tokens, finish))

        return lambda tokens, finish: self._mailbox.post(arrived, tokens, finish)


def _check_length(prompt_tokens: int, max_tokens: int, limit: int) -> None:
    if prompt_tokens + max_tokens > limit:
        message = (
            f"This model's context holds {limit} tokens, but {prompt_tokens + max_tokens} are asked for "
            f"({prompt_tokens} in the prompt, {max_tokens} for the completion). Shorten the prompt or max_tokens."
        )
        raise ApiError(400, message, "prompt", "context_length_exceeded")


def _ending(finish: Finish | None) -> Ending | None:
    return None if finish is None else "stop" if finish is Finish.STOP else "length"
