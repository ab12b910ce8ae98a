"""Tests that may be looked at as often as one likes.

A figure that is compared with a threshold at every scrape crosses it sooner or later, whatever the truth. Wald's
sequential probability ratio test (1945) has no such trouble: it adds up log P(seen | collapsed) / P(seen | healthy)
and stops at one of two bounds, which are chosen so that a healthy revision is called collapsed with probability ALPHA
at most, and a collapsed one healthy with probability BETA at most, however often it was looked at. No test with these
error rates needs fewer drafts on average.

In steady state there is no end to it: a revision may turn bad after a year of being good, which must not count for it.
Page's CUSUM (1954) is the same sum, held at zero from below: evidence for health is never saved up. Among all rules
that raise a false alarm as seldom, it is the quickest to see a change (Lorden 1971, Moustakides 1986).

Trials and successes come divided by the design effect, so they are no whole numbers.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

ALPHA = 0.0001  # a healthy revision is called collapsed
BETA = 0.01  # a collapsed revision is called healthy
COLLAPSED_ABOVE = log((1 - BETA) / ALPHA)
HEALTHY_BELOW = log(BETA / (1 - ALPHA))
ALARM_ABOVE = 10.0
"""Of the CUSUM. Looked at every 30 seconds, a revision that stays at the very edge of healthy raises a false alarm once
in six weeks or less often, one that is where its baseline is hardly ever (benchmarks/results/analysis.md)."""

_LEAST = 1e-3  # probabilities of 0 and 1 would make one draft decide


class Hypotheses(NamedTuple):
    """Two rates of success; between them neither answer is wrong."""

    healthy: float
    collapsed: float


class Sample(NamedTuple):
    successes: float
    trials: float


def log_likelihood_ratio(sample: Sample, hypotheses: Hypotheses) -> float:
    """Of collapsed to healthy, against rates that are known."""
    healthy, collapsed = (min(1 - _LEAST, max(_LEAST, rate)) for rate in hypotheses)
    failures = sample.trials - sample.successes
    return sample.successes * log(collapsed / healthy) + failures * log((1 - collapsed) / (1 - healthy))


def log_likelihood_ratio_beside(sample: Sample, beside: Sample, ratios: Hypotheses) -> float:
    """Of collapsed to healthy, against the rate of another sample that was taken at the same time.

    The hypotheses are about the ratio of the two rates. The rate itself is what fits both samples best under each of
    them (a profile likelihood), so a small sample beside says little and a drift of both says nothing.
    """
    if not sample.trials or not beside.trials:
        return 0.0
    return _best_fit(sample, beside, ratios.collapsed) - _best_fit(sample, beside, ratios.healthy)


def _best_fit(sample: Sample, beside: Sample, ratio: float) -> float:
    """Log-likelihood of both at the rate p beside that fits best when the sample's rate is `ratio` * p, 0 < ratio <= 1.

    Setting the derivative to zero leaves a quadratic in p, as in Miettinen and Nurminen (1985) for the relative risk.
    """
    successes = sample.successes + beside.successes
    misses, misses_beside = sample.trials - sample.successes, beside.trials - beside.successes
    a = ratio * (successes + misses + misses_beside)
    b = successes * (1 + ratio) + ratio * misses + misses_beside
    p = (b - sqrt(max(0.0, b * b - 4 * a * successes))) / (2 * a)
    p = min(1 - _LEAST, max(_LEAST, p))
    return (
        sample.successes * log(ratio * p)
        + misses * log(1 - ratio * p)
        + beside.successes * log(p)
        + misses_beside * log(1 - p)
    )


def cusum(score: float, log_likelihood_ratio: float) -> float:
    return max(0.0, score + log_likelihood_ratio)
