"""The engine: requests in, tokens out, one step at a time.

A step is: schedule the rows, run the target over them, accept, draft for the next round. Without speculation it is the
same step without drafts, so speculation can be switched at any round; nothing but the tokens' speed changes. Not
thread-safe: everything here happens in one thread (see `thread`).
"""

from __future__ import annotations

import atexit
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tandem_worker.engine.adaptive import Adaptive, Costs
from tandem_worker.engine.choosing import BROKEN, Choice
from tandem_worker.engine.observed import Observed
from tandem_worker.engine.pages import PAGE, SCRATCH, Pages, pages_for
from tandem_worker.engine.plain_probe import PlainProbe
from tandem_worker.engine.ranks import ALONE, Ranks
from tandem_worker.engine.record import NoRecord, Phase, Recorder
from tandem_worker.engine.request import Finish, Request
from tandem_worker.engine.runner import EngineBroken, Placement, Runner, Verified
from tandem_worker.engine.sampling import confirmed
from tandem_worker.engine.scheduler import Scheduler, Work
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama

if TYPE_CHECKING:  # needs Triton, which a machine without a GPU may lack
    from tandem_worker.engine.gpu_runner import GpuRunner
    from tandem_worker.engine.rounds import Rounds


@dataclass(frozen=True)
class EngineOptions:
    draft_length: int  # the longest, where it adapts
    max_batch: int = 8
    kv_cache_tokens: int | None = None  # None: enough for max_batch texts of DEFAULT_CONTEXT tokens
    prefill_chunk: int = 128  # prompt rows per step
    prefix_reuse: bool = True  # see `pages`
    context_length: int | None = None  # tokens of prompt and completion; None: the target's
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    adaptive: bool = False  # the length of drafts follows what they cost and how many are accepted
    baseline_probe: float = 0.0  # share of the rounds that are plain although the engine speculates, to time them
    kernels: bool | None = None  # None: on a GPU; True on a CPU runs them in Triton's interpreter

    @property
    def on_kernels(self) -> bool:
        return torch.device(self.device).type == "cuda" if self.kernels is None else self.kernels


DEFAULT_CONTEXT = 2048

BROKEN_IN_A_ROW = 3
"""Requests without one good token between them that end with broken logits: then it is the engine that is broken."""

NOT_FINITE = "the target's logits are not finite numbers (NaN or infinite)"


