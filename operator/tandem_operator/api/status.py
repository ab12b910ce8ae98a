"""`status`: what the operator saw and decided. State that must outlive the operator is here, small."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

from tandem_operator.api.base import ApiModel, Sentence, ShortText

# As the API server writes times. Micros would be refused by `format: date-time` readers that expect RFC 3339 seconds.
Time = Annotated[
    datetime, PlainSerializer(lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ"), return_type=str, when_used="json")
]
_KEYED_BY_TYPE: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
Hash = Annotated[str, Field(max_length=64)]


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
    at: Time


class Acceptance(ApiModel):
    """Of the serving revision, over the last window with evidence. Bounds: Wilson's 95 % of position 0, for people."""

    accept_length: float
    position0: float
    lower: float
    upper: float
    drafts: int
    requests: int
    revision: Hash
    window_seconds: int


class Quarantine(ApiModel):
    """A revision that is not run again while `spec` (a hash of it and of the retry annotation) stays as it is."""

    revision: Hash
    reason: ShortText
    message: Sentence = ""
    at: Time
    spec: Hash


class Counts(ApiModel):
    """Increments of the raw counters."""

    drafts: int = 0
    accepted: int = 0
    accepted0: int = 0
    requests: int = 0
    user_requests: int = 0
    generated: int = 0


class PodCounts(Counts):
    """Counters of one pod as last read, so that the next reading can be differenced after a restart of the operator."""

    uid: Annotated[str, Field(max_length=64)]


class Window(ApiModel):
    """Evidence on one revision since `started_at`."""

    revision: Hash
    started_at: Time
    sampled_at: Time
    counts: Counts = Counts()
    pods: Annotated[list[PodCounts], Field(max_length=1024)] = []


class Progress(ApiModel):
    """Where the rollout of the canary stands."""

    step: int = 0
    step_started_at: Time
    started_at: Time


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
    progress: Progress | None = None
    quarantined: Annotated[list[Quarantine], Field(max_length=10)] = []
    validation: Validation | None = None
    acceptance: Acceptance | None = None
    windows: Annotated[list[Window], Field(max_length=2)] = []

    def quarantine_of(self, revision: str, spec: str) -> Quarantine | None:
        """The entry that keeps `revision` from running while the spec (with its retry annotation) hashes to `spec`."""
        return next((q for q in self.quarantined if q.revision == revision and q.spec == spec), None)
