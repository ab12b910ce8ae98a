"""The builtin worker: its command line, its probes, and what its metrics mean. Pure."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tandem_operator import names
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.status import Counts
from tandem_worker.contract import WORKER_PORT, Metric, Origin

TARGET_MOUNT, DRAFTER_MOUNT, KEY_MOUNT = "/models/target", "/models/drafter", "/etc/tandem"
TERMINATION_LOG = "/dev/termination-log"


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


def read_counts(text: str) -> Counts:
    """Counters from `/metrics`. Raises ValueError when one is missing or is no finite number: then nothing is known."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for item in family.samples:
            labels = item.labels
            if item.name == Metric.ACCEPTED_PER_POSITION and labels.get("position") != "0":
                continue
            sums[item.name] = sums.get(item.name, 0.0) + item.value
            if item.name == Metric.FINISHED_N and labels.get("origin") == Origin.USER:
                sums["user"] = sums.get("user", 0.0) + item.value

    def whole(name: str) -> int:
        if name not in sums:
            raise ValueError(f"/metrics has no {name}")
        try:
            return int(sums[name])
        except (ValueError, OverflowError):  # NaN, infinity
            raise ValueError(f"/metrics: {name} is {sums[name]}") from None

    return Counts(
        drafts=whole(Metric.DRAFTS),
        accepted=whole(Metric.ACCEPTED_TOKENS),
        accepted0=whole(Metric.ACCEPTED_PER_POSITION),
        requests=whole(Metric.FINISHED_N),
        user_requests=int(sums.get("user", 0.0)),
        generated=whole(Metric.GENERATED_TOKENS),
    )
