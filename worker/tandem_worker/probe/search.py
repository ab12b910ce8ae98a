"""From the engine's wiring to the one that predicts best, by mending one thing at a time.

All neighbours of the engine's wiring race on parts of the text (`race`). From the best the search goes on in the same
way, since a second mistake may hide behind the first, until nothing better is found; and from the second best as long
as that may be the best. What is still in question is then measured on all of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tandem_worker.probe.chain import Chain
from tandem_worker.probe.evidence import Share, gain, share
from tandem_worker.probe.hypotheses import Choices, neighbours
from tandem_worker.probe.race import Measure, Race
from tandem_worker.probe.score import Score
from tandem_worker.probe.wiring import Wiring, differences, taken_back

MOST_FOLLOWED = 4  # wirings from which the search goes on, in all
BEST = 2  # wirings that are thought of at each step
FINALISTS = 8
HINT = 1e-3  # the chance of error at which one is worth following: the best of a hundred is soon better by chance


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
    closest: Row | None  # the best but for the engine's, of those looked at most closely, right or not
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
    race.enter([])
    if race.last[engine].finite:  # else nothing can be compared with it
        race.enter(neighbours(engine, choices))
        _go_on(race, choices)
    found = measure([engine, *race.in_question()[:FINALISTS]])
    closest = Row(*race.closest) if race.closest else None
    return Table(Row(engine, found[engine]), _rows(found, engine), race.looked, closest, choices.layers)


def _go_on(race: Race, choices: Choices) -> None:
    followed: set[Wiring] = set()
    while len(followed) < MOST_FOLLOWED:
        origin = next((wiring for wiring in race.promising(BEST, HINT) if wiring not in followed), None)
        if origin is None:
            break
        followed.add(origin)
        race.enter(neighbours(origin, choices, every_slot=origin == race.ranked()[0]))


def stepped_back(table: Table, best: Wiring, measure: Measure) -> Table:
    """With each thing that `best` mends taken back: these rows tell which mending mattered."""
    engine = table.engine.wiring
    steps = [taken_back(best, engine, aspect) for aspect in differences(engine, best)]
    missing = [wiring for wiring in steps if table.row(wiring) is None]
    known = {row.wiring: row.score for row in table.rows}
    return replace(table, rows=_rows({**known, **measure(missing)}, engine)) if missing else table


def _rows(scores: Mapping[Wiring, Score], engine: Wiring) -> tuple[Row, ...]:
    rows = [Row(wiring, score) for wiring, score in scores.items() if wiring != engine]
    return tuple(sorted(rows, key=lambda row: -row.overlap.value))
