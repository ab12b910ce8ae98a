"""A small, seeded part of `make bench-analysis`: simulated traffic through the operator's own analysis."""

from __future__ import annotations

import numpy as np
import pytest

import analysis
from analysis import BASELINE, COLLAPSED, HEALTHY, Faults, at


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_the_simulated_requests_have_the_correlation_that_they_are_told_to_have(rng: np.random.Generator) -> None:
    traffic = analysis.Traffic(rng, replicas=400, size=20, correlation=0.2)
    traffic.flow(200, HEALTHY)
    _, _, _, n, d, a, dd, aa, da = traffic.counters.sum(0).tolist()
    p = a / d
    assert p == pytest.approx(HEALTHY, abs=0.02)
    residuals = (aa - 2 * p * da + p * p * dd) * n / (n - 1) / (d * p * (1 - p))
    assert residuals == pytest.approx(analysis.true_design_effect(20, 0.2), rel=0.1)


@pytest.mark.parametrize(("size", "correlation"), [(4, 0.0), (60, 0.3)])
def test_a_fall_from_three_quarters_to_a_half_is_seen_within_one_and_a_half_times_walds_bound(
    rng: np.random.Generator, size: int, correlation: float
) -> None:
    cell = analysis.steady_detection(rng, size, correlation, runs=16, bounds_before=1)
    assert cell.verdicts + cell.false_verdicts == 16
    assert cell.mean_delay is not None
    assert cell.mean_delay <= 1.5


def test_a_collapsed_canary_is_taken_back_and_a_healthy_one_at_the_edge_is_not(rng: np.random.Generator) -> None:
    bad = analysis.rollouts(rng, "bad", 20, 0.1, 30, at(COLLAPSED), at(BASELINE))
    assert (bad.verdicts, bad.false_verdicts) == (30, 0)
    assert bad.mean_delay is not None
    assert bad.mean_delay <= 1.5
    good = analysis.rollouts(rng, "good", 20, 0.1, 60, at(HEALTHY), at(BASELINE))
    assert (good.verdicts, good.false_verdicts) == (60, 0)


def test_lost_scrapes_restarts_and_drift_roll_nothing_back(rng: np.random.Generator) -> None:
    faults = Faults(lost=0.2, restarted=0.01)
    cell = analysis.rollouts(rng, "drift", 20, 0.1, 30, analysis.drifting, analysis.drifting, faults)
    assert (cell.verdicts, cell.false_verdicts) == (30, 0)


def test_without_evidence_there_is_never_a_verdict(rng: np.random.Generator) -> None:
    assert set(analysis.silence(rng, runs=4, looks=40).values()) == {0}
