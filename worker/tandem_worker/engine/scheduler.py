"""Which rows run in the next step.

Every running request has rows that the target has not computed: the rest of its prompt, or its newest token followed by
the tokens drafted after it. Decoding requests always take part; prompts share a budget of rows per step, so that a long
prompt does not hold up the others. Pages are taken as rows need them. When they run out, the request that was admitted
last gives its pages back and waits; its rows are computed again later, to the same bits, so its text does not change.
A request starts behind the pages that are found to hold the beginning of its text (see `pages`).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tandem_worker.engine.pages import PAGE, Pages, extend_names, pages_for
from tandem_worker.engine.request import Request


class Work(NamedTuple):
    """Rows of one request in one step: positions start to end, and the proposals behind them."""

    request: Request
    start: int
    end: int
    decides: bool  # the rows reach the newest token, so the next one comes out of this step
    proposals: tuple[int, ...]

    @property
    def prefills(self) -> bool:
        return self.end - self.start > 1


class Scheduler:
    def __init__(self, pages: Pages, max_batch: int, prefill_chunk: int, context_limit: int, draft_length: int) -> None:
        self.pages, self.max_batch, self.prefill_chunk = pages, max_batch, prefill_chunk
        self.context_limit, self.draft_length = context_limit, draft_length
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # by admission

    def schedule(self) -> list[Work]:
        for request in self.running:
            self._name_pages(request)
        self._admit()
        works, budget = [], self.prefill_chunk
        for request in tuple(self.running):
            start, end = request.computed, len(request.tokens)
            if end - start > 1:
                end = min(end, start + budget)
                budget -= end - start
            if start < end and request in self.running and self._reserve(request, end):
                decides = end == len(request.tokens)
                works.append(Work(request, start, end, decides, tuple(request.proposals) if decides else ()))
        return works

    def may_admit(self) -> bool:
        """Whether the next step would start with one that waits."""
        if not self.waiting or len(self.running) >= self.max_batch:
            return False
        request = self.waiting[0]
        spare = self.pages.free - len(self.running) + sum(map(self.pages.used, self._found(request)))
        return pages_for(self._positions(request, len(request.tokens))) <= spare

    def reserve_ahead(self, positions: int) -> bool:
        """Pages for so many positions behind the newest token of everybody who runs; False when they run out."""
        return all(
            self.pages.reserve(request.pages, min(len(request.tokens) + positions, self.context_limit))
            for request in self.running
        )

    def remove(self, request: Request) -> None:
        """Forget a request that has ended, and take its pages back."""
        (self.running if request in self.running else self.waiting).remove(request)
        self._release(request)

    def _admit(self) -> None:
        """First come, first served, while there is room for all that is known of the text and a page per neighbour."""
        while self.may_admit():
            request = self.waiting.popleft()
            request.pages = self._found(request)
            self.pages.share(request.pages)
            request.computed = request.drafted = len(request.pages) * PAGE
            request.reused = max(request.reused, min(request.computed, len(request.prompt)))
            self.pages.reserve(request.pages, self._positions(request, len(request.tokens)))
            self.running.append(request)

    def _reserve(self, request: Request, end: int) -> bool:
        while not self.pages.reserve(request.pages, self._positions(request, end)):
            last = self.running.pop()
            self._release(last)
            last.rewind(0)
            self.waiting.appendleft(last)
            if last is request:
                return False
        return True

    def _found(self, request: Request) -> list[int]:
        extend_names(request.names, request.tokens)
        return self.pages.found(request.names)

    def _name_pages(self, request: Request) -> None:
        """Those whose rows are there, the drafter's as well: while speculation is off it has none."""
        rows = min(request.computed, request.drafted) if self.draft_length else request.computed
        extend_names(request.names, request.tokens)
        self.pages.name(request.pages[: rows // PAGE], request.names)

    def _release(self, request: Request) -> None:
        self._name_pages(request)
        self.pages.release(request.pages)

    def _positions(self, request: Request, end: int) -> int:
        """Positions that a step up to row `end` may write.

        Verification writes K rows behind the newest token; drafting after up to K + 1 new ones goes K - 2 rows further.
        """
        ahead = 2 * self.draft_length if end == len(request.tokens) else 0
        return min(end + ahead, self.context_limit)
