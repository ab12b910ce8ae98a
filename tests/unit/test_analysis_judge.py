"""The verdict on a revision, and the numbers that come with it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tandem_operator.api.status import Counts, Measurement, Outcome, Tally, Window
from tandem_operator.plan.analysis import evidence
from tandem_operator.plan.analysis.evidence import Reading
from tandem_operator.plan.analysis.hypotheses import NO_BASELINE, Baseline, Origin, floor_rate
from tandem_operator.plan.analysis.judge import Limits, Seen, gate, steady

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = Window(revision="r", started_at=NOW, sampled_at=NOW)


def counts(drafts: int = 0, rate: float = 0.0, requests: int = 0, generated: int = 0, tail: float = 1.0) -> Counts:
    """Requests that are all alike. `tail`: tokens accepted in a draft whose first token was."""
    first = round(drafts * rate)
    size = drafts / max(1, requests)
    return Counts(
        drafts=drafts,
        accepted=round(first * tail),
        accepted0=first,
        requests=requests,
        user_requests=requests,
        generated=generated,
        finished_drafts=drafts,
        finished_accepted0=first,
        finished_drafts_squared=round(size * drafts),
        finished_accepted0_squared=round(first * first / max(1, requests)),
        finished_drafts_accepted0=round(size * first),
    )


def window(*looks: Counts) -> Window:
    """Each: what was counted between two looks."""
    found, total = EMPTY, Counts()
    for added in looks:
        total = evidence.plus(total, added)
        found, _ = evidence.sample(found, [Reading("pod", total)], NOW)
    return found


def at_gate(seen: Counts, baseline: Baseline = NO_BASELINE, **limits: float) -> Measurement:
    return gate(Seen(window(seen), Limits(**limits), baseline), NOW)  # type: ignore[arg-type]


def beside(seen: Counts) -> Baseline:
    return Baseline(Origin.STABLE, evidence.position0(seen), seen.drafts, seen)


@pytest.mark.parametrize(
    ("seen", "outcome", "reason"),
    [
        (counts(), "Inconclusive", "TooFewDrafts"),
        (counts(29, requests=3), "Inconclusive", "TooFewDrafts"),
        (counts(30, requests=2), "Inconclusive", "TooFewDrafts"),
        (counts(30, requests=3), "Collapsed", "NothingAccepted"),
        (counts(5000, requests=100), "Collapsed", "NothingAccepted"),
        (counts(30, 0.04, requests=3), "Inconclusive", "TooFewDrafts"),
        (counts(5000, 0.9, requests=4), "Inconclusive", "TooFewDrafts"),
        (counts(99, 0.9, requests=50), "Inconclusive", "TooFewDrafts"),
        (counts(5000, 0.1, requests=250), "Collapsed", "AcceptLengthBelowFloor"),
        (counts(5000, 0.8, requests=250), "Healthy", "AcceptLengthAboveFloor"),
        (counts(200, 0.29, requests=10), "Inconclusive", "Undecided"),
        (counts(requests=5, generated=50), "SpeculationInactive", "SpeculationInactive"),
        (counts(requests=5, generated=5), "Inconclusive", "TooFewDrafts"),
        (counts(requests=4, generated=500), "Inconclusive", "TooFewDrafts"),
    ],
)
def test_a_verdict_needs_evidence_and_no_evidence_is_never_collapse(seen: Counts, outcome: str, reason: str) -> None:
    measured = at_gate(seen)
    assert (measured.outcome, measured.reason) == (outcome, reason)


def test_a_verdict_says_the_numbers_that_made_it() -> None:
    measured = at_gate(counts(4120, 0.02, requests=90))
    assert measured.message == "accept length 1.02 over 4120 drafts from 90 requests, floor 1.3"
    assert (measured.drafts, measured.accepted, measured.requests) == (4120, 82, 90)
    assert measured.accept_length == pytest.approx(1.02, abs=0.001)
    assert measured.floor_score > measured.alarm_above == pytest.approx(9.2, abs=0.01)
    assert measured.healthy_below == pytest.approx(-4.61, abs=0.01)
    assert measured.design_effect == 1, "these requests are all alike"
    assert measured.baseline == "None"


def test_close_to_the_floor_neither_is_said_and_a_verdict_never_contradicts_its_figures() -> None:
    for drafts in (200, 2000, 200_000):
        below = at_gate(counts(drafts, 0.29, requests=drafts // 20))
        above = at_gate(counts(drafts, 0.305, requests=drafts // 20))
        assert below.outcome != Outcome.HEALTHY
        assert above.outcome != Outcome.COLLAPSED


def test_the_minimum_of_evidence_is_the_users() -> None:
    seen = counts(5000, 0.8, requests=250)
    assert at_gate(seen, minimum_drafts=6000).message == "5000 drafts from 250 requests so far; 6000 from 5 are needed"
    assert at_gate(seen, minimum_requests=300).reason == "TooFewDrafts"


def test_a_canary_far_below_the_stable_revision_has_collapsed_though_above_the_floor() -> None:
    measured = at_gate(counts(3000, 0.5, requests=100, tail=2), beside(counts(3000, 0.83, requests=100, tail=2)))
    assert (measured.outcome, measured.reason) == ("Collapsed", "AcceptanceBelowBaseline")
    assert measured.message == (
        "accept length 2.00 over 3000 drafts from 100 requests, "
        "position 0 0.50 against 0.83 of the stable revision over 3000 drafts"
    )
    assert (measured.baseline, measured.baseline_position0, measured.baseline_drafts) == ("Stable", 0.83, 3000)
    assert (measured.healthy, measured.collapsed) == (0.747, 0.498)


def test_below_the_floor_is_said_first() -> None:
    measured = at_gate(counts(3000, 0.1, requests=100), beside(counts(3000, 0.8, requests=100)))
    assert measured.reason == "AcceptLengthBelowFloor"
    assert measured.message == "accept length 1.10 over 3000 drafts from 100 requests, floor 1.3"


def test_hard_traffic_that_both_see_is_no_collapse_and_a_validated_figure_would_call_it_one() -> None:
    hard = counts(3000, 0.5, requests=100)
    assert at_gate(hard, beside(hard)).outcome == Outcome.HEALTHY
    validated = at_gate(hard, Baseline(Origin.PROBE, 0.83, 500))
    assert validated.reason == "AcceptanceBelowBaseline"
    assert validated.message.endswith("position 0 0.50 against 0.83 as validated over 500 drafts of other prompts")


def test_little_evidence_on_the_stable_revision_holds_the_canary() -> None:
    measured = at_gate(counts(3000, 0.5, requests=100), beside(counts(10, 0.8, requests=1)))
    assert (measured.outcome, measured.reason) == ("Inconclusive", "Undecided")


def test_the_users_drops_decide_what_a_collapse_is() -> None:
    seen, other = counts(3000, 0.5, requests=100), beside(counts(3000, 0.83, requests=100))
    assert at_gate(seen, other, tolerated_drop=0.5, collapse_drop=0.8).outcome == Outcome.HEALTHY


def test_alike_drafts_within_requests_make_evidence_weaker() -> None:
    alike = counts(2000, 0.5, requests=100).model_copy(
        update={"finished_accepted0_squared": 20 * 1000, "finished_drafts_accepted0": 20 * 1000}
    )  # half of the requests accept everything, half nothing
    other = beside(counts(200_000, 0.75, requests=10_000))
    independent, clustered = at_gate(counts(2000, 0.5, requests=100), other), at_gate(alike, other)
    assert clustered.design_effect > 15 > 2 > independent.design_effect
    assert (clustered.outcome, independent.outcome) == ("Inconclusive", "Collapsed")


def test_the_floor_at_position_0_follows_from_how_many_tokens_come_after() -> None:
    assert floor_rate(counts(1000, 0.8, tail=3), Counts(), min_accept_length=1.6) == pytest.approx(0.2)
    assert floor_rate(Counts(), Counts(), min_accept_length=1.3) == pytest.approx(0.3)
    assert floor_rate(Counts(), counts(1000, 0.8, tail=3), min_accept_length=1.6) == pytest.approx(0.2)


def test_later_positions_that_decay_are_seen_through_the_floor() -> None:
    """Position 0 is as it was; what follows is not."""
    measured = at_gate(counts(3000, 0.4, requests=100, tail=1), min_accept_length=1.8)
    assert measured.reason == "AcceptLengthBelowFloor"


def test_a_floor_that_no_drafter_reaches_is_a_collapse() -> None:
    assert at_gate(counts(3000, 0.9, requests=100, tail=3), min_accept_length=8.5).reason == "AcceptLengthBelowFloor"


def test_without_a_floor_anything_that_is_accepted_at_all_is_healthy() -> None:
    assert at_gate(counts(3000, 0.01, requests=100), min_accept_length=1.0).outcome == Outcome.HEALTHY
    assert at_gate(counts(3000, 0.0, requests=100), min_accept_length=1.0).reason == "NothingAccepted"


# --- in steady state ---


def served(*looks: Counts, baseline: Baseline = NO_BASELINE, **limits: float) -> tuple[Window, list[Measurement]]:
    """Each look is judged, and a window that was judged Healthy ends, as the operator does it."""
    found, total, judged = EMPTY, Counts(), []
    for added in looks:
        total = evidence.plus(total, added)
        found, moved = evidence.sample(found, [Reading("pod", total)], NOW)
        found, measured = steady(Seen(found, Limits(**limits), baseline), moved, NOW)  # type: ignore[arg-type]
        found = Window.model_validate_json(found.model_dump_json())  # an operator may restart between any two
        judged.append(measured)
        if measured.outcome == Outcome.HEALTHY:
            found = evidence.fresh(found, NOW)
        if measured.outcome.bad:
            break
    return found, judged


GOOD, WORSE, DEAD = (counts(300, rate, requests=10) for rate in (0.75, 0.5, 0.0))
VALIDATED = Baseline(Origin.PROBE, 0.8333, 1000)


def test_a_year_of_health_does_not_hide_a_collapse() -> None:
    _, judged = served(*[GOOD] * 200, *[WORSE] * 10, baseline=VALIDATED)
    assert {m.outcome for m in judged[:200]} == {Outcome.HEALTHY}
    assert judged[-1].reason == "AcceptanceBelowBaseline"
    assert len(judged) <= 203
    assert judged[-1].accept_length == 1.5, "the figures are of what came after the change"
    assert judged[-1].score > judged[-1].alarm_above


def test_a_dip_that_passes_is_forgotten() -> None:
    dip = counts(40, 0.5, requests=2)
    found, judged = served(*[GOOD, GOOD, dip] * 100, baseline=VALIDATED)
    assert not any(m.outcome.bad for m in judged)
    assert found.below_baseline.value < judged[-1].alarm_above


def test_a_revision_that_never_accepted_anything_is_called_early_and_one_that_died_a_little_later() -> None:
    born_dead, died = counts(30, 0.0, requests=3), counts(30, 0.0, requests=3)
    assert served(born_dead)[1][-1].reason == "NothingAccepted"
    _, judged = served(*[GOOD] * 5, *[died] * 30, min_accept_length=1.1)
    assert judged[5].reason == "TooFewDrafts", "30 misses are no wonder where one in ten is accepted"
    assert judged[-1].reason == "NothingAccepted"
    assert "none of" in judged[-1].message


def test_a_look_that_straddles_the_death_does_not_hide_it() -> None:
    _, judged = served(*[GOOD] * 5, counts(300, 0.3, requests=10), *[DEAD] * 5)
    assert judged[-1].reason == "NothingAccepted"


def test_without_a_baseline_only_the_floor_counts() -> None:
    _, judged = served(*[GOOD] * 5, *[WORSE] * 50)
    assert {m.outcome for m in judged} == {Outcome.HEALTHY}
    _, judged = served(*[GOOD] * 5, *[counts(300, 0.1, requests=10)] * 50)
    assert judged[-1].reason == "AcceptLengthBelowFloor"


def test_no_traffic_never_gives_a_verdict() -> None:
    found, judged = served(*[GOOD] * 3, *[Counts()] * 200, baseline=VALIDATED)
    assert {m.reason for m in judged[3:]} == {"TooFewDrafts"}
    assert found.barren == Tally()
