"""What a step on a GPU decides: from the rows behind the newest tokens and behind drafts to tokens.

What the kernels need to know of that is copied before the step's forward is launched, so that nothing stands between
the two on the GPU: the host waits once, for the tokens.

Shapes: M deciding rows, B requests, T = K + 1, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem_worker.engine.choosing import Choice, Row, by_work, rows_of, with_logprobs
from tandem_worker.engine.drawing import Drawing
from tandem_worker.engine.forward import Space, TargetForward
from tandem_worker.engine.inputs import Inputs
from tandem_worker.engine.scheduler import Work
from tandem_worker.kernels.choice import take


class StepChoice:
    def __init__(self, target: TargetForward, drawing: Drawing, batch: int, draft_length: int, space: Space) -> None:
        """drawing: may be that of rounds, whose state is written anew after a step (`Rounds.forget`)."""
        self.target, self.drawing, rows = target, drawing, space.head_rows
        sizes = {
            "places": (rows,),  # of deciding rows in the step
            "owners": (rows,),
            "nths": (rows,),
            "lengths": (batch,),
            "tokens": (batch, draft_length + 1),
        }
        self._inputs = Inputs(sizes, space.device)
        self._decided = torch.zeros(rows, target.hidden, dtype=space.dtype, device=space.device)
        self._tokens = torch.zeros(rows, dtype=torch.int32, device=space.device)

    def lay_out(self, works: Sequence[Work], firsts: Sequence[int]) -> list[Row]:
        """Before the forward. firsts: each work's first row in the step."""
        rows, laid = rows_of(works), self._inputs.host
        if not rows:
            return rows
        self._inputs.clear()
        deciding = [(work, first) for work, first in zip(works, firsts, strict=True) if work.decides]
        end = 0
        for owner, (work, first) in enumerate(deciding):
            drafted = len(work.proposals)
            own, place = slice(end, end + drafted + 1), first + work.end - 1 - work.start
            laid["places"][own] = range(place, place + drafted + 1)
            laid["owners"][own], laid["nths"][own] = owner, range(drafted + 1)
            laid["lengths"][owner] = len(work.request.tokens) - 1
            laid["tokens"][owner, 1 : drafted + 1] = work.proposals
            end = own.stop
        self._inputs.send(len(deciding))
        if any(not row.sampling.greedy for row in rows):
            self.drawing.write([work.request for work, _ in deciding], len(deciding))
        return rows

    def choose(self, works: Sequence[Work], rows: Sequence[Row]) -> list[list[Choice]]:
        """After the forward, of the rows that were laid out."""
        if not rows:
            return [[] for _ in works]
        n, block, laid = len(rows), self.target.block, self._inputs.device
        torch.index_select(block.normed, 0, laid["places"][:n], out=self._decided[:n])
        self.target.choose(self._decided, n)
        drawn, told = any(not row.sampling.greedy for row in rows), any(row.tells for row in rows)
        logits = self.target.logits(n) if drawn or told else block.logits[:n]  # a rank's own, which nobody reads
        best = self.target.best
        if drawn:
            self.drawing.draw(logits, best, n, laid["owners"], laid["nths"], laid["tokens"], laid["lengths"])
        take(best, n, self._tokens)
        choices = with_logprobs(logits, rows, self._tokens[:n].tolist())
        self.target.exchange.ranks.check()
        return by_work(works, choices)
