"""`status`: what the operator saw and decided. State that must outlive the operator is here, small."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

from tandem_operator.api.base import ApiModel, Sentence, ShortText

# As the API server writes times. Micros would be refused by `format: date-time` readers that expect RFC 3339 seconds.
Time = Annotated[
    datetime, PlainSerializer(lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ"), return_type=str, when_used="json")
]
_KEYED_BY_TYPE: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
Hash = Annotated[str, Field(max_length=64)]
MOST_UNREAD = 4096
"""A thousand replicas, as many in surge, and those of revisions that go. A worker beyond that counts from its last
reading on, as if nothing had begun anew: better than a status that the API server refuses."""


class Condition(ApiModel):
    """As the API conventions have it; the message is a sentence with figures."""

    type: Annotated[str, Field(max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    message: Annotated[str, Field(max_length=32768)] = ""
    last_transition_time: Time
    observed_generation: int = 0


class Finding(ApiModel):
    """A finding of the validation, as in the worker's report."""

    code: ShortText
    severity: ShortText
    message: Sentence
    file: Sentence = ""
    where: Sentence = ""
    found: Sentence = ""
    expected: Sentence = ""
    action: Sentence = ""


class CaptureIndexes(ApiModel):
    declared: Annotated[list[int], Field(max_length=64)] | None = None
    declared_at: ShortText = ""
    engine: Annotated[list[int], Field(max_length=64)] = []
    trained_on: Annotated[list[int], Field(max_length=64)] | None = None


class Probe(ApiModel):
    text: Annotated[
        str,
        Field(
            max_length=16,
            description="What was judged. prompt: the texts themselves, of which less is accepted than in service. "
            "continuation: what the target itself goes on with, as in service.",
        ),
    ] = "prompt"
    accept_length: float
    position0: float
    drafts: int
    prompts: int
    threshold: float
    diagnosis: Sentence = ""


class Fingerprints(ApiModel):
    target: Annotated[str, Field(max_length=128)]
    drafter: Annotated[str, Field(max_length=128)]


class Validation(ApiModel):
    """The last report on the pair that the spec names. `key` is the hash of what was validated."""

    key: Hash
    attempt: int = 0
    verdict: Annotated[str, Field(max_length=64)]
    summary: Sentence = ""
    findings: Annotated[list[Finding], Field(max_length=64)] = []
    capture_indexes: CaptureIndexes | None = None
    probe: Probe | None = None
    fingerprints: Fingerprints | None = None
    report: Annotated[str, Field(max_length=256, description="Whose log holds the report in full: pod/<name>.")] = ""
    weight_bytes: int | None = None
    at: Time


class Acceptance(ApiModel):
    """Of the serving revision, over the last window with evidence. Bounds: Wilson's 95 % of position 0, for people.

    `speedup`: over the target alone, from step times at like batch size; absent until enough steps were timed.
    """

    accept_length: float
    position0: float
    lower: float
    upper: float
    drafts: int
    requests: int
    revision: Hash
    window_seconds: int
    speedup: float | None = None


class Outcome(StrEnum):
    """What a measurement says of a revision."""

    HEALTHY = "Healthy"
    COLLAPSED = "Collapsed"
    TOO_SLOW = "TooSlow"
    SPECULATION_INACTIVE = "SpeculationInactive"
    INCONCLUSIVE = "Inconclusive"
    METRICS_UNAVAILABLE = "MetricsUnavailable"

    @property
    def bad(self) -> bool:
        """The revision is not to go on. The last two are no evidence, neither good nor bad."""
        return self in (Outcome.COLLAPSED, Outcome.TOO_SLOW, Outcome.SPECULATION_INACTIVE)


class Measurement(ApiModel):
    """One look at a revision, with the numbers that made the verdict.

    `acceptLength` and `position0` are of the evidence that decided. `healthy` and `collapsed` are the two rates of
    position-0 acceptance between which the test against the baseline decides; `score` is its log-likelihood ratio,
    `floorScore` that of the test against `guard.minAcceptLength`; above `alarmAbove` they say collapsed, below
    `healthyBelow` (at a canary) healthy. Both are divided by `designEffect`, for drafts of one request are alike.
    """

    at: Time
    since: Time
    revision: Hash
    test: Literal["Gate", "Steady"]
    outcome: Outcome
    reason: ShortText
    message: Sentence = ""
    drafts: int = 0
    accepted: int = 0
    requests: int = 0
    accept_length: float | None = None
    position0: float | None = None
    baseline: Annotated[str, Field(max_length=16)] = ""
    baseline_position0: float | None = None
    baseline_drafts: int = 0
    healthy: float | None = None
    collapsed: float | None = None
    score: float = 0.0
    floor_score: float = 0.0
    alarm_above: float = 0.0
    healthy_below: float | None = None
    design_effect: float = 1.0
    correlation: float = 0.0
    speedup: float | None = None


