"""From raw counters of pods to increments and windows: what counts as evidence, and what is none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.api.status import Counts, Score, Tally, Window
from tandem_operator.engines import builtin
from tandem_operator.engines.reading import StepTimes
from tandem_operator.plan.analysis import evidence
from tandem_operator.plan.analysis.evidence import FROZEN_LOOKS, Reading
from tandem_operator.plan.conditions import TYPES, Seen, merge

START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = Window(revision="r", started_at=START, sampled_at=START)


def counts(drafts: int = 0, accepted: int = 0, requests: int = 0, generated: int = 0) -> Counts:
    return Counts(drafts=drafts, accepted=accepted, accepted0=accepted, requests=requests, generated=generated)


def sampled(window: Window, *readings: Reading, now: datetime = START) -> Window:
    return evidence.sample(window, readings, now)[0]


def test_the_window_between_two_scrapes_is_what_counts_not_the_lifetime() -> None:
    window = evidence.fresh(sampled(WINDOW, Reading("pod", counts(drafts=500, accepted=1000))), START)
    window = sampled(window, Reading("pod", counts(drafts=900, accepted=1600)), now=START + timedelta(seconds=30))
    assert evidence.accept_length(window.counts) == 2.5
    assert evidence.accept_length(window.total) == pytest.approx(2.78, abs=0.005)


def test_a_revision_that_is_judged_anew_keeps_its_long_run_and_nothing_that_was_held_against_it() -> None:
    score = Score(drafts=900, value=8.0)
    update = {"settled": 0.7, "below_floor": score, "below_baseline": score}
    before = sampled(WINDOW, Reading("pod", counts(drafts=900))).model_copy(update=update)
    anew = WINDOW.model_copy(update={"total": before.total, "settled": 0.7, "pods": before.pods})
    assert evidence.restart(before, START) == anew


def test_a_counter_that_falls_began_again_at_zero() -> None:
    window = evidence.fresh(sampled(WINDOW, Reading("pod", counts(drafts=1600, accepted=9))), START)
    window = sampled(window, Reading("pod", counts(drafts=40, accepted=3)))
    assert window.counts == counts(drafts=40, accepted=3)


def test_a_fresh_pod_counts_from_its_first_draft() -> None:
    window = sampled(WINDOW, Reading("old", counts(drafts=10)))
    window = sampled(window, Reading("old", counts(drafts=10)), Reading("new", counts(drafts=40)))
    assert window.counts.drafts == 50


def test_a_pod_that_cannot_be_read_adds_nothing_and_loses_nothing() -> None:
    window = sampled(WINDOW, Reading("pod", counts(drafts=10)))
    window = sampled(window)
    window = sampled(window, Reading("pod", counts(drafts=30)))
    assert window.counts.drafts == 30


def test_engine_ranks_of_one_pod_count_on_their_own() -> None:
    window = sampled(WINDOW, Reading("pod/0", counts(drafts=100)), Reading("pod/1", counts(drafts=60)))
    window = sampled(window, Reading("pod/0", counts(drafts=110)), Reading("pod/1", counts(drafts=5)))
    assert window.counts.drafts == 100 + 60 + 10 + 5
    assert evidence.forget(window, frozenset({"pod"})).pods == window.pods
    assert evidence.forget(window, frozenset({"other"})).pods == []


def test_what_a_pod_serves_while_it_is_switched_off_is_no_evidence() -> None:
    window = sampled(WINDOW, Reading("pod", counts(requests=100, generated=5000), drafting=False))
    assert window.counts == Counts()
    window = sampled(window, Reading("pod", counts(drafts=7, requests=101, generated=5010)))
    assert window.counts == counts(drafts=7, requests=1, generated=10)


def test_a_run_without_one_accepted_token_ends_with_the_first() -> None:
    window = sampled(WINDOW, Reading("pod", counts(drafts=100, accepted=50, requests=2)))
    window = sampled(window, Reading("pod", counts(drafts=130, accepted=50, requests=3)))
    window = sampled(window, Reading("pod", counts(drafts=170, accepted=50, requests=5)))
    assert window.barren == Tally(drafts=70, requests=3)
    assert sampled(window, Reading("pod", counts(drafts=180, accepted=51, requests=5))).barren == Tally()


def test_counters_that_stand_still_while_requests_run_are_told_from_an_idle_pod() -> None:
    busy = idle = sampled(WINDOW, Reading("pod", counts(drafts=10), running=2))
    for _ in range(FROZEN_LOOKS):
        assert not evidence.frozen(busy)
        busy = sampled(busy, Reading("pod", counts(drafts=10), running=2))
        idle = sampled(idle, Reading("pod", counts(drafts=10), running=0))
    assert evidence.frozen(busy) == {"pod"}
    assert not evidence.frozen(idle)
    assert not evidence.frozen(sampled(busy, Reading("pod", counts(drafts=11), running=2)))


@given(st.lists(st.lists(st.integers(0, 50), max_size=8), min_size=1, max_size=4))
def test_increments_add_up_whatever_the_pods_restarts_and_the_operators(pods: list[list[int]]) -> None:
    """Each list: what one pod counted between scrapes; 0 stands for a restart. State goes through JSON each time."""
    window, readings, truth = WINDOW, [0] * len(pods), 0
    for n in range(max(len(steps) for steps in pods)):
        for pod, steps in enumerate(pods):
            if n < len(steps):
                readings[pod] = readings[pod] + steps[n] if steps[n] else 0
                truth += steps[n]
        now = [Reading(str(pod), counts(drafts=value)) for pod, value in enumerate(readings)]
        window = Window.model_validate_json(sampled(window, *now).model_dump_json())
        if n % 3 == 2:
            window = evidence.fresh(window, START)
    assert window.total.drafts == truth


METRICS = """
# TYPE tandem_drafts_total counter
tandem_drafts_total{revision="r",origin="user"} 40
tandem_drafts_total{revision="r",origin="calibration"} 2
tandem_accepted_tokens_total{revision="r",origin="user"} 90
tandem_accepted_tokens_per_position_total{revision="r",origin="user",position="0"} 30
tandem_accepted_tokens_per_position_total{revision="r",origin="user",position="1"} 20
tandem_finished_requests_total{revision="r",origin="user"} 5
tandem_finished_requests_total{revision="r",origin="calibration"} 1
tandem_finished_drafts_squared_total{revision="r",origin="user"} 330
tandem_finished_drafts_squared_total{revision="r",origin="calibration"} 4
tandem_generated_tokens_total{revision="r",origin="user"} 130
tandem_running_requests{revision="r"} 3
# TYPE tandem_step_seconds histogram
tandem_step_seconds_bucket{revision="r",phase="verify",batch="2",le="0.5"} 7
tandem_step_seconds_count{revision="r",phase="verify",batch="2"} 7
tandem_step_seconds_sum{revision="r",phase="verify",batch="2"} 0.21
tandem_step_seconds_count{revision="r",phase="plain",batch="2"} 0
tandem_step_seconds_sum{revision="r",phase="plain",batch="2"} 0
"""


def test_what_is_not_read_of_a_page_costs_and_spoils_nothing() -> None:
    idle = 'tandem_step_seconds_count{revision="r",phase="plain",batch="3"} 0.0\n'
    others = 'tandem_build_info{component="worker"} 1\nsomething{that="never ends\ntandem_step_seconds_bucket{oops} x\n'
    assert builtin.read_metrics(METRICS + idle + others) == builtin.read_metrics(METRICS)


def test_counters_are_summed_over_origins_and_read_at_position_0() -> None:
    read = builtin.read_metrics(METRICS)
    assert read.counts == Counts(
        drafts=42,
        accepted=90,
        accepted0=30,
        requests=6,
        user_requests=5,
        generated=130,
        finished_drafts_squared=334,
    )
    assert read.running == 3
    assert read.steps == (StepTimes("verify", 2, 7, 0.21),), "what was never timed is left out"


def test_tokens_that_were_meant_to_come_without_drafts_do_not_make_speculation_look_inactive() -> None:
    """Requests that want no drafts, and a worker that found that none pay (draftLength: auto)."""
    read = builtin.read_metrics(METRICS + 'tandem_undrafted_tokens_total{revision="r",origin="user"} 120\n')
    assert (read.counts.requests, read.counts.generated) == (6, 10)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "tandem_drafts_total"),
        (METRICS.replace("tandem_accepted_tokens_total{", "other{"), "tandem_accepted_tokens_total"),
        (METRICS.replace(" 40\n", " NaN\n"), "tandem_drafts_total is nan"),
        (METRICS.replace(" 40\n", " +Inf\n"), "tandem_drafts_total is inf"),
        ("<html>", "tandem_drafts_total"),
    ],
)
def test_metrics_that_cannot_be_read_say_which_and_are_no_zero(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        builtin.read_metrics(text)


def test_conditions_keep_their_transition_time_while_the_status_stays() -> None:
    later = START + timedelta(hours=1)
    first = merge([], [Seen("Ready", "False", "Starting", "0 of 2")], 1, START)
    assert [c.type for c in first] == list(TYPES)
    assert {c.status for c in first if c.type != "Ready"} == {"Unknown"}
    again = merge(first, [Seen("Ready", "False", "TooFewWorkers", "1 of 2")], 2, later)
    assert (again[0].last_transition_time, again[0].observed_generation) == (START, 2)
    moved = merge(again, [Seen("Ready", "True", "Serving", "2 of 2")], 2, later)
    assert moved[0].last_transition_time == later
