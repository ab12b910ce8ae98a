"""The builtin worker: its command line, its probes, and what its metrics mean. Pure."""

from __future__ import annotations

from tandem_operator import names
from tandem_operator.api.spec import Engine
from tandem_operator.api.status import Counts
from tandem_operator.engines.adapter import KEY_MOUNT, TERMINATION_LOG, Launch, Paths
from tandem_operator.engines.reading import Metrics, StepTimes, samples, whole
from tandem_worker.contract import WORKER_PORT, Metric, Origin

LAST_WORDS_SECONDS = 5  # between the end of the last stream and the kubelet's patience
GPU_PREFILL_CHUNK = 2048  # rows: a GPU is idle below that, a CPU would keep others waiting


class Builtin:
    """`tandem-worker serve …` of the operator's worker image."""

    cooperates = True
    image = ""
    command: list[str] = []
    paths = Paths(alive="/healthz", ready="/readyz")
    version_path = ""

    def arguments(self, launch: Launch) -> list[str]:
        recipe = launch.recipe
        arguments = [
            "serve",
            f"--target={launch.target_folder}",
            f"--draft-length={recipe.speculation.draft_length}",
            f"--model={recipe.model_name}",
            f"--revision={launch.revision}",
            "--host=$(POD_IP)",
            f"--port={WORKER_PORT}",
            "--pod-uid=$(POD_UID)",
            f"--operator-key-file={KEY_MOUNT}/{names.KEY_FILE}",
            f"--termination-message={TERMINATION_LOG}",
            f"--drain-seconds={recipe.pod.termination_grace_period_seconds - LAST_WORDS_SECONDS}",
        ]
        if recipe.speculates and launch.drafter_folder:
            arguments.append(f"--drafter={launch.drafter_folder}")
            if recipe.baseline_probe:
                arguments.append(f"--baseline-probe={recipe.baseline_probe:g}")
        else:
            arguments.append("--no-speculation")
        if recipe.fingerprints:
            arguments.append(f"--target-fingerprint={recipe.fingerprints.target}")
            if recipe.speculates:
                arguments.append(f"--drafter-fingerprint={recipe.fingerprints.drafter}")
        if recipe.engine.context_length:
            arguments.append(f"--context-length={recipe.engine.context_length}")
        if any(name.startswith("nvidia.com/") for name in recipe.resources.limits):
            arguments += ["--device=cuda", f"--prefill-chunk={GPU_PREFILL_CHUNK}", *tensor_parallel(recipe.engine)]
            if recipe.engine.gpu_memory_fraction is not None:
                arguments.append(f"--gpu-memory-fraction={recipe.engine.gpu_memory_fraction:g}")
        return [arguments[0], *recipe.engine.args, *arguments[1:]]

    def read(self, text: str) -> Metrics:
        return read_metrics(text)


def tensor_parallel(engine: Engine) -> list[str]:
    return [f"--tensor-parallel={engine.tensor_parallel}"] if engine.tensor_parallel else []


_SUMS = {
    "finished_drafts": Metric.FINISHED_D,
    "finished_accepted0": Metric.FINISHED_A,
    "finished_drafts_squared": Metric.FINISHED_DD,
    "finished_accepted0_squared": Metric.FINISHED_AA,
    "finished_drafts_accepted0": Metric.FINISHED_DA,
}
_STEPS, _STEP_SECONDS = f"{Metric.STEP_SECONDS}_count", f"{Metric.STEP_SECONDS}_sum"
_READ = tuple(str(metric) for metric in Metric if metric.kind != "histogram")


def read_counts(text: str) -> Counts:
    """As `read_metrics`, the counters alone."""
    return read_metrics(text).counts


def read_metrics(text: str) -> Metrics:
    """What `/metrics` says, summed over origins. Raises ValueError when a counter is missing or no finite number: then
    nothing is known. The sums over finished requests may be missing; without them the analysis is on the safe side."""
    sums: dict[str, float] = {}
    steps: dict[tuple[str, int], dict[str, float]] = {}
    for item in samples(text, _READ, where_not_zero=(_STEPS, _STEP_SECONDS)):
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
        drafts=whole(sums, Metric.DRAFTS),
        accepted=whole(sums, Metric.ACCEPTED_TOKENS),
        accepted0=whole(sums, Metric.ACCEPTED_PER_POSITION),
        requests=whole(sums, Metric.FINISHED_N),
        user_requests=int(sums.get("user", 0.0)),
        # Tokens that were meant to come without drafts are no sign that speculation does not work.
        generated=whole(sums, Metric.GENERATED_TOKENS) - whole(sums, Metric.UNDRAFTED_TOKENS, 0),
        **{field: whole(sums, metric) for field, metric in _SUMS.items() if metric in sums},
    )
    times = [
        StepTimes(phase, batch, int(values.get(_STEPS, 0)), values.get(_STEP_SECONDS, 0.0))
        for (phase, batch), values in steps.items()
    ]
    running = whole(sums, Metric.RUNNING) if Metric.RUNNING in sums else 0
    return Metrics(counts, running, tuple(time for time in times if time.steps))
