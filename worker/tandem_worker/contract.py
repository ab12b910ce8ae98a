"""What operator and worker agree on: the report, the worker's status, its commands and its metric names.

The operator imports this module and nothing else of the worker, so it stays free of torch. Everything here is frozen
and forbids unknown fields: a report that this version does not understand is an error, not a guess.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from tandem_worker.finding import ExitCode as ExitCode
from tandem_worker.finding import Finding as Finding
from tandem_worker.finding import Severity as Severity
from tandem_worker.finding import Verdict as Verdict
from tandem_worker.metric import Metric as Metric
from tandem_worker.metric import OperatorMetric as OperatorMetric
from tandem_worker.metric import show_build as show_build

TERMINATION_MESSAGE_LIMIT_BYTES = 4096
"""Kubernetes cuts a termination message off at 4 KiB; a cut JSON document would be lost whole."""

WORKER_PORT = 8000

AUTO = "auto"
"""A draft length that the builtin engine chooses as it runs."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


# --- validation ------------------------------------------------------------------------------------------------------


class CaptureIndexes(Frozen):
    """Which residual streams are captured. Capture index i enters decoder layer i; 0 is the embedding."""

    declared: tuple[int, ...] | None = None  # as the drafter's config writes them
    declared_at: str = ""  # the config field, or the default that applies
    engine: tuple[int, ...] = ()  # what the engine that will run makes of them
    trained_on: tuple[int, ...] | None = None  # what the user says the training run captured


class Resolution(Frozen):
    """What the engine will do with the pair (validation) or did (worker). A worker serves only if both are equal."""

    capture_indexes: tuple[int, ...]
    fc_input_width: int
    fc_applied: bool
    norm_before_residual: bool
    loaded: tuple[str, ...]  # drafter parameters read from the drafter's files, sorted
    shared: tuple[str, ...]  # drafter parameters borrowed from the target, sorted
    missing: tuple[str, ...]  # drafter parameters that nothing provides, sorted
    dropped: tuple[str, ...]  # tensors of the drafter's files that no parameter takes, sorted


class Cause(Frozen):
    """One thing that keeps the drafter from predicting, and what it costs."""

    code: str
    sentence: str  # engine, what it does, what the drafter needs, both figures, the one change
    position0: float  # as the engine has it, all else mended
    mended: float | None = None  # position-0 acceptance when it is mended; None: nothing mends it


class ProbeResult(Frozen):
    """Acceptance measured by running the pair on calibration texts."""

    text: str  # "prompt": at every token of the texts; "continuation": of the target's own greedy continuations
    prompts: int
    drafts: int  # places of the texts that were drafted from
    acceptance: tuple[float, ...]  # accepted per position, as shares of all drafts
    draft_length: int
    accept_length: float  # 1 + the sum of `acceptance`
    position0: float
    position0_lower: float  # of 95 %, with prompts as clusters
    position0_upper: float
    overlap: float  # mean of sum(min(p, q)): the acceptance of sampling at temperature 1
    threshold: float  # of accept length
    wirings: int  # that were tried besides the engine's
    diagnosis: str = ""  # the first cause's sentence
    causes: tuple[Cause, ...] = ()  # ranked


class Fingerprints(Frozen):
    """Of configs, index, headers, small tensors, sizes and sampled blocks. `sha256:` + 64 hex digits."""

    target: str
    drafter: str


class ValidationReport(Frozen):
    """The verdict on a pair. Written in full to the log and, shortened, to the termination message."""

    verdict: Verdict
    mode: str  # Static or Probe
    summary: str  # one sentence with figures
    findings: tuple[Finding, ...] = ()
    findings_omitted: int = 0
    capture_indexes: CaptureIndexes | None = None
    resolution: Resolution | None = None
    probe: ProbeResult | None = None
    fingerprints: Fingerprints | None = None
    weight_bytes: int | None = None  # of all safetensors files of both checkpoints: what a worker has to load

    def termination_message(self) -> str:
        """JSON of at most 4 KiB: findings are left out from the least severe up, then the resolution's name lists."""
        order = list(Severity)
        findings = sorted(self.findings, key=lambda finding: order.index(finding.severity))
        report = self
        if self.resolution and _size_bytes(report) > TERMINATION_MESSAGE_LIMIT_BYTES:
            bare = self.resolution.model_copy(update={"loaded": (), "shared": (), "missing": (), "dropped": ()})
            report = self.model_copy(update={"resolution": bare})
        while _size_bytes(report) > TERMINATION_MESSAGE_LIMIT_BYTES and findings:
            findings.pop()
            omitted = len(self.findings) - len(findings)
            report = report.model_copy(update={"findings": tuple(findings), "findings_omitted": omitted})
        return report.model_dump_json(exclude_defaults=True)


def _size_bytes(report: ValidationReport) -> int:
    return len(report.model_dump_json(exclude_defaults=True).encode())


# --- serving ---------------------------------------------------------------------------------------------------------


class SelfTestOutcome(StrEnum):
    ALIVE = "Alive"  # at least one draft was accepted
    NO_LIFE = "NoLife"  # not one accepted over at least SELF_TEST_DRAFTS: ready, speculation off
    NOT_RUN = "NotRun"  # no drafter, or speculation off from the start


SELF_TEST_DRAFTS = 64


class SelfTest(Frozen):
    outcome: SelfTestOutcome
    drafts: int = 0
    accepted: int = 0


class WorkerStatus(Frozen):
    """`GET /status`: what the worker really did at start, and what it does now."""

    revision: str
    model: str
    resolution: Resolution | None = None  # None without a drafter
    fingerprints: Fingerprints
    self_test: SelfTest
    speculation_enabled: bool
    speculation_reason: str = ""  # why it is off
    draft_length: int
    degraded: str = ""  # why it is slower than it should be: CudaGraphCaptureFailed: ...


class WorkerFailure(Frozen):
    """Termination message of a worker that does not start, or whose engine failed."""

    # CheckpointChanged, ResolutionDiffers, CannotLoad, CannotListen, EngineBroken, EngineStalled; with a GPU also
    # NoGpu, InsufficientGpuMemory, OutOfGpuMemory, GpuFailed, RankLost
    reason: str
    message: str
    found: Fingerprints | None = None


class SpeculationCommand(Frozen):
    """Claims of the Ed25519-signed token (JWT, EdDSA) that `POST /admin/speculation` takes as its bearer.

    `aud` is the uid of the one pod it is meant for, `exp` at most COMMAND_VALID_SECONDS after `iat`. The worker holds
    the public key only (a PEM file, read again at each request, so that a new key needs no restart).
    """

    aud: str
    iat: float = Field(ge=0)
    exp: float = Field(ge=0)
    enabled: bool
    reason: str

    @classmethod
    def to_pod(cls, pod_uid: str, enabled: bool, reason: str, now_seconds: float) -> Self:
        return cls(
            aud=pod_uid, iat=now_seconds, exp=now_seconds + COMMAND_VALID_SECONDS, enabled=enabled, reason=reason
        )


COMMAND_VALID_SECONDS = 30
COMMAND_ALGORITHM = "EdDSA"

ORIGIN_HEADER = "X-Tandem-Origin"
"""`calibration` marks requests that the operator replays; anything else is a user's."""


class Origin(StrEnum):
    USER = "user"
    CALIBRATION = "calibration"
