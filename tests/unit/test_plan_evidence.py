"""From counters to a verdict: what counts as evidence, and what it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.api.status import Counts, Window
from tandem_operator.engines import builtin
from tandem_operator.plan import evidence
from tandem_operator.plan.conditions import TYPES, Seen, merge
from tandem_operator.plan.verdict import judge

START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = Window(revision="r", started_at=START, sampled_at=START)


def counts(drafts: int = 0, accepted: int = 0, requests: int = 0, generated: int = 0) -> Counts:
    return Counts(drafts=drafts, accepted=accepted, accepted0=accepted, requests=requests, generated=generated)


@pytest.mark.parametrize(
    ("seen", "outcome", "reason"),
    [
        (counts(), "Inconclusive", "TooFewDrafts"),
        (counts(drafts=29, requests=3), "Inconclusive", "TooFewDrafts"),
        (counts(drafts=30, requests=2), "Inconclusive", "TooFewDrafts"),
        (counts(drafts=30, requests=3), "Collapsed", "NothingAccepted"),
        (counts(drafts=5000, requests=100), "Collapsed", "NothingAccepted"),
        (counts(drafts=30, accepted=1, requests=3), "Inconclusive", "TooFewDrafts"),
        (counts(drafts=200, accepted=59, requests=5), "Collapsed", "AcceptLengthBelowFloor"),
        (counts(drafts=200, accepted=60, requests=5), "Healthy", "AcceptLengthAboveFloor"),
        (counts(drafts=200, accepted=59, requests=4), "Inconclusive", "TooFewDrafts"),
        (counts(requests=5, generated=50), "Collapsed", "SpeculationInactive"),
        (counts(requests=5, generated=5), "Inconclusive", "TooFewDrafts"),
        (counts(requests=4, generated=500), "Inconclusive", "TooFewDrafts"),
    ],
)
def test_a_verdict_needs_evidence_and_no_evidence_is_never_collapse(seen: Counts, outcome: str, reason: str) -> None:
    verdict = judge(seen, min_accept_length=1.3)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


def test_a_verdict_says_the_numbers_that_made_it() -> None:
    assert judge(counts(412, 8, 9), 1.3).message == "accept length 1.02 over 412 drafts from 9 requests, floor 1.3"


def test_the_window_between_two_scrapes_is_what_counts_not_the_lifetime() -> None:
    first, second = counts(drafts=500, accepted=1000), counts(drafts=900, accepted=1600)
    window = evidence.fresh(evidence.sample(WINDOW, [("pod", first)], [], START), START)
    window = evidence.sample(window, [("pod", second)], [], START + timedelta(seconds=30))
    assert evidence.accept_length(window.counts) == 2.5


def test_a_counter_that_falls_began_again_at_zero() -> None:
    window = evidence.fresh(evidence.sample(WINDOW, [("pod", counts(drafts=1600, accepted=9))], [], START), START)
    window = evidence.sample(window, [("pod", counts(drafts=40, accepted=3))], [], START)
    assert window.counts == counts(drafts=40, accepted=3)


def test_a_fresh_pod_counts_from_its_first_draft() -> None:
    window = evidence.sample(WINDOW, [("old", counts(drafts=10))], [], START)
    window = evidence.sample(window, [("old", counts(drafts=10)), ("new", counts(drafts=40))], [], START)
    assert window.counts.drafts == 50


def test_a_pod_that_cannot_be_read_adds_nothing_and_loses_nothing() -> None:
    window = evidence.sample(WINDOW, [("pod", counts(drafts=10))], [], START)
    window = evidence.sample(window, [], [], START)
    window = evidence.sample(window, [("pod", counts(drafts=30))], [], START)
    assert window.counts.drafts == 30


def test_what_a_pod_serves_while_it_is_switched_off_is_no_evidence() -> None:
    window = evidence.sample(WINDOW, [], [("pod", counts(requests=100, generated=5000))], START)
    assert window.counts == Counts()
    window = evidence.sample(window, [("pod", counts(drafts=7, requests=101, generated=5010))], [], START)
    assert window.counts == counts(drafts=7, requests=1, generated=10)


@given(st.lists(st.lists(st.integers(0, 50), max_size=8), min_size=1, max_size=4))
def test_increments_add_up_whatever_the_pods_restarts_and_the_operators(pods: list[list[int]]) -> None:
    """Each list: what one pod counted between scrapes; 0 stands for a restart. State goes through JSON each time."""
    window, readings, truth = WINDOW, [0] * len(pods), 0
    for n in range(max(len(steps) for steps in pods)):
        for pod, steps in enumerate(pods):
            if n < len(steps):
                readings[pod] = readings[pod] + steps[n] if steps[n] else 0
                truth += steps[n]
        now = [(str(pod), counts(drafts=value)) for pod, value in enumerate(readings)]
        window = Window.model_validate_json(evidence.sample(window, now, [], START).model_dump_json())
    assert window.counts.drafts == truth


def test_pods_that_are_gone_are_forgotten() -> None:
    window = evidence.sample(WINDOW, [("a", counts(drafts=1)), ("b", counts(drafts=2))], [], START)
    assert [pod.uid for pod in evidence.forget(window, frozenset("b")).pods] == ["b"]


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(6, 10, 0.31, 0.83), (18, 30, 0.42, 0.75), (60, 100, 0.50, 0.69), (180, 300, 0.54, 0.65), (0, 20, 0.0, 0.16)],
)
def test_wilson_bounds_as_published(successes: int, trials: int, low: float, high: float) -> None:
    assert evidence.wilson(successes, trials) == (pytest.approx(low, abs=0.006), pytest.approx(high, abs=0.006))


METRICS = """
# TYPE tandem_drafts_total counter
tandem_drafts_total{revision="r",origin="user"} 40
tandem_drafts_total{revision="r",origin="calibration"} 2
tandem_accepted_tokens_total{revision="r",origin="user"} 90
tandem_accepted_tokens_per_position_total{revision="r",origin="user",position="0"} 30
tandem_accepted_tokens_per_position_total{revision="r",origin="user",position="1"} 20
tandem_finished_requests_total{revision="r",origin="user"} 5
tandem_finished_requests_total{revision="r",origin="calibration"} 1
tandem_generated_tokens_total{revision="r",origin="user"} 130
"""


def test_counters_are_summed_over_origins_and_read_at_position_0() -> None:
    read = builtin.read_counts(METRICS)
    assert read == Counts(drafts=42, accepted=90, accepted0=30, requests=6, user_requests=5, generated=130)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "tandem_drafts_total"),
        (METRICS.replace("tandem_accepted_tokens_total{", "other{"), "tandem_accepted_tokens_total"),
        (METRICS.replace(" 40\n", " NaN\n"), "tandem_drafts_total is nan"),
        (METRICS.replace(" 40\n", " +Inf\n"), "tandem_drafts_total is inf"),
        ("<html>", "html"),
    ],
)
def test_metrics_that_cannot_be_read_say_which_and_are_no_zero(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        builtin.read_counts(text)


def test_conditions_keep_their_transition_time_while_the_status_stays() -> None:
    later = START + timedelta(hours=1)
    first = merge([], [Seen("Ready", "False", "Starting", "0 of 2")], 1, START)
    assert [c.type for c in first] == list(TYPES)
    assert {c.status for c in first if c.type != "Ready"} == {"Unknown"}
    again = merge(first, [Seen("Ready", "False", "TooFewWorkers", "1 of 2")], 2, later)
    assert (again[0].last_transition_time, again[0].observed_generation) == (START, 2)
    moved = merge(again, [Seen("Ready", "True", "Serving", "2 of 2")], 2, later)
    assert moved[0].last_transition_time == later