class Engine:
    def __init__(
        self,
        llama: Llama,
        eagle3: Eagle3 | None,
        options: EngineOptions,
        recorder: Recorder | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """llama: this rank's share of it."""
        longest = min(llama.target.max_position_embeddings, options.context_length or sys.maxsize)
        capacity = options.kv_cache_tokens or options.max_batch * min(longest, DEFAULT_CONTEXT)
        self.context_limit = min(longest, pages_for(capacity) * PAGE)  # tokens of prompt and completion
        self.longest = options.draft_length
        self.length = self.longest  # tokens drafted per request and round, now
        self.adaptive: Adaptive | None = None
        self.can_speculate = eagle3 is not None
        self.speculating = self.wanted = self.can_speculate  # in this round; by order
        self.probe = PlainProbe(options.baseline_probe if eagle3 else 0.0)
        self.recorder: Recorder = recorder or NoRecord()
        self.ranks = ranks
        self._broken_in_a_row, self._dirty = 0, list[int]()  # the latter: pages
        self.eos_token_ids = frozenset(llama.target.eos_token_ids)
        self.pages = Pages(capacity, options.prefix_reuse)
        ahead = options.draft_length if eagle3 else 0
        self.scheduler = Scheduler(self.pages, options.max_batch, options.prefill_chunk, self.context_limit, ahead)
        self.hidden_size = llama.target.hidden_size
        self.runner: Runner | GpuRunner = _runner(llama, eagle3, self.pages.count, self.context_limit, options, ranks)
        self.rounds = None if isinstance(self.runner, Runner) else self.runner.rounds

    def prepare(self) -> None:
        """Whatever would make the first requests wait. Not needed, and nothing without a GPU."""
        if self.rounds and self.runner.device.type == "cuda":
            assert not isinstance(self.runner, Runner)
            self.runner.warm_up()
            self.rounds.capture_all()
            self.runner.capture_all()
            gc.collect()
            gc.freeze()  # a full collection later on would hold up a round for a third of a second
            atexit.register(gc.unfreeze)

    @property
    def degraded(self) -> str:
        """Why it is slower than it should be, or nothing."""
        failure = self.rounds.graphs.failure if self.rounds else ""
        return f"CudaGraphCaptureFailed: {failure}" if failure else ""

    @property
    def idle(self) -> bool:
        return not self.scheduler.running and not self.scheduler.waiting

    def submit(self, request: Request) -> None:
        """The prompt must hold 1 to context_limit - 1 tokens."""
        assert 0 < len(request.prompt) < self.context_limit
        self.scheduler.waiting.append(request)

    def end(self, request: Request, finish: Finish) -> None:
        """Before its time: its reader left, or has seen a stop string. Nothing happens when it has ended already."""
        if request.finish is None:
            self._end(request, finish)
            self._report_queue()

    def switch(self, speculate: bool) -> None:
        """From the next step on, for all requests."""
        self.wanted = speculate and self.can_speculate
        self._turn(self.wanted)

    def settle(self) -> None:
        """Nothing is in flight afterwards."""
        self._finish_rounds()

    def adapt(self, costs: Costs) -> None:
        """From the next step on, the draft length follows costs and acceptance."""
        self.adaptive = Adaptive(costs, self.longest)

    def set_length(self, length: int) -> None:
        """Of drafts, from the next step on. Only while nothing runs."""
        self.length = length

    @contextmanager
    def observed(self) -> Iterator[Observed]:
        """Shows what the steps in it feed to `fc`, and all streams it could have come from."""
        with self.runner.observed() as observed:
            yield observed

    def _adapted(self) -> bool:
        """Chooses the draft length of the next round -> whether it has drafts at all."""
        scheduler = self.scheduler
        batch = len(scheduler.running) or min(len(scheduler.waiting), scheduler.max_batch)
        if self.adaptive is None or not batch:
            return True
        length = self.adaptive.next_length(batch)
        if length and length != self.length:
            self._finish_rounds()
            self.length = length
            for request in scheduler.running:
                del request.proposals[length:]
        self.recorder.adapted(length)
        return length > 0

    def _turn(self, speculate: bool) -> None:
        if self.speculating == speculate:
            return
        self._finish_rounds()
        self.speculating = not self.speculating
        for request in self.scheduler.running:
            request.proposals = []
            if self.speculating:  # the drafter's missing rows need the streams again, so the target's rows run again
                request.rewind(request.drafted)

    def step(self) -> None:
        """Raises EngineBroken when nothing but broken logits comes out of the model."""
        if self.wanted:
            self._turn(self._adapted() and self.probe.speculates(self.scheduler))
        self._wipe()
        if self.rounds and self._may_start_round(self.rounds):
            self._start_round(self.rounds)
        elif self.rounds and self.rounds.in_flight:
            self._finish_round(self.rounds)
        else:
            self._step()
        self._report_queue()

    def _step(self) -> None:
        """The host decides, after the target's forward, what is drafted for."""
        works = self.scheduler.schedule()
        if works:
            if self.rounds:
                self.rounds.forget()
            verified = self._verify(works)
            drafting = self._accept(works, verified)
            self._draft(works, verified, drafting)

    def _may_start_round(self, rounds: Rounds) -> bool:
        """Nobody to admit, no probabilities to tell, drafts for everybody who wants them, and room for what the round
        may write."""
        running, drafts = self.scheduler.running, self.length if self.speculating else 0
        return (
            bool(running)
            and not self.scheduler.may_admit()
            and rounds.takes(running, drafts)
            and all(request.computed == len(request.tokens) - 1 for request in running)
            and all(request.sampling.logprobs is None for request in running)
            and all(len(request.proposals) == drafts or not request.sampling.speculate for request in running)
            and self.scheduler.reserve_ahead(rounds.in_flight * (drafts + 1) + 2 * drafts)
        )

    def _start_round(self, rounds: Rounds) -> None:
        """And finishes the one before, while this one runs."""
        running, drafts = self.scheduler.running, self.length if self.speculating else 0
        longest = max(len(request.tokens) for request in running)
        rounds.start(running, drafts, longest + rounds.in_flight * (drafts + 1) + 2 * drafts)
        if rounds.in_flight > 1:
            self._finish_round(rounds)

    def _finish_round(self, rounds: Rounds) -> None:
        played = rounds.finish()
        batch = sum(request.finish is None for request in played.requests)
        for request, result in zip(played.requests, played.results, strict=True):
            if request.finish is not None:
                continue
            accepted, *rest = result
            tokens = rest[: accepted + 1]
            if min(tokens) == BROKEN:
                self._fail(request)
                continue
            request.computed += accepted + 1
            if played.drafts:
                request.drafted = request.computed
                if request.sampling.speculate:
                    request.proposals = rest[played.drafts + 1 :]
                    self._count_draft(request, played.drafts, accepted)
            self._append(request, [Choice(token) for token in tokens])
        if batch:
            self.recorder.stepped(Phase.VERIFY if played.drafts else Phase.PLAIN, batch, played.seconds)
            if self.adaptive and self.ranks.size == 1:  # several must not decide by their own clocks
                self.adaptive.took(batch, played.drafts, played.seconds)
            if played.drafts:  # one graph: its time is not divided
                self.recorder.stepped(Phase.DRAFT, batch, 0.0)

    def _finish_rounds(self) -> None:
        while self.rounds and self.rounds.in_flight:
            self._finish_round(self.rounds)

    def _verify(self, works: Sequence[Work]) -> Verified:
        started = time.perf_counter()
        verified = self.runner.verify(works, capture=self.speculating)
        self.recorder.stepped(_phase(works), len(works), time.perf_counter() - started)
        return verified

    def _accept(self, works: Sequence[Work], verified: Verified) -> list[bool]:
        """Appends what the target confirms, and its own next token. Returns which requests are to be drafted for."""
        for work, chosen in zip(works, verified.chosen, strict=True):
            request = work.request
            request.computed, request.proposals = work.end, []
            if not chosen:
                continue
            accepted = confirmed(work.proposals, [choice.token for choice in chosen])
            if chosen[accepted].token == BROKEN:
                self._fail(request)
                continue
            if work.proposals:
                self._count_draft(request, len(work.proposals), accepted)
            request.computed += accepted
            self._append(request, chosen[: accepted + 1])
        return [
            bool(chosen) and self._worth_drafting(work.request)
            for work, chosen in zip(works, verified.chosen, strict=True)
        ]

    def _count_draft(self, request: Request, length: int, accepted: int) -> None:
        request.drafts += 1
        request.accepted0 += accepted > 0
        self.recorder.drafted(request.origin, length, accepted)
        if self.adaptive:
            self.adaptive.chances.drafted(length, accepted)

    def _append(self, request: Request, choices: Sequence[Choice]) -> None:
        """Cuts at an end token or at the length that was asked for."""
        room = min(request.sampling.max_tokens - request.generated, self.context_limit - len(request.tokens))
        eos = frozenset() if request.sampling.ignore_eos else self.eos_token_ids
        ends = [i + 1 for i, choice in enumerate(choices) if choice.token in eos]
        count = min([room, *ends])
        finish = None
        if count <= len(choices):
            finish = Finish.STOP if count in ends else Finish.LENGTH
        tokens = [choice.token for choice in choices[:count]]
        request.tokens += tokens
        request.logprobs += [choice.logprob for choice in choices[:count] if choice.logprob]
        self._broken_in_a_row = 0
        self.recorder.generated(request.origin, len(tokens))
        if not request.sampling.speculate or (self.adaptive and self.wanted and not self.speculating):
            self.recorder.undrafted(request.origin, len(tokens))
        if finish:
            self._end(request, finish, tokens)
        else:
            request.listener(tokens, None)

    def _fail(self, request: Request) -> None:
        """Its logits are not finite. That may be its own doing: a prompt can reach a damaged weight that no other does.

        Raises EngineBroken when this happens to one request after the other.
        """
        self._dirty += [SCRATCH, *request.pages]
        self.pages.forget(request.pages)
        request.rewind(0)
        request.error = NOT_FINITE
        self._end(request, Finish.FAILED)
        self._broken_in_a_row += 1
        if self._broken_in_a_row == BROKEN_IN_A_ROW:
            raise EngineBroken(NOT_FINITE)

    def _wipe(self) -> None:
        """What is not a number stays so when it is masked, so the next owners of these pages must not find it. The
        scratch page is everybody's. Pages that others share are left: theirs fail, too, or nothing was amiss there."""
        if self._dirty:
            self.runner.wipe([page for page in self._dirty if not self.pages.used(page)])
            self._dirty = []

    def _worth_drafting(self, request: Request) -> bool:
        """A draft must fit the context whole; the last tokens before the limit come without."""
        fits = len(request.tokens) + self.length <= self.context_limit
        return fits and request.finish is None and request.sampling.speculate

    def _draft(self, works: Sequence[Work], verified: Verified, drafting: Sequence[bool]) -> None:
        if not self.speculating:
            return
        started = time.perf_counter()
        self.runner.draft(works, verified, drafting, self.length)
        if _phase(works) is not Phase.PREFILL:  # the drafter's rows of a prompt are no part of a round
            self.recorder.stepped(Phase.DRAFT, len(works), time.perf_counter() - started)

    def _end(self, request: Request, finish: Finish, tokens: Sequence[int] = ()) -> None:
        request.finish = finish
        self.scheduler.remove(request)
        self.recorder.ended(request)
        request.listener(list(tokens), finish)

    def _report_queue(self) -> None:
        self.recorder.queued(len(self.scheduler.running), len(self.scheduler.waiting))


def _phase(works: Sequence[Work]) -> Phase:
    if any(work.prefills for work in works):
        return Phase.PREFILL
    return Phase.VERIFY if any(work.proposals for work in works) else Phase.PLAIN


def _runner(
    llama: Llama, eagle3: Eagle3 | None, page_count: int, context_limit: int, options: EngineOptions, ranks: Ranks
) -> Runner | GpuRunner:
    device = torch.device(options.device)
    if not options.on_kernels:
        assert ranks.size == 1, "only the kernels compute a share"
        return Runner(llama, eagle3, page_count, Placement(options.dtype, device))
    from tandem_worker.engine.gpu_runner import GpuRunner

    return GpuRunner(
        llama,
        eagle3,
        page_count,
        max_batch=options.max_batch,
        prefill_chunk=options.prefill_chunk,
        draft_length=options.draft_length,
        lengths=range(1, options.draft_length + 1) if options.adaptive else [options.draft_length],
        context_limit=context_limit,
        device=device,
        ranks=ranks,
    )
