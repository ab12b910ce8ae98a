"""A request as the engine sees it: tokens in, tokens out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tandem_worker.contract import Origin


class Finish(StrEnum):
    STOP = "stop"  # an end token, or the reader saw a stop string
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class Sampling:
    """What a request asks for; see `sampling` for what is done with it.

    `seed` decides every draw, so a request repeats itself, with speculation and without.
    """

    max_tokens: int
    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0  # 0: all
    min_p: float = 0.0  # of the most probable token's probability
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token and what is added
    logprobs: int | None = None  # how many of the most probable tokens are told beside the chosen one; None: not asked
    ignore_eos: bool = False  # go on through end tokens
    speculate: bool = True  # False: a token a round, whatever the engine does for others

    @property
    def penalises(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def changes_logits(self) -> bool:
        return self.penalises or bool(self.logit_bias)

    @property
    def cuts(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    @property
    def greedy(self) -> bool:
        """The most probable token, as the model says it."""
        return self.temperature == 0 and not self.changes_logits


class Logprob(NamedTuple):
    """Natural logarithms of probabilities."""

    token: int
    value: float
    top: tuple[tuple[int, float], ...]  # tokens with theirs, the most probable first


Listener = Callable[[list[int], Finish | None], None]
"""Takes the tokens of one round and, with the last ones, why the text ended. Called in the engine's thread."""


@dataclass(eq=False)
class Request:
    """The engine's record of one text. Only the engine's thread writes to it.

    Row p of the target's cache belongs to position p; the drafter's row p also needs token p + 1. `computed` and
    `drafted` count the rows that are there; without speculation the drafter's fall behind.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    listener: Listener
    origin: Origin = Origin.USER
    tokens: list[int] = field(init=False)  # prompt and what was generated
    proposals: list[int] = field(default_factory=list)  # drafted to follow `tokens`, not verified yet
    pages: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)  # of the full ones, see `pages`
    computed: int = 0
    drafted: int = 0
    reused: int = 0  # rows of the prompt that were there already
    drafts: int = 0  # verified so far
    accepted0: int = 0  # of these, accepted at position 0
    logprobs: list[Logprob] = field(default_factory=list)  # of the generated tokens, where they were asked for
    finish: Finish | None = None
    error: str = ""  # why it failed, where that is its own affair
    arrived_seconds: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)

    def rewind(self, computed: int) -> None:
        """Go on from an earlier row: those behind it are computed again, to the same bits."""
        self.computed = min(self.computed, computed)
        self.drafted = min(self.drafted, computed)
        self.proposals = []
