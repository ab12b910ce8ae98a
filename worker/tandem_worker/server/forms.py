"""An answer in either of OpenAI's shapes, whole or as a stream of server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from pydantic import BaseModel

from tandem_worker.server.api import ApiError, StreamOptions, Usage
from tandem_worker.server.job import Job, Piece


class Form(Protocol):
    def opening(self) -> Sequence[BaseModel]:
        """Events before the first piece."""

    def event(self, piece: Piece, usage: Usage | None) -> BaseModel: ...

    def closing(self, usage: Usage) -> BaseModel:
        """The event that tells the usage."""

    def whole(self, pieces: list[Piece]) -> BaseModel:
        """Of at least one piece per choice."""


async def whole(job: Job, form: Form) -> str:
    """JSON. Raises ApiError when the engine fails."""
    return form.whole([piece async for piece in job.pieces(gathered=True)]).model_dump_json()


async def stream(job: Job, form: Form, options: StreamOptions) -> AsyncIterator[str]:
    """A failure of the engine is an event, too: the status line is long gone."""
    exclude = None if options.include_usage else {"usage"}
    try:
        for event in form.opening():
            yield _sent(event.model_dump_json(exclude=exclude))
        async for piece in job.pieces():
            usage = piece.usage if options.continuous_usage_stats else None
            yield _sent(form.event(piece, usage).model_dump_json(exclude=exclude))
        if options.include_usage:
            yield _sent(form.closing(job.usage).model_dump_json())
    except ApiError as failure:
        yield _sent(json.dumps(failure.body()))
    yield _sent("[DONE]")


def _sent(data: str) -> str:
    return f"data: {data}\n\n"
