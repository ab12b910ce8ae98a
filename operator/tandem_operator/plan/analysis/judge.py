"""The rules, in their order. The first that applies gives the verdict.

1. Nothing accepted. A revision of which no token was ever accepted: >= 30 drafts from >= 3 requests; at a position-0
   rate of 0.3 the chance of 30 misses is 0.7 ** 30 = 0.00002. One that was alive before: the run of misses must be as
   improbable for a healthy one as an alarm of the CUSUM, or it would be called once in so many looks.
2. Requests are served and nothing is drafted although speculation is on: fails closed, since whatever was promoted
   would run without the thing that was rolled out.
3. The sequential tests: at a canary's step (`gate`) the SPRT over the step's window, in steady state (`steady`) the
   CUSUM since the revision was watched.
4. Accepted, but slower than the target alone.
5. Healthy needs the minimum of drafts and requests, an accept length at the floor or above, and both tests.

No evidence is never collapse.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import log
from typing import Literal, NamedTuple

from tandem_operator.api.status import Counts, Measurement, Outcome, Score, Tally, Window
from tandem_operator.plan.analysis import hypotheses, sequential
from tandem_operator.plan.analysis.design_effect import correlation, design_effect
from tandem_operator.plan.analysis.evidence import accept_length, position0, tally_plus
from tandem_operator.plan.analysis.hypotheses import NO_BASELINE, Baseline, Origin
from tandem_operator.plan.analysis.sequential import ALARM_ABOVE, COLLAPSED_ABOVE, HEALTHY_BELOW, Hypotheses, Sample
from tandem_operator.plan.analysis.speed import Speed, too_slow

HARD_FAIL_DRAFTS, HARD_FAIL_REQUESTS = 30, 3
INACTIVE_REQUESTS, INACTIVE_TOKENS = 5, 50


class Limits(NamedTuple):
    """What the user allows; see `guard` and `rollout.analysis` of the spec."""

    min_accept_length: float = 1.3
    tolerated_drop: float = 0.1
    collapse_drop: float = 0.4
    min_speedup: float = 1.0
    minimum_drafts: int = 100
    minimum_requests: int = 5

    @property
    def ratios(self) -> Hypotheses:
        return hypotheses.ratios(self.tolerated_drop, self.collapse_drop)


@dataclass(frozen=True)
class Seen:
    """All that is known of a revision when it is judged. `neighbours`: what other revisions showed, for the
    correlation within requests, which belongs to the traffic as much as to the revision."""

    window: Window
    limits: Limits
    baseline: Baseline = NO_BASELINE
    neighbours: tuple[Counts, ...] = ()
    speed: Speed | None = None

    @cached_property
    def correlation(self) -> float:
        return correlation((self.window.total, *self.neighbours))

    @property
    def design_effect(self) -> float:
        """The larger of now and the long run: requests grow longer in drafts when acceptance falls."""
        counts, total = self.window.counts, self.window.total
        known = (counts, total) if counts.requests >= self.limits.minimum_requests else (total,)
        return max(design_effect(each, self.correlation) for each in known)

    @cached_property
    def floor(self) -> float:
        """As a rate of position-0 acceptance."""
        return hypotheses.floor_rate(self.window.counts, self.window.total, self.limits.min_accept_length)

    @cached_property
    def bounds(self) -> Hypotheses | None:
        """Of the test against the baseline, as rates of position-0 acceptance."""
        baseline = self.baseline
        return hypotheses.from_baseline(baseline.position0, self.limits.ratios) if baseline.position0 > 0 else None


def gate(seen: Seen, now: datetime) -> Measurement:
    """May the canary go on from its step? The window is the step's."""
    counts, effect = seen.window.counts, seen.design_effect
    floor_score = _against_floor(seen, counts, effect)
    score = _against_baseline(seen, counts, effect)
    judged = _judged(seen, counts, effect, now).model_copy(
        update={
            "test": "Gate",
            "score": round(score, 2),
            "floor_score": round(floor_score, 2),
            "alarm_above": round(COLLAPSED_ABOVE, 2),
            "healthy_below": round(HEALTHY_BELOW, 2),
        }
    )
    if found := _dead_or_inactive(seen, effect):
        return _said(judged, *found)
    if (few := _too_few(seen)) is not None:
        return _said(judged, *few)
    below = accept_length(counts) < seen.limits.min_accept_length
    if (below and floor_score >= COLLAPSED_ABOVE) or score >= COLLAPSED_ABOVE:
        return _said(judged, *_collapsed(counts, seen))
    if slow := _slow(seen, counts):
        return _said(judged, *slow)
    no_floor = seen.floor <= 0
    passed = (no_floor or floor_score <= HEALTHY_BELOW) and (not seen.bounds or score <= HEALTHY_BELOW)
    if passed and not below:
        return _said(judged, Outcome.HEALTHY, "AcceptLengthAboveFloor", _figures(counts, seen))
    message = f"{_figures(counts, seen)}; more evidence is needed to tell healthy from collapsed"
    return _said(judged, Outcome.INCONCLUSIVE, "Undecided", message)


