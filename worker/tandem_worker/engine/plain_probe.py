"""Plain rounds now and then while the engine speculates, so that both kinds of step are timed on one load.

Whether speculation pays is only known beside what the target does alone, at the same batch size and in the same hour
(sgl-project/sglang #14824). A burst of BURST rounds without drafts follows so many with them that its part is the share
that was asked for. A burst, because the drafter's rows that are not kept in it have to be made good afterwards, once
for all of them.
"""

from __future__ import annotations

from tandem_worker.engine.scheduler import Scheduler

BURST = 8


class PlainProbe:
    def __init__(self, share: float) -> None:
        """`share` of the rounds, 0 to 0.5, is plain at most; 0: none."""
        self._between = round(BURST / share) - BURST if share > 0 else 0  # rounds with drafts
        self._rounds = 0

    def speculates(self, scheduler: Scheduler) -> bool:
        """Counts a round; -> whether it is to speculate.

        A burst begins when everybody is drafted for. It ends early when a prompt comes in: without the streams of its
        rows the prompt would have to run twice.
        """
        if not self._between or not scheduler.running:
            return True
        begun = self._rounds > self._between
        if self._rounds >= self._between + BURST or (begun and scheduler.waiting):
            self._rounds = 0
        elif self._rounds == self._between and not self._may_begin(scheduler):
            return True
        self._rounds += 1
        return self._rounds <= self._between

    @staticmethod
    def _may_begin(scheduler: Scheduler) -> bool:
        return not scheduler.waiting and all(request.proposals for request in scheduler.running)
