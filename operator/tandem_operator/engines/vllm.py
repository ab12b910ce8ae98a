"""vLLM: its command line, its probes, and what its metrics mean. Pure.

Read in its wheels: `config/speculative.py`, `v1/spec_decode/metrics.py`, `entrypoints/`, `v1/engine/core.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tandem_operator.api.status import Counts
from tandem_operator.engines.adapter import WITHDRAWN_SECONDS, Launch, Paths
from tandem_operator.engines.formulas import counters_of, parse_version
from tandem_operator.engines.reading import Metrics, samples, whole
from tandem_worker.contract import WORKER_PORT

CONFIG = ("--speculative-config", "-sc")
OTHERS = REQUESTS, GENERATED, RUNNING = (
    "vllm:request_success_total",
    "vllm:generation_tokens_total",
    "vllm:num_requests_running",
)
SHORTCUTS = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
DRAINS_SINCE = (0, 26, 0)  # of the versions read; the option came with 0.18 (vllm #34730)
LAST_WORDS_SECONDS = 2  # between the end of the last request and the kubelet's patience


@dataclass(frozen=True)
class Vllm:
    version: str
    draft_length: int

    cooperates = False
    command = ["vllm", "serve"]
    paths = Paths(alive="/health", ready="/health")  # answers only once the model is loaded
    version_path = "/version"

    @property
    def image(self) -> str:
        return f"vllm/vllm-openai:v{self.version.partition('+')[0]}"

    def arguments(self, launch: Launch) -> list[str]:
        """The user's own keys of --speculative-config are kept, as the validation sees them, but for the drafter.

        Unless it is told how long to wait, vLLM aborts at SIGTERM all that runs.
        """
        recipe = launch.recipe
        others, asked = _split(recipe.engine.args)
        limits = [f"--max-model-len={recipe.engine.context_length}"] if recipe.engine.context_length else []
        if recipe.engine.gpu_memory_fraction is not None:
            limits.append(f"--gpu-memory-utilization={recipe.engine.gpu_memory_fraction:g}")
        if recipe.engine.tensor_parallel:
            limits.append(f"--tensor-parallel-size={recipe.engine.tensor_parallel}")
        if (version := parse_version(self.version)) and version >= DRAINS_SINCE:
            grace_seconds = recipe.pod.termination_grace_period_seconds
            limits.append(f"--shutdown-timeout={grace_seconds - WITHDRAWN_SECONDS - LAST_WORDS_SECONDS}")
        own = [f"--served-model-name={recipe.model_name}", "--host=$(POD_IP)", f"--port={WORKER_PORT}"]
        if not launch.drafter_folder:
            return [launch.target_folder, *limits, *others, *own]
        config = {"method": "eagle3", "num_speculative_tokens": self.draft_length, **asked}
        speculation = json.dumps(config | {"model": launch.drafter_folder})
        return [launch.target_folder, *limits, *others, *own, f"--speculative-config={speculation}"]

    def read(self, text: str) -> Metrics:
        """Counters are there at zero from the start, those of drafts only with speculation; one label set a rank."""
        counters = counters_of("vllm", self.version)
        if counters is None:
            raise ValueError(f"what vLLM {self.version} counts is not known to Tandem (0.26.0 to 0.33.0 are)")
        sums: dict[str, float] = {}
        read = (counters.drafts, counters.accepted, counters.position0, *OTHERS)
        for item in samples(text, read):
            if item.name != counters.position0 or item.labels.get("position") == "0":
                sums[item.name] = sums.get(item.name, 0.0) + item.value
        requests = whole(sums, REQUESTS)
        counts = Counts(
            drafts=whole(sums, counters.drafts, 0),
            accepted=whole(sums, counters.accepted, 0),
            accepted0=whole(sums, counters.position0, 0),
            requests=requests,
            user_requests=requests,
            generated=whole(sums, GENERATED),
        )
        return Metrics(counts, running=whole(sums, RUNNING, 0))


def _split(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """-> the arguments without those of speculation, and what these ask for, in the order in which vLLM takes it.

    One that cannot be understood stays among the others, for the validation and the engine to refuse.
    """
    others: list[str] = []
    asked: dict[str, Any] = {}
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        flag, equals, value = argument.partition("=")
        key = SHORTCUTS.get(flag) or (flag.removeprefix("--speculative-config.") if "config." in flag else "")
        if not key and flag not in CONFIG:
            others.append(argument)
            continue
        given = [] if equals or not waiting else [waiting.pop(0)]
        understood = _read(key, value if equals else "".join(given))
        if understood is None:
            others += [argument, *given]
        else:
            asked |= understood
    return others, asked


def _read(key: str, text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return {key: text} if key else None
    if key:
        return {key: value}
    return value if isinstance(value, dict) else None
