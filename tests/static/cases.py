"""A reported failure as a case: the change to a healthy pair, the verdict, and what must be said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from static.build import Change, Model, eagle3_8b, llama_8b
from static.judging import judged

SHORT = "TDM-MAX-POSITION-SHORTER"  # of the published baseline drafter: 2048 positions
FITS, WARNS, FAILS, UNKNOWN = "Fits", "FitsWithWarnings", "DoesNotFit", "CouldNotCheck"
Maker = Callable[[], Model]


class Case(NamedTuple):
    """`codes` are all errors and warnings, but for those of the baseline; `says`: what the findings must contain."""

    report: str
    change: Change
    verdict: str
    codes: set[str]
    says: tuple[str, ...] = ()
    engine: str = "any"
    target: Maker = llama_8b
    drafter: Maker = eagle3_8b
    options: tuple[str, ...] = ()


def name_of(case: Case) -> str:
    return f"{case.report} {case.engine}".replace(" ", "-")


def hold(case: Case, folder: Path) -> None:
    options = ("--engine", case.engine, *case.options)
    seen = judged(folder, case.target(), case.drafter(), *options, change=case.change)
    baseline = {SHORT} if case.drafter is eagle3_8b else set()
    assert seen.codes - baseline == case.codes, seen.text
    wanted = WARNS if case.verdict == FITS and seen.codes & baseline else case.verdict
    assert seen.verdict == wanted
    for said in case.says:
        assert said in seen.text
