"""What a simulated engine does, and how it is told: SIM_<FIELD> variables at start, JSON fields later.

SIM_ACCEPTANCE=0.8,0.7 SIM_CORRELATION=0.1 SIM_CRASH_STARTS=2 SIM_STATE_FILE=/scratch/starts
POST /sim {"acceptance": [0.0], "freeze_counters": true}
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Json, model_validator

from tandem_worker.contract import ExitCode, Resolution, SelfTestOutcome

PREFIX = "SIM_"
DEFAULT_ACCEPTANCE = (0.85, 0.9, 0.88, 0.88)  # of the tiny pair, position by position

Rate = Annotated[float, Field(ge=0, le=1)]


def _split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


FAILURE_EXIT_CODES = {
    "CheckpointChanged": ExitCode.CHECKPOINT_CHANGED,
    "ResolutionDiffers": ExitCode.RESOLUTION_DIFFERS,
    "CannotLoad": ExitCode.CANNOT_LOAD,
}


class Behaviour(BaseModel):
    """Defaults: a healthy engine whose drafter predicts well."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0

    # Start and end.
    start_after_seconds: float = 0.0  # before anything listens
    ready_after_seconds: float = 0.0  # alive, not ready
    never_ready: bool = False
    crash_starts: int = 0  # the first N starts exit with crash_exit_code; needs state_file
    crash_exit_code: int = 1
    state_file: Path | None = None  # holds the number of starts; in a volume that outlives the container
    die_after_seconds: float | None = None
    die_exit_code: int = 137
    failure_reason: str | None = None  # exits at once with this WorkerFailure, one of FAILURE_EXIT_CODES

    # Answers.
    empty_model_list: bool = False  # healthy, and serves nothing
    stall_requests: bool = False  # completions never end
    hang: bool = False  # no endpoint answers, except /sim
    fail_rate: Rate = 0.0  # share of completions that end with status 500
    completion_tokens: int | None = None  # ends completions early; None: max_tokens
    tokens_per_second: float = Field(default=2000.0, gt=0)  # of one request, without speculation
    round_cost: float = Field(default=1.25, gt=0)  # time of a speculative round, in plain steps

    # Speculation.
    speculation: bool | None = None  # at start; None: as the command line says. Later the operator's commands hold
    stop_drafts: bool = False  # says that it speculates, and does not
    acceptance: Annotated[tuple[Rate, ...], BeforeValidator(_split)] = Field(DEFAULT_ACCEPTANCE, min_length=1)
    """At position k, given that all before it were accepted; the last holds for all further positions."""
    correlation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Between drafts of one request: each request draws its own rates from Beta distributions."""
    self_test: SelfTestOutcome | None = None  # None: Alive where it speculates, else NotRun
    target_fingerprint: str | None = None  # as found in the files; None: what the command line expects
    drafter_fingerprint: str | None = None
    resolution: Resolution | Json[Resolution] | None = None  # None: a usual one

    engine_version: str | None = None  # that it says it is; None: the newest that Tandem looked at

    # Metrics.
    metrics_missing: bool = False  # 404
    metrics_nan: bool = False  # every value is NaN
    freeze_counters: bool = False  # the exposition stays as it was
    reset_after_seconds: float | None = None  # counters go to zero once

    @model_validator(mode="after")
    def _can_count_starts(self) -> Self:
        if self.crash_starts and self.state_file is None:
            raise ValueError("crash_starts needs state_file, where the starts are counted")
        if self.failure_reason not in (None, *FAILURE_EXIT_CODES):
            raise ValueError(f"failure_reason is one of {', '.join(FAILURE_EXIT_CODES)}")
        return self

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Raises pydantic.ValidationError, also for a SIM_ variable that no field has."""
        told = {name[len(PREFIX) :].lower(): value for name, value in environment.items() if name.startswith(PREFIX)}
        return cls.model_validate(told)

    def changed(self, fields: Mapping[str, Any]) -> Self:
        """Raises pydantic.ValidationError."""
        return self.model_validate(dict(self) | dict(fields))