def steady(seen: Seen, added: Counts, now: datetime) -> tuple[Window, Measurement]:
    """Has the revision that serves turned bad? `added`: what was counted since the last look, part of the window.

    -> the window with its scores, and the verdict. Scores wait for the first requests to end: until then nothing is
    known of their size.
    """
    counts, effect = seen.window.counts, seen.design_effect
    floor, score = seen.window.below_floor, seen.window.below_baseline
    if seen.window.total.requests >= seen.limits.minimum_requests:
        floor = _scored(floor, added, _against_floor(seen, added, effect))
        score = _scored(score, added, _against_baseline(seen, added, effect))
    window = seen.window.model_copy(update={"below_floor": floor, "below_baseline": score})
    judged = _judged(seen, counts, effect, now).model_copy(
        update={
            "score": round(score.value, 2),
            "floor_score": round(floor.value, 2),
            "alarm_above": ALARM_ABOVE,
        }
    )
    if found := _dead_or_inactive(seen, effect):
        return window, _said(judged, *found)
    if (alarm := max(floor, score, key=lambda each: each.value)).value > ALARM_ABOVE:
        return window, _said(judged, *_collapsed(alarm, seen), evidence=alarm)
    if (few := _too_few(seen)) is not None:
        return window, _said(judged, *few)
    if slow := _slow(seen, counts):
        return window, _said(judged, *slow)
    if max(floor.value, score.value) > ALARM_ABOVE / 2 or accept_length(counts) < seen.limits.min_accept_length:
        message = f"{_figures(counts, seen)}; more evidence is needed to tell healthy from collapsed"
        return window, _said(judged, Outcome.INCONCLUSIVE, "Undecided", message)
    return window, _said(judged, Outcome.HEALTHY, "AcceptLengthAboveFloor", _figures(counts, seen))


def unavailable(window: Window, test: Literal["Gate", "Steady"], problem: str, now: datetime) -> Measurement:
    """No worker of the revision could be read."""
    return Measurement(
        at=now,
        since=window.started_at,
        revision=window.revision,
        test=test,
        outcome=Outcome.METRICS_UNAVAILABLE,
        reason="MetricsUnavailable",
        message=problem,
    )


def _dead_or_inactive(seen: Seen, effect: float) -> tuple[Outcome, str, str] | None:
    counts, barren = seen.window.counts, seen.window.barren
    if barren.drafts >= HARD_FAIL_DRAFTS and barren.requests >= HARD_FAIL_REQUESTS and _dead(seen, effect):
        message = f"accept length 1.00: none of {barren.drafts} drafts from {barren.requests} requests was accepted"
        return Outcome.COLLAPSED, "NothingAccepted", message
    if counts.drafts == 0 and counts.requests >= INACTIVE_REQUESTS and counts.generated >= INACTIVE_TOKENS:
        message = f"{counts.requests} requests and {counts.generated} tokens were served without one draft"
        return Outcome.SPECULATION_INACTIVE, "SpeculationInactive", message
    return None


def _dead(seen: Seen, effect: float) -> bool:
    """Rule 1, of a run of misses that is long enough to be looked at."""
    if seen.window.total.accepted == 0:
        return True
    healthy = max(seen.floor, seen.bounds.healthy if seen.bounds else 0.0)
    miss = max(1e-6, 1 - healthy)
    return -log(miss) * seen.window.barren.drafts / effect > ALARM_ABOVE


def _too_few(seen: Seen) -> tuple[Outcome, str, str] | None:
    counts, limits = seen.window.counts, seen.limits
    if counts.drafts >= limits.minimum_drafts and counts.requests >= limits.minimum_requests:
        return None
    message = (
        f"{counts.drafts} drafts from {counts.requests} requests so far; "
        f"{limits.minimum_drafts} from {limits.minimum_requests} are needed"
    )
    return Outcome.INCONCLUSIVE, "TooFewDrafts", message


