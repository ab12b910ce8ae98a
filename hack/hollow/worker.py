"""What one hollow worker would say: its status, and counters that grow with the clock while it has users."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from simulator.engine import USUAL_RESOLUTION
from tandem_worker.contract import (
    SELF_TEST_DRAFTS,
    Fingerprints,
    Metric,
    SelfTest,
    SelfTestOutcome,
    SpeculationCommand,
    WorkerStatus,
)

BATCHES, BUCKETS = 32, (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, "+Inf")
FILES = Fingerprints(target="sha256:" + "1" * 64, drafter="sha256:" + "2" * 64)
DRAFTS_OF_ONE, TOKENS_OF_ONE, DRAFT_LENGTH = 30, 60, 4


@dataclass(frozen=True)
class Behaviour:
    """Told by environment variables of the pod (HOLLOW_RATE=0.05), or, for it and while it lives, by `fates.py`."""

    rate: float = 0.7  # position-0 acceptance; so many tokens are accepted in all
    requests_per_second: float = 0.0
    self_test: str = SelfTestOutcome.ALIVE
    start_seconds: float = 0.0  # until it is ready; below zero: not before that changes
    calibrates: float = 1.0  # 0: calibration prompts come to nothing

    @classmethod
    def told(cls, env: dict[str, str]) -> Behaviour:
        own = {name.removeprefix("HOLLOW_").lower(): value for name, value in env.items() if name.startswith("HOLLOW_")}
        return cls(**{name: value if name == "self_test" else float(value) for name, value in own.items()})  # type: ignore[arg-type]


@dataclass
class HollowWorker:
    uid: str
    revision: str
    behaviour: Behaviour
    has_drafter: bool
    speculates: bool
    reason: str = ""
    calibrations: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    _seconds: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._random = random.Random(self.uid)
        if self.speculates and self.behaviour.self_test == SelfTestOutcome.NO_LIFE:
            self.speculates, self.reason = False, "SelfTestFailed"

    def carry_out(self, command: SpeculationCommand) -> None:
        self._advance()
        self.speculates, self.reason = command.enabled, "" if command.enabled else command.reason

    def status(self) -> str:
        alive = self.behaviour.self_test == SelfTestOutcome.ALIVE
        test = SelfTest(
            outcome=SelfTestOutcome(self.behaviour.self_test),
            drafts=SELF_TEST_DRAFTS,
            accepted=SELF_TEST_DRAFTS // 2 if alive else 0,
        )
        return WorkerStatus(
            revision=self.revision,
            model="hollow",
            resolution=USUAL_RESOLUTION if self.has_drafter else None,
            fingerprints=FILES,
            self_test=test,
            speculation_enabled=self.speculates,
            speculation_reason=self.reason,
            draft_length=DRAFT_LENGTH,
        ).model_dump_json()

    def metrics(self) -> str:
        """The counters that the operator reads, in the exposition format."""
        self._advance()
        lines = []
        for metric in _COUNTERS:
            position = ',position="0"' if metric == Metric.ACCEPTED_PER_POSITION else ""
            labels = f'revision="{self.revision}",origin="user"{position}'
            lines.append(f"# TYPE {metric.removesuffix('_total')} counter")
            lines.append(f"{metric}{{{labels}}} {self._counts.get(metric, 0)}")
        return "\n".join(lines) + "\n" + STEPS.replace("REVISION", self.revision)

    def _advance(self) -> None:
        """Requests that ended since the last look. What is left over of one goes on counting."""
        elapsed = (time.monotonic() - self._seconds) * self.behaviour.requests_per_second
        requests = int(elapsed) + round(self.calibrations * self.behaviour.calibrates)
        self._seconds = time.monotonic() - (elapsed - int(elapsed)) / max(self.behaviour.requests_per_second, 1e-9)
        self.calibrations = 0
        for _ in range(min(requests, 200)):
            drafts = DRAFTS_OF_ONE if self.speculates else 0
            accepted = sum(self._random.random() < self.behaviour.rate for _ in range(drafts))
            more = {
                Metric.DRAFTS: drafts,
                Metric.ACCEPTED_TOKENS: accepted,
                Metric.ACCEPTED_PER_POSITION: accepted,
                Metric.FINISHED_N: 1,
                Metric.FINISHED_D: drafts,
                Metric.FINISHED_A: accepted,
                Metric.FINISHED_DD: drafts * drafts,
                Metric.FINISHED_AA: accepted * accepted,
                Metric.FINISHED_DA: drafts * accepted,
                Metric.GENERATED_TOKENS: TOKENS_OF_ONE,
            }
            for metric, value in more.items():
                self._counts[metric] = self._counts.get(metric, 0) + value


_COUNTERS = (
    Metric.DRAFTS,
    Metric.ACCEPTED_TOKENS,
    Metric.ACCEPTED_PER_POSITION,
    Metric.FINISHED_N,
    Metric.FINISHED_D,
    Metric.FINISHED_A,
    Metric.FINISHED_DD,
    Metric.FINISHED_AA,
    Metric.FINISHED_DA,
    Metric.GENERATED_TOKENS,
)


def _steps() -> str:
    """Most of a real worker's page: a histogram for each phase and batch size. None of these has seen a step."""
    lines = [f"# TYPE {Metric.STEP_SECONDS} histogram"]
    for phase in ("prefill", "verify", "plain", "draft"):
        for batch in range(1, BATCHES + 1):
            labels = f'revision="REVISION",phase="{phase}",batch="{batch}"'
            lines += [f'{Metric.STEP_SECONDS}_bucket{{{labels},le="{bound}"}} 0.0' for bound in BUCKETS]
            lines += [f"{Metric.STEP_SECONDS}_{part}{{{labels}}} 0.0" for part in ("count", "sum")]
    return "\n".join(lines) + "\n"


STEPS = _steps()
