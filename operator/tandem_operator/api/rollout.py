"""`spec.rollout`, `spec.guard` and `spec.traffic`: how a revision takes over, and what takes it back."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from tandem_operator.api.base import ApiModel, NamedReference, Rule


class Pause(ApiModel):
    """A stay at a step. The canary is judged meanwhile, and taken back if it collapses."""

    seconds: (
        Annotated[
            int,
            Field(
                ge=1,
                le=604800,
                description="At least so long, from when the weight is in force. Absent: until it is promoted by hand, "
                "with the annotation tandem.dev/promote.",
            ),
        ]
        | None
    ) = None


class Step(ApiModel):
    """A share of the traffic, in percent, that the canary gets."""

    weight: Annotated[int, Field(ge=1, le=99)]
    pause: Pause | None = None


class OnInconclusive(StrEnum):
    ROLLBACK = "Rollback"
    HOLD = "Hold"


class Analysis(ApiModel):
    """How often acceptance is judged, on how much at least, and for how long at most."""

    interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    initial_delay_seconds: Annotated[
        int,
        Field(
            ge=0, le=86400, description="What a step shows in its first seconds is not judged: caches are cold then."
        ),
    ] = 0
    timeout_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=604800,
            description="A step that was not found healthy in so long, after initialDelaySeconds, ends as "
            "onInconclusive says.",
        ),
    ] = 3600
    on_inconclusive: Annotated[
        OnInconclusive,
        Field(
            description="Rollback: the canary is taken back. Hold: it stays until it is healthy, or until a person "
            "promotes or aborts it."
        ),
    ] = OnInconclusive.ROLLBACK
    dry_run: Annotated[
        bool,
        Field(description="Verdicts on the canary are recorded and told, and the rollout goes on whatever they are."),
    ] = False
    minimum_drafts: Annotated[
        int, Field(ge=1, le=1_000_000, description="Drafts that a step or a window must have seen before a verdict.")
    ] = 100
    minimum_requests: Annotated[
        int, Field(ge=1, le=100_000, description="Finished requests that they must come from.")
    ] = 5


class Rollout(ApiModel):
    """How a revision replaces the one that serves."""

    steps: Annotated[list[Step], Field(max_length=20)] = [Step(weight=10), Step(weight=50)]
    max_surge: Annotated[int, Field(ge=0, le=1000, description="Workers above replicas; 0 without a spare GPU.")] = 1
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 0
    progress_deadline_seconds: (
        Annotated[
            int,
            Field(
                ge=10,
                le=86400,
                description="Workers that do not become ready in so long end the rollout. Default: 1800, or more if "
                "the files are so large that loading them may take more.",
            ),
        ]
        | None
    ) = None
    rollback_window_revisions: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="A spec that goes back to one of so many last stable revisions skips the steps; its workers "
            "must be ready and pass their self-test all the same.",
        ),
    ] = 1
    analysis: Analysis = Analysis()
    rules: ClassVar = (
        Rule("self.maxSurge > 0 || self.maxUnavailable > 0", "maxSurge and maxUnavailable must not both be 0"),
        Rule(
            "self.steps.map(s, s.weight).isSorted() "
            "&& self.steps.all(s, self.steps.exists_one(t, t.weight == s.weight))",
            "the weights of steps must rise",
        ),
    )


class OnCollapse(StrEnum):
    ROLLBACK = "Rollback"
    DISABLE_SPECULATION = "DisableSpeculation"
    ALERT = "Alert"


class Guard(ApiModel):
    """When acceptance counts as collapsed, and what then happens. Changes take effect without a rollout, but for
    `baselineProbe`."""

    min_accept_length: Annotated[
        float, Field(ge=1, le=9, description="Tokens per target forward, bonus token included; 1.0: nothing accepted.")
    ] = 1.3
    tolerated_drop: Annotated[
        float, Field(ge=0, le=0.9, description="Share of the baseline's position-0 acceptance that may be lost.")
    ] = 0.1
    collapse_drop: Annotated[
        float,
        Field(
            ge=0.05,
            le=0.95,
            description="Share of the baseline's position-0 acceptance that, when lost, is a collapse. Between the two "
            "neither is said.",
        ),
    ] = 0.4
    min_speedup: Annotated[
        float, Field(ge=0, le=10, description="Over the target alone, from step times at like batch size; 0: any.")
    ] = 1.0
    baseline_probe: Annotated[
        float,
        Field(
            ge=0,
            le=0.2,
            description="Share of the rounds that Tandem's own worker runs without drafts, so that both kinds of step "
            "are timed on the same load; 0: none. A change is a new revision.",
        ),
    ] = 0.01
    on_collapse: OnCollapse = OnCollapse.ROLLBACK
    dry_run: Annotated[
        bool,
        Field(
            description="Verdicts on the revision that serves are recorded and told, and nothing is done about them."
        ),
    ] = False
    rules: ClassVar = (Rule("self.toleratedDrop < self.collapseDrop", "toleratedDrop must be less than collapseDrop"),)


class Traffic(ApiModel):
    """How requests reach the workers. By default any ready worker gets them, so that a weight is a share of workers."""

    http_route: (
        Annotated[
            NamedReference,
            Field(
                description="An HTTPRoute of the Gateway API in this namespace, with a rule that sends requests to the "
                "Service of this object. While a canary runs, its weights are set in that rule.",
            ),
        ]
        | None
    ) = None
