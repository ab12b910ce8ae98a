"""The statistics behind a verdict: design effect, SPRT, CUSUM, and a comparison with another revision."""

from __future__ import annotations

from math import comb, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.api.status import Counts
from tandem_operator.plan.analysis import hypotheses, sequential
from tandem_operator.plan.analysis.design_effect import PRIOR_CORRELATION, correlation, design_effect
from tandem_operator.plan.analysis.figures import wilson
from tandem_operator.plan.analysis.sequential import Hypotheses, Sample

HALF_OR_THREE_QUARTERS = Hypotheses(healthy=0.75, collapsed=0.5)


def requests(*pairs: tuple[int, int]) -> Counts:
    """Of finished requests: (drafts, accepted at position 0) each."""
    d, a = sum(d for d, _ in pairs), sum(a for _, a in pairs)
    return Counts(
        drafts=d,
        accepted=a,
        accepted0=a,
        requests=len(pairs),
        finished_drafts=d,
        finished_accepted0=a,
        finished_drafts_squared=sum(d * d for d, _ in pairs),
        finished_accepted0_squared=sum(a * a for _, a in pairs),
        finished_drafts_accepted0=sum(d * a for d, a in pairs),
    )


def test_requests_that_accept_all_or_nothing_are_one_trial_each() -> None:
    seen = requests(*[(40, 40), (40, 0)] * 500)
    rho = correlation([seen])
    assert rho == 1
    assert design_effect(seen, rho) == 40


def test_requests_as_alike_as_independent_drafts_cost_almost_nothing() -> None:
    """400 requests of 4 drafts whose counts are as frequent as the binomial says."""
    seen = requests(*[(4, a) for a in range(5) for _ in range(25 * comb(4, a))])
    assert correlation([seen]) < 0.06
    assert design_effect(seen, correlation([seen])) < 1.2


def test_few_requests_never_make_it_look_better_than_the_prior() -> None:
    assert correlation([]) == PRIOR_CORRELATION
    assert correlation([requests((50, 40), (50, 41))]) == PRIOR_CORRELATION
    assert correlation([requests(*[(50, 40), (50, 41)] * 50)]) < 0.01


def test_requests_of_both_revisions_tell_about_the_traffic() -> None:
    known = requests(*[(50, 25), (50, 45)] * 200)
    assert correlation([known, requests((50, 5))]) == pytest.approx(correlation([known]), abs=0.01)


def test_an_engine_without_sums_gets_the_conservative_constant() -> None:
    seen = Counts(drafts=1000, accepted=900, accepted0=500, requests=20)
    assert design_effect(seen, correlation([seen])) == pytest.approx(1 + 49 * PRIOR_CORRELATION)


def test_long_requests_weigh_more_in_the_design_effect() -> None:
    assert design_effect(requests((10, 5), (90, 45)), 0.1) == pytest.approx(1 + (82 - 1) * 0.1)


def test_the_ratio_is_that_of_the_probabilities() -> None:
    found = sequential.log_likelihood_ratio(Sample(3, 5), HALF_OR_THREE_QUARTERS)
    assert found == pytest.approx(log(0.5**5 / (0.75**3 * 0.25**2)))


def test_bounds_are_walds() -> None:
    bounds = (sequential.COLLAPSED_ABOVE, sequential.HEALTHY_BELOW)
    assert bounds == pytest.approx((9.2, -4.6), abs=0.01)


def test_health_is_not_saved_up_by_the_cusum() -> None:
    assert sequential.cusum(0.0, -50.0) == 0.0
    assert sequential.cusum(sequential.cusum(0.0, -50.0), 3.0) == 3.0


RATIOS = hypotheses.ratios(tolerated_drop=0.1, collapse_drop=0.4)


def test_beside_a_long_record_it_is_the_test_against_a_known_rate() -> None:
    known = hypotheses.from_baseline(0.8, RATIOS)
    for successes in (30, 45, 60, 75):
        sample = Sample(successes, 100)
        beside = sequential.log_likelihood_ratio_beside(sample, Sample(8e8, 1e9), RATIOS)
        assert beside == pytest.approx(sequential.log_likelihood_ratio(sample, known), abs=1e-3)


def test_beside_a_short_record_little_is_said_and_beside_none_nothing() -> None:
    sample = Sample(40, 100)
    long, short = (sequential.log_likelihood_ratio_beside(sample, Sample(0.8 * n, n), RATIOS) for n in (1e6, 10))
    assert 0 < short < long / 4
    assert sequential.log_likelihood_ratio_beside(sample, Sample(0, 0), RATIOS) == 0


@pytest.mark.parametrize("rate", [0.8, 0.6, 0.4])
def test_traffic_that_gets_harder_for_both_is_no_collapse(rate: float) -> None:
    both = Sample(1000 * rate, 1000)
    assert sequential.log_likelihood_ratio_beside(both, both, RATIOS) < sequential.HEALTHY_BELOW


rates = st.floats(0, 1)


@given(rates, rates, st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0, 0.5), st.floats(0.55, 0.95))
def test_whatever_is_seen_the_ratio_is_a_number_and_falls_with_acceptance(
    rate: float, beside: float, trials: float, trials_beside: float, tolerated: float, collapse: float
) -> None:
    ratios = hypotheses.ratios(tolerated, collapse)

    def found(rate: float) -> float:
        other = Sample(beside * trials_beside, trials_beside)
        return sequential.log_likelihood_ratio_beside(Sample(rate * trials, trials), other, ratios)

    tolerance = 1e-6 * (trials + trials_beside)
    assert found(1.0) - tolerance <= found(rate) <= found(0.0) + tolerance


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(6, 10, 0.31, 0.83), (18, 30, 0.42, 0.75), (60, 100, 0.50, 0.69), (180, 300, 0.54, 0.65), (0, 20, 0.0, 0.16)],
)
def test_wilson_bounds_as_published(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=0.006)
