"""The builtin worker: its command line, its probes, and what its metrics mean. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tandem_operator import names
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.status import Counts
from tandem_operator.engines.reading import StepTimes
from tandem_worker.contract import WORKER_PORT, Metric, Origin

TARGET_MOUNT, DRAFTER_MOUNT, KEY_MOUNT = "/models/target", "/models/drafter", "/etc/tandem"
TERMINATION_LOG = "/dev/termination-log"
GPU_PREFILL_CHUNK = 2048  # rows: a GPU is idle below that, a CPU would keep others waiting


def serve_arguments(recipe: Recipe, revision: str, target_folder: str, drafter_folder: str | None) -> list[str]:
    """`tandem-worker serve …`; $(…) is expanded by the kubelet from the container's environment."""
    arguments = [
        "serve",
        f"--target={target_folder}",
        f"--draft-length={recipe.speculation.draft_length}",
        f"--model={recipe.model_name}",
        f"--revision={revision}",
        "--host=$(POD_IP)",
        f"--port={WORKER_PORT}",
        "--pod-uid=$(POD_UID)",
        f"--operator-key-file={KEY_MOUNT}/{names.KEY_FILE}",
        f"--termination-message={TERMINATION_LOG}",
    ]
    if recipe.speculates and drafter_folder:
        arguments.append(f"--drafter={drafter_folder}")
    else:
        arguments.append("--no-speculation")
    if recipe.fingerprints:
        arguments.append(f"--target-fingerprint={recipe.fingerprints.target}")
        if recipe.speculates:
            arguments.append(f"--drafter-fingerprint={recipe.fingerprints.drafter}")
    if any(name.startswith("nvidia.com/") for name in recipe.resources.limits):
        arguments += ["--device=cuda", f"--prefill-chunk={GPU_PREFILL_CHUNK}"]
        if recipe.engine.gpu_memory_fraction is not None:
            arguments.append(f"--gpu-memory-fraction={recipe.engine.gpu_memory_fraction:g}")
    return arguments


def probes(progress_deadline_seconds: int) -> dict[str, object]:
    """A start-up probe as long as the progress deadline, so a large model is not killed while it loads (kserve #5062).

    Liveness forgives a slow answer: a restart would lose every running request (dynamo #2124).
    """
    healthy = {"httpGet": {"path": "/healthz", "port": names.PORT_NAME}}
    ready = {"httpGet": {"path": "/readyz", "port": names.PORT_NAME}}
    period_seconds = 2
    return {
        "startupProbe": {
            **healthy,
            "periodSeconds": period_seconds,
            "failureThreshold": max(1, progress_deadline_seconds // period_seconds),
        },
        "readinessProbe": {**ready, "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2},
        "livenessProbe": {**healthy, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
    }


class Metrics(NamedTuple):
    counts: Counts
    running: int  # requests in flight
    steps: tuple[StepTimes, ...]


_SUMS = {
    "finished_drafts": Metric.FINISHED_D,
    "finished_accepted0": Metric.FINISHED_A,
    "finished_drafts_squared": Metric.FINISHED_DD,
    "finished_accepted0_squared": Metric.FINISHED_AA,
    "finished_drafts_accepted0": Metric.FINISHED_DA,
}
_STEPS, _STEP_SECONDS = f"{Metric.STEP_SECONDS}_count", f"{Metric.STEP_SECONDS}_sum"


def read_counts(text: str) -> Counts:
    """As `read_metrics`, the counters alone."""
    return read_metrics(text).counts


def read_metrics(text: str) -> Metrics:
    """What `/metrics` says, summed over origins. Raises ValueError when a counter is missing or no finite number: then
    nothing is known. The sums over finished requests may be missing; without them the analysis is on the safe side."""
    sums: dict[str, float] = {}
    steps: dict[tuple[str, int], dict[str, float]] = {}
    for item in _samples(text):
        labels = item.labels
        if item.name in (_STEPS, _STEP_SECONDS):
            steps.setdefault((labels["phase"], int(labels["batch"])), {})[item.name] = item.value
            continue
        if item.name == Metric.ACCEPTED_PER_POSITION and labels.get("position") != "0":
            continue
        sums[item.name] = sums.get(item.name, 0.0) + item.value
        if item.name == Metric.FINISHED_N and labels.get("origin") == Origin.USER:
            sums["user"] = sums.get("user", 0.0) + item.value
    counts = Counts(
        drafts=_whole(sums, Metric.DRAFTS),
        accepted=_whole(sums, Metric.ACCEPTED_TOKENS),
        accepted0=_whole(sums, Metric.ACCEPTED_PER_POSITION),
        requests=_whole(sums, Metric.FINISHED_N),
        user_requests=int(sums.get("user", 0.0)),
        generated=_whole(sums, Metric.GENERATED_TOKENS),
        **{field: _whole(sums, metric) for field, metric in _SUMS.items() if metric in sums},
    )
    times = [
        StepTimes(phase, batch, int(values.get(_STEPS, 0)), values.get(_STEP_SECONDS, 0.0))
        for (phase, batch), values in steps.items()
    ]
    running = _whole(sums, Metric.RUNNING) if Metric.RUNNING in sums else 0
    return Metrics(counts, running, tuple(time for time in times if time.steps))


def _samples(text: str) -> Iterator[Sample]:
    """Without the buckets of histograms, which are most of the text and not read."""
    kept = "\n".join(line for line in text.splitlines() if "_bucket{" not in line)
    for family in text_string_to_metric_families(kept + "\n"):
        yield from family.samples


def _whole(sums: dict[str, float], name: str) -> int:
    if name not in sums:
        raise ValueError(f"/metrics has no {name}")
    try:
        return int(sums[name])
    except (ValueError, OverflowError):  # NaN, infinity
        raise ValueError(f"/metrics: {name} is {sums[name]}") from None