def _collapsed(counts: Tally, seen: Seen) -> tuple[Outcome, str, str]:
    """Whichever test found it: below the user's floor is said first."""
    if accept_length(counts) < seen.limits.min_accept_length:
        return Outcome.COLLAPSED, "AcceptLengthBelowFloor", _figures(counts, seen)
    return Outcome.COLLAPSED, "AcceptanceBelowBaseline", _against(counts, seen)


def _slow(seen: Seen, counts: Tally) -> tuple[Outcome, str, str] | None:
    if seen.speed is None or not too_slow(seen.speed, seen.limits.min_speedup):
        return None
    message = (
        f"{seen.speed.speedup:.2f} times the speed of the target alone, {seen.limits.min_speedup:g} is asked for "
        f"({seen.speed.rounds} rounds and {seen.speed.plain_steps} plain steps at like batch size); "
        f"{_figures(counts, seen)}"
    )
    return Outcome.TOO_SLOW, "TooSlow", message


def _against_floor(seen: Seen, counts: Tally, effect: float) -> float:
    rate = seen.floor
    if rate <= 0:
        return 0.0
    sample = _sample(counts, effect)
    if rate >= 1:  # out of reach: whatever is seen, every draft speaks against it
        return sample.trials
    return sequential.log_likelihood_ratio(sample, hypotheses.from_floor(rate))


def _against_baseline(seen: Seen, counts: Tally, effect: float) -> float:
    bounds, beside = seen.bounds, seen.baseline.beside
    if bounds is None:
        return 0.0
    if beside is None:
        return sequential.log_likelihood_ratio(_sample(counts, effect), bounds)
    effect_beside = design_effect(beside, seen.correlation)
    return sequential.log_likelihood_ratio_beside(
        _sample(counts, effect), _sample(beside, effect_beside), seen.limits.ratios
    )


def _sample(counts: Tally, effect: float) -> Sample:
    return Sample(min(counts.accepted0, counts.drafts) / effect, counts.drafts / effect)


def _scored(score: Score, added: Counts, log_likelihood_ratio: float) -> Score:
    value = sequential.cusum(score.value, log_likelihood_ratio)
    if value <= 0:
        return Score()
    evidence = tally_plus(score, added)
    return Score(value=value, **evidence.model_dump())


def _judged(seen: Seen, counts: Counts, effect: float, now: datetime) -> Measurement:
    """All but the verdict."""
    bounds, baseline = seen.bounds, seen.baseline
    return Measurement(
        at=now,
        since=seen.window.started_at,
        revision=seen.window.revision,
        test="Steady",
        outcome=Outcome.INCONCLUSIVE,
        reason="Undecided",
        **_figures_of(counts),
        baseline=baseline.origin,
        baseline_position0=round(baseline.position0, 3) if bounds else None,
        baseline_drafts=baseline.drafts,
        healthy=round(bounds.healthy, 3) if bounds else None,
        collapsed=round(bounds.collapsed, 3) if bounds else None,
        design_effect=round(effect, 2),
        correlation=round(seen.correlation, 3),
        speedup=round(seen.speed.speedup, 2) if seen.speed and seen.speed.enough else None,
    )


def _figures_of(counts: Tally) -> dict[str, float]:
    figures: dict[str, float] = {"drafts": counts.drafts, "accepted": counts.accepted, "requests": counts.requests}
    if counts.drafts:
        figures |= {"accept_length": round(accept_length(counts), 3), "position0": round(position0(counts), 3)}
    return figures


def _said(
    judged: Measurement, outcome: Outcome, reason: str, message: str, evidence: Tally | None = None
) -> Measurement:
    """`evidence`: what decided, when it is not the window."""
    update = {"outcome": outcome, "reason": reason, "message": message}
    return judged.model_copy(update={**update, **(_figures_of(evidence) if evidence else {})})


def _figures(counts: Tally, seen: Seen) -> str:
    return f"{_length(counts)}, floor {seen.limits.min_accept_length:g}"


def _against(counts: Tally, seen: Seen) -> str:
    baseline = seen.baseline
    of = {
        Origin.STABLE: f"of the stable revision over {baseline.drafts} drafts",
        Origin.PROBE: f"as validated over {baseline.drafts} drafts of other prompts",
        Origin.START: f"over its first {baseline.drafts} drafts",
    }
    return (
        f"{_length(counts)}, position 0 {position0(counts):.2f} against {baseline.position0:.2f} {of[baseline.origin]}"
    )


def _length(counts: Tally) -> str:
    return f"accept length {accept_length(counts):.2f} over {counts.drafts} drafts from {counts.requests} requests"
