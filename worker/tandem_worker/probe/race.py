"""Which of many wirings are worth running on more text.

Most wirings of a pair predict far worse than the best one, and few positions show that. So all of them run on a small
part of the text, those that are still in question on four times as much, and the last few on all that a look may cost.
A wiring leaves the race in one of three ways only:

- It is surely worse than the best one, on the same texts. What the drafter was made for predicts best of all, so it
  leaves in error only when a wiring as good as it passes for better, at a chance of `LEFT` each.
- The engine's wiring predicts, and this one surely is not better by as much as is worth telling.
- It surely predicts too little for anybody to believe in (`least`), and others look better. A step towards the right
  wiring, with a second mistake still in it, may predict so little, and is among the best then: of those the best
  `KEPT` stay, half as many at each further part.

(A race in the sense of Maron and Moore, Hoeffding races, NIPS 1993, with a t-test on texts in place of their bound.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tandem_worker.probe.evidence import LEAST_SHARE, Share, gain, share, surely, surely_below, worth_telling
from tandem_worker.probe.score import Score
from tandem_worker.probe.wiring import Wiring

Measure = Callable[[Sequence[Wiring]], Mapping[Wiring, Score]]

LEFT = 1e-3
KEPT = 4


class Race:
    """`measures`: on growing parts of the text. `engine` always stays, since all others are compared with it."""

    def __init__(self, measures: Sequence[Measure], engine: Wiring, least: float) -> None:
        self.measures, self.engine, self.least = measures, engine, least
        self.scores: list[dict[Wiring, Score]] = [{} for _ in measures]

    def enter(self, wirings: Iterable[Wiring]) -> None:
        entered = list(dict.fromkeys([self.engine, *wirings]))
        for part, (measure, scores) in enumerate(zip(self.measures, self.scores, strict=True)):
            new = [wiring for wiring in entered if wiring not in scores]
            if new:
                scores.update(measure(new))
            entered = self._staying(scores, entered, KEPT >> part)

    @property
    def looked(self) -> dict[Wiring, Score]:
        """Of each wiring what was measured of it last; in the order in which they entered."""
        latest = dict(self.scores[0])
        for scores in self.scores[1:]:
            latest.update(scores)
        return latest

    @property
    def last(self) -> Mapping[Wiring, Score]:
        """Of those that ran to the end."""
        return self.scores[-1]

    def ranked(self) -> list[Wiring]:
        """Those that ran to the end, the best first."""
        return _ranked(self.last)

    def in_question(self) -> list[Wiring]:
        """Of those, what may be the right one, but for the engine's."""
        staying = set(self._staying(self.last, self.last, 0))
        return [wiring for wiring in self.ranked() if wiring in staying and wiring != self.engine]

    @property
    def closest(self) -> tuple[Wiring, Score] | None:
        """The best but for the engine's, of those that ran furthest."""
        others = ((wiring, scores) for scores in reversed(self.scores) for wiring in _ranked(scores))
        return next(((wiring, scores[wiring]) for wiring, scores in others if wiring != self.engine), None)

    def promising(self, most: int, wrong: float) -> list[Wiring]:
        """Of the best few those that may be the best, and are surely better than the engine's and by no trifle."""

        def better(wiring: Wiring) -> bool:
            ahead = _ahead(self.last, wiring, self.engine)
            return surely(ahead, wrong) and ahead.value >= LEAST_SHARE * _overlap(self.last[wiring]).value

        best, *others = self.ranked()[:most]
        alike = [wiring for wiring in others if not surely(_ahead(self.last, best, wiring), LEFT)]
        return [wiring for wiring in (best, *alike) if better(wiring)]

    def _staying(self, scores: Mapping[Wiring, Score], entered: Iterable[Wiring], kept: int) -> list[Wiring]:
        best, *_ = ranked = _ranked(scores)
        good, predicts = set(ranked[:kept]), _overlap(scores[self.engine]).value >= self.least

        def stays(wiring: Wiring) -> bool:
            if surely(_ahead(scores, best, wiring), LEFT):
                return False
            overlap = _overlap(scores[wiring])
            if predicts and surely_below(_ahead(scores, wiring, self.engine), worth_telling(overlap.value), LEFT):
                return False
            return wiring in good or not surely_below(overlap, self.least, LEFT)

        return [wiring for wiring in entered if wiring == self.engine or stays(wiring)]


def _overlap(score: Score) -> Share:
    return share(score.overlap, score.counts)


def _ranked(scores: Mapping[Wiring, Score]) -> list[Wiring]:
    return sorted(scores, key=lambda wiring: -_overlap(scores[wiring]).value)


def _ahead(scores: Mapping[Wiring, Score], one: Wiring, other: Wiring) -> Share:
    return gain(scores[one].overlap, scores[other].overlap, scores[one].counts)
