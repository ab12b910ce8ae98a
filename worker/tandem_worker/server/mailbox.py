"""From the engine's thread to the event loop.

A step of the engine has news for every request that runs. To wake the loop takes a system call and the interpreter's
lock; with one for each request they cost more than the step. So the loop is woken once, and finds all that has come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

Post = tuple[Callable[..., None], tuple[Any, ...]]


class Mailbox:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self._posts, self._called = loop, deque[Post](), False

    def post(self, receive: Callable[..., None], *arguments: Any) -> None:
        """`receive` will be called in the loop, in the order of posting; nothing happens once the loop is closed. For
        the engine's thread."""
        self._posts.append((receive, arguments))
        if not self._called and not self.loop.is_closed():
            self._called = True
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # first: what is posted from here on calls again, or is found below
        while self._posts:
            receive, arguments = self._posts.popleft()
            receive(*arguments)
