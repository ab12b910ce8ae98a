"""Who owns which page of the caches. A page holds PAGE positions of a text; page 0 belongs to nobody.

A full page is named after its text. When its owners leave, it keeps what it holds until the room is needed, the least
recently used first; a text that begins likewise takes it over, also while others use it, and does not compute its rows.
A row's bits depend on nothing but the text up to it, so what is found is what would have been computed. Full pages are
never written again, since a request writes only behind its computed rows.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Iterable, Sequence

PAGE = 64
"""Positions in a page, and the length of one piece of attention (see `attention`)."""

SCRATCH = 0
"""Where rows that mean nothing are written, so that every forward writes all its rows."""


def pages_for(positions: int) -> int:
    return -(-positions // PAGE)


def padded(pages: Sequence[int], width: int) -> list[int]:
    """A row of a block table."""
    return [*pages[:width], *[SCRATCH] * (width - len(pages))]


def extend_names(names: list[bytes], tokens: Sequence[int]) -> None:
    """Make it the names of the full pages of a text that has grown to `tokens`.

    A name stands for all tokens up to the end of its page and the one behind it, which the drafter's last row needs.
    """
    for page in range(len(names), (len(tokens) - 1) // PAGE):
        own = array.array("q", tokens[page * PAGE : (page + 1) * PAGE + 1]).tobytes()
        names.append(hashlib.blake2b((names[-1] if names else b"") + own, digest_size=16).digest())


class Pages:
    def __init__(self, capacity_tokens: int, reuse: bool = True) -> None:
        """`reuse`: whether pages are named, and so found again."""
        self._reuse = reuse
        self.count = 1 + pages_for(capacity_tokens)  # with the scratch page
        self._free = list(range(self.count - 1, SCRATCH, -1))
        self._users = [0] * self.count
        self._names: dict[int, bytes] = {}
        self._named: dict[bytes, int] = {}
        self._idle: dict[int, None] = {}  # named, and nobody's at present; the least recently used first

    @property
    def free(self) -> int:
        """Pages that nobody uses, whether they hold something or not."""
        return len(self._free) + len(self._idle)

    def used(self, page: int) -> bool:
        return self._users[page] > 0

    def reserve(self, owned: list[int], positions: int) -> bool:
        """Grow `owned` to hold so many positions. False, and nothing changed, when there are not enough pages."""
        wanted = pages_for(positions) - len(owned)
        if wanted > self.free:
            return False
        for _ in range(wanted):
            if not self._free:
                self.forget([next(iter(self._idle))])
            owned.append(self._free.pop())
            self._users[owned[-1]] = 1
        return True

    def release(self, owned: list[int]) -> None:
        """The end of a text is of less use than its beginning, so it is the first to be forgotten."""
        for page in reversed(owned):
            self._users[page] -= 1
            if not self._users[page]:
                if page in self._names:
                    self._idle[page] = None
                else:
                    self._free.append(page)
        owned.clear()

    def name(self, pages: Iterable[int], names: Iterable[bytes]) -> None:
        """The full pages of a text, all of whose rows are there."""
        for page, name in zip(pages, names, strict=False):
            if self._reuse and name not in self._named:
                self._names[page], self._named[name] = name, page

    def found(self, names: Iterable[bytes]) -> list[int]:
        """The pages that hold the beginning of the text with these names."""
        pages = []
        for name in names:
            if (page := self._named.get(name)) is None:
                break
            pages.append(page)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._users[page] += 1
            self._idle.pop(page, None)

    def forget(self, pages: Iterable[int]) -> None:
        """Nobody finds them any more."""
        for page in pages:
            if name := self._names.pop(page, None):
                del self._named[name]
                if page in self._idle:
                    del self._idle[page]
                    self._free.append(page)