class Quarantine(ApiModel):
    """A revision that is not run again while `spec` (a hash of it and of the retry annotation) stays as it is. An empty
    one: what was found is of before a retry, which would have ended this.

    `instead`: the revision that a person chose to serve in its place.
    """

    revision: Hash
    reason: ShortText
    message: Sentence = ""
    at: Time
    spec: Hash
    instead: Hash = ""


class Command(StrEnum):
    """What can be asked for by hand, in the order in which it is carried out."""

    RETRY = "retry"
    ROLLBACK = "rollback"
    ABORT = "abort"
    PROMOTE = "promote"


class AnswerOutcome(StrEnum):
    ACCEPTED = "Accepted"
    REFUSED = "Refused"
    NOT_UNDERSTOOD = "NotUnderstood"


class Answer(ApiModel):
    """What became of the annotation `tandem.dev/<command>` when it had this value."""

    command: Command
    value: Annotated[str, Field(max_length=128)]
    outcome: AnswerOutcome
    message: Sentence = ""
    at: Time


class Tally(ApiModel):
    drafts: int = 0
    accepted: int = 0
    accepted0: int = 0
    requests: int = 0


class Counts(Tally):
    """Increments of the raw counters. `finished…`: sums over finished requests, see the worker's metrics."""

    user_requests: int = 0
    generated: int = 0
    finished_drafts: int = 0
    finished_accepted0: int = 0
    finished_drafts_squared: int = 0
    finished_accepted0_squared: int = 0
    finished_drafts_accepted0: int = 0


class PodCounts(Counts):
    """Counters of one pod as last read, so that the next reading can be differenced after a restart of the operator.

    `still`: looks in a row at which requests ran and no counter moved.
    """

    uid: Annotated[str, Field(max_length=64)]
    running: int = 0
    still: int = 0


class Score(Tally):
    """A cumulative sum, and the evidence that it is made of: all since it was last at zero."""

    value: float = 0.0


class Window(ApiModel):
    """Evidence on one revision since `startedAt`.

    `total` is everything since the revision is watched; `judged` all since it was last judged anew, over all windows;
    `barren` what was seen since anything was last accepted;
    `besideFrom` the total of the revision that serves beside it when the window began; `settled` the position-0
    acceptance of its first drafts in service, 0 until there are enough.
    """

    revision: Hash
    started_at: Time
    sampled_at: Time
    counts: Counts = Counts()
    total: Counts = Counts()
    judged: Tally = Tally()
    beside_from: Counts | None = None
    barren: Tally = Tally()
    below_floor: Score = Score()
    below_baseline: Score = Score()
    settled: float = 0.0
    pods: Annotated[list[PodCounts], Field(max_length=1024)] = []


class Progress(ApiModel):
    """Where the rollout of the canary stands.

    `inForceAt`: since when the step's weight is in force; absent until the workers for it are ready. `waitingSince`:
    since when workers are missing, or the last one more became ready: `ready` of them. `passed`: the step was found
    healthy. `restarts`: of the workers' containers, until the weight was in force.
    """

    step: int = 0
    step_started_at: Time
    started_at: Time
    in_force_at: Time | None = None
    waiting_since: Time | None = None
    ready: int = 0
    passed: bool = False
    restarts: int = 0


class Status(ApiModel):
    observed_generation: int = 0
    replicas: int = 0
    selector: Annotated[str, Field(max_length=1024)] = ""
    url: Annotated[str, Field(max_length=512)] = ""
    conditions: Annotated[
        list[Condition],
        Field(max_length=16, json_schema_extra=_KEYED_BY_TYPE),
    ] = []
    stable_revision: Hash = ""
    canary_revision: Hash = ""
    weight: int = 0
    share: Annotated[int, Field(description="Of the canary in the traffic, in percent: what the weight comes to.")] = 0
    progress: Progress | None = None
    collision_count: int = 0
    quarantined: Annotated[list[Quarantine], Field(max_length=10)] = []
    answers: Annotated[list[Answer], Field(max_length=4)] = []
    validation: Validation | None = None
    acceptance: Acceptance | None = None
    measurements: Annotated[list[Measurement], Field(max_length=10)] = []
    windows: Annotated[list[Window], Field(max_length=2)] = []
    unread: Annotated[
        list[Annotated[str, Field(max_length=64)]],
        Field(
            max_length=MOST_UNREAD,
            description="Workers (uids of pods) that were not read since the last retry was asked for, or since their "
            "revision was last in quarantine or a canary that warms up. Their next reading is where evidence begins: "
            "what they drafted before is none.",
        ),
    ] = []

    def quarantine_of(self, revision: str, spec: str) -> Quarantine | None:
        """The entry that keeps `revision` from running while the spec (with its retry annotation) hashes to `spec`."""
        return next((q for q in self.quarantined if q.revision == revision and q.spec == spec), None)
