"""What the engine tells whoever keeps the figures."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from tandem_worker.contract import Origin
from tandem_worker.engine.request import Request


class Phase(StrEnum):
    PREFILL = "prefill"  # target forward with rows of prompts in it
    VERIFY = "verify"  # target forward over newest and drafted tokens
    PLAIN = "plain"  # target forward over newest tokens only
    DRAFT = "draft"  # the drafter's rows and chain after VERIFY or PLAIN


class Recorder(Protocol):
    """Called in the engine's thread."""

    def stepped(self, phase: Phase, batch: int, seconds: float) -> None:
        """One forward over `batch` requests."""

    def drafted(self, origin: Origin, length: int, accepted: int) -> None:
        """One draft of `length` tokens was verified."""

    def generated(self, origin: Origin, tokens: int) -> None: ...

    def undrafted(self, origin: Origin, tokens: int) -> None:
        """Of the generated ones, those for which no draft was meant: the request wants none, or none pay."""

    def adapted(self, length: int) -> None:
        """The draft length of the next round, where it is chosen anew for each."""

    def ended(self, request: Request) -> None:
        """`request.finish` says how."""

    def queued(self, running: int, waiting: int) -> None: ...


class NoRecord:
    """For work that must not show in the figures: the self-test and the warm-up."""

    def stepped(self, phase: Phase, batch: int, seconds: float) -> None: ...

    def drafted(self, origin: Origin, length: int, accepted: int) -> None: ...

    def generated(self, origin: Origin, tokens: int) -> None: ...

    def undrafted(self, origin: Origin, tokens: int) -> None: ...

    def adapted(self, length: int) -> None: ...

    def ended(self, request: Request) -> None: ...

    def queued(self, running: int, waiting: int) -> None: ...
