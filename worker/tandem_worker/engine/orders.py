"""One engine in several processes (see `ranks`): rank 0 is asked, the others do the same.

What an engine does depends on what it was told between which steps, and on nothing else: not on time, since lengths of
drafts follow costs that rank 0 measured, and plain rounds are counted; not on who reads, since a reader that leaves or
has seen a stop string is an order, too. So the leader writes down what it is told, and before each step hands it on.
Followers are not asked anything. Every DIGEST_STEPS steps they say where they are, and the leader compares.

A message is a JSON list of orders; an order is a list, its name first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from tandem_worker.engine.adaptive import Costs
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.followers import Followers
from tandem_worker.engine.gpu import GpuProblem
from tandem_worker.engine.observed import Observed
from tandem_worker.engine.ranks import Ranks
from tandem_worker.engine.request import Finish, Request, Sampling
from tandem_worker.engine.runner import EngineBroken
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama

DIGEST_STEPS = 1024


class Leader(Engine):
    """The engine of rank 0."""

    def __init__(
        self, llama: Llama, eagle3: Eagle3 | None, options: EngineOptions, ranks: Ranks, followers: Followers
    ) -> None:
        self.followers = followers
        self._orders: list[list[Any]] = []
        self._numbers: dict[Request, int] = {}
        self._number, self._steps = count(), 0
        super().__init__(llama, eagle3, options, ranks=ranks)

    def prepare(self) -> None:
        with self._together("prepare"):
            super().prepare()

    def submit(self, request: Request) -> None:
        self._numbers[request] = next(self._number)
        self._orders.append(["submit", self._numbers[request], request.prompt, asdict(request.sampling)])
        super().submit(request)

    def end(self, request: Request, finish: Finish) -> None:
        if request.finish is None:
            self._orders.append(["end", self._numbers[request], finish])
        super().end(request, finish)

    def switch(self, speculate: bool) -> None:
        self._orders.append(["switch", speculate])
        super().switch(speculate)

    def settle(self) -> None:
        with self._together("settle"):
            super().settle()

    def adapt(self, costs: Costs) -> None:
        self._orders.append(["adapt", [[*at, seconds] for at, seconds in costs.seconds.items()]])
        super().adapt(costs)

    def set_length(self, length: int) -> None:
        self._orders.append(["set_length", length])
        super().set_length(length)

    @contextmanager
    def observed(self) -> Iterator[Observed]:
        """By all: a step that is observed is launched in other forms, and not as a graph."""
        self._orders.append(["observe", True])
        with super().observed() as observed:
            yield observed
        self._orders.append(["observe", False])

    def step(self) -> None:
        """Raises GpuProblem when a rank is lost."""
        self.ranks.check()
        with self._together("step"):
            super().step()
        self._steps += 1
        if self._steps % DIGEST_STEPS == 0:
            self.compare()

    def compare(self) -> None:
        """Raises EngineBroken when a follower is elsewhere."""
        with self._together("digest"):
            digests = [pipe.recv_bytes().decode() for pipe in self.followers.pipes]
        if others := [rank for rank, digest in enumerate(digests, 1) if digest != digest_of(self)]:
            raise EngineBroken(f"the texts of ranks {others} are not those of rank 0")

    def _end(self, request: Request, finish: Finish, tokens: Sequence[int] = ()) -> None:
        super()._end(request, finish, tokens)
        self._numbers.pop(request, None)

    @contextmanager
    def _together(self, order: str) -> Iterator[None]:
        """Hands on what was told, and this. What fails because a follower has ended, fails with its reason."""
        try:
            message = json.dumps([*self._orders, [order]]).encode()
            self._orders = []
            for pipe in self.followers.pipes:
                pipe.send_bytes(message)
            yield
        except (EngineBroken, GpuProblem):  # which all of them have, or is a rank's end already
            raise
        except Exception as failure:
            raise self.followers.explained(failure) from failure


class Follower:
    """What ranks 1, 2, ... do."""

    def __init__(self, engine: Engine, pipe: Connection) -> None:
        self.engine, self._pipe = engine, pipe
        self._requests: dict[int, Request] = {}
        self._observing = ExitStack()

    def run(self) -> None:
        """Until the leader ends."""
        while True:
            try:
                message = self._pipe.recv_bytes()
            except EOFError:
                return
            for name, *values in json.loads(message):
                self._carry_out(name, *values)

    def _carry_out(self, name: str, *values: Any) -> None:
        engine = self.engine
        match name:
            case "step" | "prepare" | "settle" | "switch" | "set_length":
                getattr(engine, name)(*values)
            case "submit":
                self._submit(*values)
            case "end":
                engine.end(self._requests[values[0]], Finish(values[1]))
            case "observe":
                self._observe(*values)
            case "adapt":
                engine.adapt(Costs({(batch, length): seconds for batch, length, seconds in values[0]}))
            case "digest":
                self._pipe.send_bytes(digest_of(engine).encode())
            case _:
                raise ValueError(f"{name!r} is no order of this version")

    def _observe(self, begins: bool) -> None:
        if begins:
            self._observing.enter_context(self.engine.observed())
        else:
            self._observing.close()

    def _submit(self, number: int, prompt: Sequence[int], sampling: dict[str, Any]) -> None:
        def listen(tokens: list[int], finish: Finish | None) -> None:
            if finish:
                del self._requests[number]

        bias = tuple((token, value) for token, value in sampling["logit_bias"])
        self._requests[number] = Request(tuple(prompt), Sampling(**{**sampling, "logit_bias": bias}), listen)
        self.engine.submit(self._requests[number])


def digest_of(engine: Engine) -> str:
    """Of texts and pages: equal where nothing has gone apart."""
    scheduler, pages = engine.scheduler, engine.pages
    texts = [
        (len(one.tokens), sum(one.tokens), one.proposals, one.computed, one.drafted, one.pages)
        for one in scheduler.running
    ]
    state = [texts, len(scheduler.waiting), engine.speculating, engine.length, pages.free]
    return hashlib.blake2b(json.dumps(state).encode(), digest_size=16).hexdigest()
