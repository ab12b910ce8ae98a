"""From the engine's wiring to the one that predicts best, by mending one thing at a time.

All neighbours of the engine's wiring race on parts of the text (`race`). From the best few the search goes on in the
same way, since a second mistake may hide behind the first, until nothing better is found. What is still in question is
then measured on all of the text: the engine's wiring, the best, and the best with each mended thing taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tandem_worker.probe.chain import Chain
from tandem_worker.probe.evidence import Share, gain, share, surely
from tandem_worker.probe.hypotheses import Choices, neighbours
from tandem_worker.probe.race import Measure, Race
from tandem_worker.probe.score import Score
from tandem_worker.probe.wiring import Wiring, differences, taken_back

ROUNDS = 3
FOLLOWED = 2  # wirings from which a round goes on
FINALISTS = 8
HINT = 0.05  # the chance of error at which a first look is worth following


@dataclass(frozen=True)
class Row:
    """One wiring, as measured."""

    wiring: Wiring
    score: Score
    chain: Chain | None = None  # of the few best

    @property
    def overlap(self) -> Share:
        return share(self.score.overlap, self.score.counts)

    @property
    def position0(self) -> Share:
        return share(self.score.matches, self.score.counts)

    def better_than(self, other: Row) -> Share:
        """By how much, in overlap on the same texts."""
        return gain(self.score.overlap, other.score.overlap, self.score.counts)


@dataclass(frozen=True)
class Table:
    """All that was measured: on the whole text (`rows`), and on a part of it (`looked`, `closest`)."""

    engine: Row
    rows: tuple[Row, ...]  # without the engine's; in the order of their overlap
    looked: Mapping[Wiring, Score]
    closest: Row | None  # the best but for the engine's at the last look, right or not
    layers: int  # n of the target
    twin: Row | None = None

    def with_chains(self, chains: Mapping[Wiring, Chain]) -> Table:
        engine, *rows = (replace(row, chain=chains.get(row.wiring)) for row in (self.engine, *self.rows))
        return replace(self, engine=engine, rows=tuple(rows))

    def feeding_back(self, wiring: Wiring, chain: Chain) -> Table:
        """With the best wiring's twin that feeds the other state back: it shows from position 1 on."""
        twin = self.row(replace(wiring, norm_output=not wiring.norm_output))
        return replace(self, twin=Row(wiring, twin.score, chain)) if twin else self

    def row(self, wiring: Wiring) -> Row | None:
        return next((row for row in (self.engine, *self.rows) if row.wiring == wiring), None)


def search(engine: Wiring, choices: Choices, looks: Sequence[Measure], measure: Measure, least: float) -> Table:
    """`looks` measure on growing parts of the text, `measure` on all of it; `least` is the overlap of what predicts."""
    race = Race(looks, engine, least)
    race.enter(neighbours(engine, choices))
    seen = {engine}
    for _ in range(ROUNDS - 1):
        origins = [wiring for wiring in race.ranked() if wiring not in seen][:FOLLOWED]
        origins = [wiring for wiring in origins if _promising(race.last, wiring, engine)]
        if not origins:
            break
        seen.update(origins)
        for place, origin in enumerate(origins):
            race.enter(neighbours(origin, choices, every_slot=place == 0))
    finalists = race.in_question()[:FINALISTS]
    finalists += _steps_back(finalists, engine)
    found = measure([engine, *dict.fromkeys(finalists)])
    rows = sorted((Row(w, s) for w, s in found.items() if w != engine), key=lambda row: -row.overlap.value)
    closest = next((Row(w, race.last[w]) for w in race.ranked() if w != engine), None)
    return Table(Row(engine, found[engine]), tuple(rows), race.looked, closest, choices.layers)


def _promising(last: Mapping[Wiring, Score], wiring: Wiring, engine: Wiring) -> bool:
    better, worse = last[wiring], last[engine]
    return surely(gain(better.overlap, worse.overlap, worse.counts), HINT)


def _steps_back(finalists: Sequence[Wiring], engine: Wiring) -> list[Wiring]:
    """Of the first few, each mended thing taken back: they tell which mending mattered."""
    return [
        other
        for wiring in finalists[:FOLLOWED]
        for aspect in differences(engine, wiring)
        if (other := taken_back(wiring, engine, aspect)) != engine
    ]
