"""Who owns which page of the caches. A page holds PAGE positions of one request; page 0 belongs to nobody."""

from __future__ import annotations

from collections.abc import Sequence

PAGE = 64
"""Positions in a page, and the length of one piece of attention (see `attention`)."""

SCRATCH = 0
"""Where rows that mean nothing are written, so that every forward writes all its rows."""


def pages_for(positions: int) -> int:
    return -(-positions // PAGE)


def padded(pages: Sequence[int], width: int) -> list[int]:
    """A row of a block table."""
    return [*pages[:width], *[SCRATCH] * (width - len(pages))]


class Pages:
    def __init__(self, capacity_tokens: int) -> None:
        self.count = 1 + pages_for(capacity_tokens)  # with the scratch page
        self._free = list(range(self.count - 1, SCRATCH, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def reserve(self, owned: list[int], positions: int) -> bool:
        """Grow `owned` to hold so many positions. False, and nothing changed, when there are not enough pages."""
        wanted = pages_for(positions) - len(owned)
        if wanted > len(self._free):
            return False
        owned.extend(self._free.pop() for _ in range(wanted))
        return True

    def release(self, owned: list[int]) -> None:
        self._free.extend(reversed(owned))
        owned.clear()
