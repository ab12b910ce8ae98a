"""What goes round every request: an id that client and log share, and a limit of its size."""

from __future__ import annotations

import re
import secrets

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem_worker.server.api import ApiError

REQUEST_ID_HEADER = "x-request-id"
MAX_BODY_BYTES = 8 << 20
SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Of a client's own id: it is written to the log."""


def request_id(request: Request) -> str:
    identifier: str = request.state.request_id
    return identifier


class Envelope:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get(REQUEST_ID_HEADER, "")
        identifier = asked if SANE_ID.fullmatch(asked) else secrets.token_hex(12)
        scope.setdefault("state", {})["request_id"] = identifier

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = identifier
            await send(message)

        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            await JSONResponse(_too_large().body(), 413)(scope, receive, labelled)
            return
        await self._app(scope, _counted(receive), labelled)


def _counted(receive: Receive) -> Receive:
    """For bodies that do not say how long they are."""
    left = MAX_BODY_BYTES

    async def counted() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, _too_large().message)
        return message

    return counted


def _too_large() -> ApiError:
    return ApiError(413, f"A request may hold {MAX_BODY_BYTES >> 20} MiB.", code="request_too_large")
