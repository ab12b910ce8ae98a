"""How much less drafts of the same request tell than independent ones.

Drafts of one request are alike: a request about code may accept nearly all, the next one nearly none. With intraclass
correlation rho, an estimate from requests of d drafts each has the variance of one from independent drafts times

    design effect = 1 + (E[d d] / E[d] - 1) rho                                   (Kish 1965; unequal sizes)

A test that ignores it calls collapse far too often; dividing its log-likelihood ratio by the design effect mends that.

Workers sum n, d, a, d d, a a, d a over finished requests (d drafts, a accepted at position 0). With p = A / D, the
residuals a - p d sum in squares to AA - 2 p DA + p p DD; what they exceed the binomial D p (1 - p) by is the
correlation's: (DD - D) p (1 - p) rho. An estimate that is too low is dangerous and one from few requests is all over
the place, so the upper end of its confidence interval is used: squares of n residuals scatter about like a chi-square
with n - 1 degrees of freedom, whose lower quantile Wilson and Hilferty (1931) give in one line. Until that is below
PRIOR_CORRELATION, and for an engine without these sums, the prior holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import NamedTuple

from tandem_operator.api.status import Counts

PRIOR_CORRELATION = 0.3
_Z = 1.645  # the upper end is exceeded once in 20


class _Residuals(NamedTuple):
    """Of finished requests. Both variances are in accepted drafts squared."""

    degrees: int
    squares: float
    if_independent: float
    per_correlation: float


def correlation(seen: Iterable[Counts]) -> float:
    """Intraclass correlation of position-0 acceptance, 0 to 1, from what each revision has shown: the upper end."""
    known = [residuals for counts in seen if (residuals := _residuals(counts))]
    per_correlation = sum(r.per_correlation for r in known)
    if not per_correlation:
        return PRIOR_CORRELATION
    squares, independent = sum(r.squares for r in known), sum(r.if_independent for r in known)
    estimate = (squares - independent) / per_correlation
    upper = (squares / _lower_quantile(sum(r.degrees for r in known)) - independent) / per_correlation
    return min(1.0, max(0.0, min(upper, max(estimate, PRIOR_CORRELATION))))


def _residuals(counts: Counts) -> _Residuals | None:
    """None without sums, and where nothing or everything was accepted."""
    n, d, a = counts.requests, counts.finished_drafts, counts.finished_accepted0
    if n < 2 or not 0 < a < d:
        return None
    p, dd = a / d, counts.finished_drafts_squared
    squares = counts.finished_accepted0_squared - 2 * p * counts.finished_drafts_accepted0 + p * p * dd
    variance = p * (1 - p)
    return _Residuals(n - 1, max(0.0, squares * n / (n - 1)), d * variance, (dd - d) * variance)


def _lower_quantile(degrees: int) -> float:
    """Of chi-square / degrees."""
    spread = 2 / (9 * degrees)
    return max(1e-3, 1 - spread - _Z * sqrt(spread)) ** 3


def design_effect(counts: Counts, correlation: float) -> float:
    """>= 1. Drafts per request, weighted by size, from the sums; their plain mean where an engine has none."""
    if counts.finished_drafts:
        size = counts.finished_drafts_squared / counts.finished_drafts
    else:
        size = counts.drafts / max(1, counts.requests)
    return 1 + max(0.0, size - 1) * correlation
