"""How soon is a collapse seen, and how often is a healthy revision taken for a collapsed one?

Simulated traffic goes through the operator's own code (`plan.analysis`), from raw counters to verdicts. Requests have
m/2 to 3m/2 drafts; each draws its rate of position-0 acceptance from a Beta distribution with mean p and variance
rho p (1 - p), so that drafts of one request have correlation rho; SLOTS run at a time. The hypotheses are healthy 0.75,
collapsed 0.50: a baseline of 0.833 with the default drops of 0.1 and 0.4. Healthy revisions are simulated at the very
edge, 0.75, where false alarms are likeliest, and some at the baseline itself.

The bound is Wald's: no test with these error rates needs fewer drafts on average. For independent drafts it is the
height of the bound over the mean log-likelihood ratio of a draft; here, that times the true design effect.

    make bench-analysis          writes benchmarks/results/analysis.{json,md,svg}
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis_results import Cell, Month, bars, markdown, plot
from tandem_operator.api.status import Counts, Outcome, Window
from tandem_operator.plan.analysis import evidence, sequential
from tandem_operator.plan.analysis.evidence import Reading
from tandem_operator.plan.analysis.hypotheses import Baseline, Origin
from tandem_operator.plan.analysis.judge import Limits, Seen, gate, steady
from tandem_operator.plan.analysis.sequential import ALARM_ABOVE, COLLAPSED_ABOVE, Hypotheses, Sample

RESULTS = Path(__file__).parent / "results"
HEALTHY, COLLAPSED = 0.75, 0.50
LIMITS = Limits(min_accept_length=1.3)
BASELINE = HEALTHY / (1 - LIMITS.tolerated_drop)
SIZES, CORRELATIONS = (4, 20, 60, 400), (0.0, 0.1, 0.3)
SLOTS, DRAFT_LENGTH, CHAIN = 8, 5, 0.8
LOOKS_PER_BOUND = 40
STEPS = 2  # of a rollout
WARM_REQUESTS = 500  # that were served before, so that something is known of the correlation within requests
INTERVAL = timedelta(seconds=30)
LOOKS_PER_MONTH = 30 * 86400 // 30

Ints = NDArray[np.int64]
Rate = Callable[[int], float]  # of position-0 acceptance, by look


@dataclass(frozen=True)
class Faults:
    """Of the scrapes: each is lost, or the pod has restarted since the last, with these probabilities."""

    lost: float = 0.0
    restarted: float = 0.0


class Traffic:
    """Requests of many replicas of one experiment at once; arrays are [replicas, slots], counters [replicas, 9]."""

    def __init__(self, rng: np.random.Generator, replicas: int, size: int, correlation: float) -> None:
        self._rng, self.size, self._correlation = rng, size, correlation
        shape = (replicas, SLOTS)
        self._left, self._drafts, self._accepted = (np.zeros(shape, np.int64) for _ in range(3))
        self._rate, self._mean = np.zeros(shape), -1.0
        # drafts, accepted, accepted0, requests, then d, a, d d, a a, d a of finished requests
        self.counters = np.zeros((replicas, 9), np.int64)

    def flow(self, drafts_per_slot: int, mean: float) -> None:
        """Requests that run when the mean changes go on with a rate of the new one."""
        if mean != self._mean:
            self._mean = mean
            self._rate = self._rates(self._rate.shape)
        budget = np.full(self._left.shape, drafts_per_slot)
        while budget.any():
            idle = self._left == 0
            self._left[idle] = self._rng.integers(max(1, self.size // 2), self.size * 3 // 2 + 1, int(idle.sum()))
            self._rate[idle] = self._rates((int(idle.sum()),))
            now = np.minimum(budget, self._left)
            first = self._rng.binomial(now, self._rate)
            self._count(now, first)
            self._left -= now
            budget -= now
            self._finish((self._left == 0) & (now > 0))

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Requests that ran are lost with the counters."""
        for array in (self.counters, self._left, self._drafts, self._accepted):
            array[which] = 0

    def _rates(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        if self._correlation == 0:
            return np.full(shape, self._mean)
        strength = (1 - self._correlation) / self._correlation
        return self._rng.beta(self._mean * strength, (1 - self._mean) * strength, shape)

    def _count(self, drafts: Ints, first: Ints) -> None:
        accepted, more = first.copy(), first
        for _ in range(DRAFT_LENGTH - 1):
            more = self._rng.binomial(more, CHAIN)
            accepted = accepted + more
        self._drafts += drafts
        self._accepted += first
        self.counters[:, :3] += np.stack([drafts.sum(1), accepted.sum(1), first.sum(1)], 1)

    def _finish(self, ended: NDArray[np.bool_]) -> None:
        d, a = np.where(ended, self._drafts, 0), np.where(ended, self._accepted, 0)
        self.counters[:, 3:] += np.stack([(ended).sum(1), *(x.sum(1) for x in (d, a, d * d, a * a, d * a))], 1)
        self._drafts[ended] = self._accepted[ended] = 0


def read(row: Ints) -> Counts:
    drafts, accepted, accepted0, requests, d, a, dd, aa, da = row.tolist()
    return Counts(
        drafts=drafts, accepted=accepted, accepted0=accepted0, requests=requests, user_requests=requests,
        generated=drafts + accepted, finished_drafts=d, finished_accepted0=a, finished_drafts_squared=dd,
        finished_accepted0_squared=aa, finished_drafts_accepted0=da,
    )  # fmt: skip


def true_design_effect(size: int, correlation: float) -> float:
    sizes = np.arange(max(1, size // 2), size * 3 // 2 + 1)
    return float(1 + correlation * ((sizes**2).mean() / sizes.mean() - 1))


def drift_per_draft(rate: float, beside: float | None = None) -> float:
    """Mean log-likelihood ratio of a draft at `rate`, with as many beside it at rate `beside` if that is given."""
    if beside is None:
        return sequential.log_likelihood_ratio(Sample(rate, 1), Hypotheses(HEALTHY, COLLAPSED))
    many = 1e6
    return (
        sequential.log_likelihood_ratio_beside(Sample(rate * many, many), Sample(beside * many, many), LIMITS.ratios)
        / many
    )


def drafts_per_slot(bound: float) -> int:
    """Between two looks."""
    return max(1, round(bound / LOOKS_PER_BOUND / SLOTS))


class Scrapes:
    """One pod's counters as the operator reads them, look by look."""

    def __init__(self, rng: np.random.Generator, runs: int, size: int, correlation: float, faults: Faults) -> None:
        self.traffic, self._rng, self._faults = Traffic(rng, runs, size, correlation), rng, faults
        self._runs = runs

    def look(self, per_slot: int, mean: float) -> list[list[Reading]]:
        """Readings of each run; empty where the scrape was lost."""
        if self._faults.restarted:
            self.traffic.restart(self._rng.random(self._runs) < self._faults.restarted)
        if mean >= 0:
            self.traffic.flow(per_slot, mean)
        lost = self._rng.random(self._runs) < self._faults.lost
        return [
            [] if gone else [Reading("pod", read(row))] for gone, row in zip(lost, self.traffic.counters, strict=True)
        ]

    def warm_up(self, mean: float) -> list[Window]:
        """Windows that have seen WARM_REQUESTS."""
        windows = [new_window(START) for _ in range(self._runs)]
        for readings in [self.look(WARM_REQUESTS // 10 * self.traffic.size // SLOTS, mean) for _ in range(10)]:
            windows = [evidence.sample(w, r, START)[0] for w, r in zip(windows, readings, strict=True)]
        return [evidence.fresh(window, START) for window in windows]


def new_window(now: datetime) -> Window:
    return Window(revision="r", started_at=now, sampled_at=now)


START = datetime(2026, 1, 1, tzinfo=UTC)


def steady_detection(
    rng: np.random.Generator,
    size: int,
    correlation: float,
    runs: int,
    faults: Faults = Faults(),
    bounds_before: int = 10,
) -> Cell:
    """0.75 for so many bounds, then 0.50 until it is seen. The CUSUM, against a baseline that validation measured."""
    effect = true_design_effect(size, correlation)
    bound = ALARM_ABOVE / drift_per_draft(COLLAPSED) * effect
    per_slot, before = drafts_per_slot(bound), bounds_before * LOOKS_PER_BOUND
    scrapes = Scrapes(rng, runs, size, correlation, faults)
    windows = scrapes.warm_up(HEALTHY)
    baseline = Baseline(Origin.PROBE, BASELINE, 10_000)
    delays, early, open_runs = [], 0, set(range(runs))
    for n in range(before + 10 * LOOKS_PER_BOUND):
        now = START + n * INTERVAL
        for run, readings in enumerate(scrapes.look(per_slot, HEALTHY if n < before else COLLAPSED)):
            if run not in open_runs:
                continue
            window, added = evidence.sample(windows[run], readings, now)
            window, judged = steady(Seen(window, LIMITS, baseline), added, now)
            windows[run] = evidence.fresh(window, now) if judged.outcome == Outcome.HEALTHY else window
            if judged.outcome.bad:
                open_runs.discard(run)
                early += n < before
                delays += [(n + 1 - before) * per_slot * SLOTS] if n >= before else []
        if not open_runs:
            break
    experiment = "steady: 0.75 falls to 0.50" + (", scrapes lost, pods restarted" if faults.lost else "")
    return _cell(experiment, size, correlation, bound, 0, runs, delays, early)


def rollouts(
    rng: np.random.Generator,
    experiment: str,
    size: int,
    correlation: float,
    runs: int,
    canary: Rate,
    stable: Rate,
    faults: Faults = Faults(),
    warm: bool = True,
) -> Cell:
    """STEPS steps of a canary beside a stable revision, judged until a verdict. `warm`: the stable revision has served
    WARM_REQUESTS before. A false verdict: healthy taken for collapsed, where the canary is at the edge of healthy or
    better, else collapsed taken for healthy."""
    effect = true_design_effect(size, correlation)
    good = canary(0) / stable(0) >= 1 - LIMITS.tolerated_drop - 1e-9
    drift = drift_per_draft(LIMITS.ratios.collapsed * BASELINE, BASELINE)
    bound = COLLAPSED_ABOVE / drift * effect
    first_end = SLOTS * size / 2  # drafts until the first request can have ended
    per_slot = drafts_per_slot(max(bound, first_end))
    beside, judged = (Scrapes(rng, runs, size, correlation, faults) for _ in range(2))
    stables = beside.warm_up(stable(0)) if warm else [new_window(START) for _ in range(runs)]
    canaries = [evidence.fresh(new_window(START), START, window.total) for window in stables]
    steps, delays, collapsed = [0] * runs, [], 0
    minima: dict[int, int] = {}  # drafts when the minimum of evidence was there, by run
    open_runs = set(range(runs))
    for n in range(20 * LOOKS_PER_BOUND):
        now = START + n * INTERVAL
        looked = zip(beside.look(per_slot, stable(n)), judged.look(per_slot, canary(n)), strict=True)
        for run, (of_stable, of_canary) in enumerate(looked):
            if run not in open_runs:
                continue
            stables[run], _ = evidence.sample(stables[run], of_stable, now)
            canaries[run], _ = evidence.sample(canaries[run], of_canary, now)
            seen = Seen(canaries[run], LIMITS, _beside(stables[run], canaries[run]), (stables[run].total,))
            measured = gate(seen, now)
            outcome = measured.outcome
            if measured.reason != "TooFewDrafts":
                minima.setdefault(run, (n + 1) * per_slot * SLOTS)
            if outcome == Outcome.HEALTHY:
                steps[run] += 1
                canaries[run] = evidence.fresh(canaries[run], now, stables[run].total)
            if outcome.bad or steps[run] == STEPS or (outcome == Outcome.HEALTHY and not good):
                open_runs.discard(run)
                collapsed += outcome.bad
                delays.append((n + 1) * per_slot * SLOTS)
        if not open_runs:
            break
    false = collapsed if good else len(delays) - collapsed
    return _cell(experiment, size, correlation, bound, float(np.mean(list(minima.values()))), runs, delays, false)


def _beside(stable: Window, canary: Window) -> Baseline:
    part = evidence.increment(canary.beside_from or Counts(), stable.total)
    rate = evidence.position0(part) if part.drafts else 0.0
    return Baseline(Origin.STABLE, rate, part.drafts, part)


def _cell(
    experiment: str, size: int, rho: float, bound: float, minimum: float, runs: int, delays: list[int], false: int
) -> Cell:
    unit = max(bound, minimum)
    return Cell(
        experiment, size, rho, round(true_design_effect(size, rho), 2), round(bound, 1), round(minimum, 1),
        runs, len(delays), false,
        round(float(np.mean(delays)) / unit, 2) if delays else None,
        round(float(np.percentile(delays, 95)) / unit, 2) if delays else None,
    )  # fmt: skip


def month(rng: np.random.Generator, size: int, correlation: float, rate: float, per_slot: int, looks: int) -> Month:
    """Of the score alone, vectorised; the correlation is known well after a month. Score back to zero at an alarm."""
    runs, effect = 2000, true_design_effect(size, correlation)
    traffic = Traffic(rng, runs, size, correlation)
    last = np.zeros((runs, 9), np.int64)
    levels = np.arange(3.0, ALARM_ABOVE + 0.5)
    scores, crossed = np.zeros((len(levels), runs)), np.zeros(len(levels), np.int64)
    for n in range(looks):
        traffic.flow(per_slot, rate)
        added, last = traffic.counters - last, traffic.counters.copy()
        if n < looks // 10:
            continue  # until requests are in all phases
        sample = Sample(added[:, 2] / effect, added[:, 0] / effect)  # type: ignore[arg-type]
        scores = np.maximum(0.0, scores + sequential.log_likelihood_ratio(sample, Hypotheses(HEALTHY, COLLAPSED)))
        over = scores > levels[:, None]
        crossed += over.sum(1)
        scores[over] = 0.0
    months = runs * looks * 0.9 / LOOKS_PER_MONTH
    per_month = crossed / months
    return Month(
        size, correlation, rate, per_slot * SLOTS, round(months, 1), int(crossed[-1]), _extrapolated(levels, per_month)
    )


def _extrapolated(levels: NDArray[np.float64], per_month: NDArray[np.float64]) -> float:
    """Crossings fall exponentially with the level: a line through the logarithms of those that were seen."""
    if per_month[-1] > 0:
        return float(f"{per_month[-1]:.2g}")
    seen = per_month > 0
    if seen.sum() < 2:
        return 0.0
    slope, offset = np.polyfit(levels[seen], np.log(per_month[seen]), 1)
    return float(f"{math.exp(offset + slope * levels[-1]):.1g}")


def silence(rng: np.random.Generator, runs: int = 50, looks: int = 200) -> dict[str, int]:
    """Verdicts other than Inconclusive where there is no evidence. Every figure must be 0."""
    found = {}
    for name, faults, mean in (
        ("no traffic", Faults(), -1.0),
        ("every scrape lost", Faults(lost=1.0), COLLAPSED),
        ("no traffic, restarts", Faults(restarted=0.2), -1.0),
    ):
        scrapes, windows, verdicts = Scrapes(rng, runs, 20, 0.1, faults), [new_window(START) for _ in range(runs)], 0
        for _ in range(looks):
            for run, readings in enumerate(scrapes.look(5, mean)):
                windows[run], added = evidence.sample(windows[run], readings, START)
                seen = Seen(windows[run], LIMITS, Baseline(Origin.PROBE, BASELINE, 1000))
                windows[run], judged = steady(seen, added, START)
                verdicts += (judged.outcome, gate(seen, START).outcome) != (Outcome.INCONCLUSIVE,) * 2
        found[name] = verdicts
    return found


def drifting(n: int) -> float:
    """Traffic grows harder for everybody: 0.83 to 0.55 within two bounds."""
    return max(0.55, BASELINE - 0.28 * n / (2 * LOOKS_PER_BOUND))


def at(rate: float) -> Rate:
    return lambda n: rate


def cells(rng: np.random.Generator, scale: float) -> Iterator[Cell]:
    grid = [(size, rho) for size in SIZES for rho in CORRELATIONS]
    few, many = max(2, round(120 * scale)), max(2, round(500 * scale))
    for size, rho in grid:
        yield steady_detection(rng, size, rho, few)
    yield steady_detection(rng, 60, 0.1, few, Faults(lost=0.2, restarted=0.01))
    for size, rho in grid:
        yield rollouts(rng, "canary at 0.50 beside 0.83", size, rho, few, at(COLLAPSED), at(BASELINE))
    for size, rho in grid:
        yield rollouts(rng, "canary at the edge, 0.75 beside 0.83", size, rho, many, at(HEALTHY), at(BASELINE))
    for size, rho in ((60, 0.0), (60, 0.1), (60, 0.3), (400, 0.3)):
        yield rollouts(rng, "the same, nothing known before", size, rho, many, at(HEALTHY), at(BASELINE), warm=False)
    faults = Faults(lost=0.2, restarted=0.01)
    for size, rho in ((60, 0.1), (400, 0.3)):
        yield rollouts(
            rng, "the same, scrapes lost, pods restarted", size, rho, many, at(HEALTHY), at(BASELINE), faults
        )
        yield rollouts(rng, "canary and stable both drift to 0.55", size, rho, many, drifting, drifting)


def months(rng: np.random.Generator, scale: float) -> Iterator[Month]:
    looks = max(20, round(300 * scale))
    for size, rho, per_slot in ((60, 0.0, 5), (60, 0.1, 5), (60, 0.1, 200), (400, 0.3, 200)):
        for rate in (BASELINE, HEALTHY):
            yield month(rng, size, rho, round(rate, 3), per_slot, looks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rng, started = np.random.default_rng(options.seed), time.monotonic()
    found = []
    for cell in cells(rng, options.scale):
        found.append(cell)
        print(f"{time.monotonic() - started:6.0f} s  {cell}", flush=True)
    monthly, silent = list(months(rng, options.scale)), silence(rng)
    options.out.mkdir(parents=True, exist_ok=True)
    written = {"seed": options.seed, "scale": options.scale, "cells": [asdict(c) for c in found],
               "months": [asdict(m) for m in monthly], "silence": silent}  # fmt: skip
    (options.out / "analysis.json").write_text(json.dumps(written, indent=1) + "\n")
    (options.out / "analysis.md").write_text(markdown(found, monthly, silent, options.seed, options.scale))
    plot(found, options.out / "analysis.svg")
    judged = bars(found, silent)
    for bar in judged:
        print(f"{'holds' if bar.holds else 'FAILS'}: {bar.says}: {bar.found}")
    sys.exit(not all(bar.holds for bar in judged))


if __name__ == "__main__":
    main()
