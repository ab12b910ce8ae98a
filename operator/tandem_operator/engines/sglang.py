"""SGLang: its command line, its probes, and what its metrics mean, version by version. Pure.

Read in its wheels: `server_args.py`, `entrypoints/http_server.py`, `observability/metrics_collector.py`,
`managers/tokenizer_manager.py`. What differs between versions is in formulas.py and below.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem_operator.api.status import Counts
from tandem_operator.engines.adapter import Launch, Paths
from tandem_operator.engines.formulas import (
    accept_length_from_sglang_rate,
    counters_of,
    parse_version,
    position0_from_accept_length,
)
from tandem_operator.engines.reading import Metrics, samples, whole
from tandem_worker.contract import WORKER_PORT

READY_PATH_SINCE = (0, 5, 20)  # before that, /health, which generates a token when nothing runs
SERVER_INFO_SINCE = (0, 5, 8)
HEALTH_SECONDS = 25  # /health itself gives up after 20 s
REQUESTS = "sglang:num_requests_total"
GAUGES = ("sglang:spec_accept_length", "sglang:spec_accept_rate", "sglang:spec_num_steps")


@dataclass(frozen=True)
class SGLang:
    version: str
    draft_length: int

    cooperates = False
    command = ["python3", "-m", "sglang.launch_server"]

    @property
    def image(self) -> str:
        return f"lmsysorg/sglang:v{self.version.partition('+')[0]}"

    @property
    def paths(self) -> Paths:
        ready = "/ready" if self._since(READY_PATH_SINCE) else "/health"
        return Paths(alive="/health", ready=ready, alive_timeout_seconds=HEALTH_SECONDS)

    @property
    def version_path(self) -> str:
        return "/server_info" if self._since(SERVER_INFO_SINCE) else "/get_server_info"

    def _since(self, first: tuple[int, int, int]) -> bool:
        parsed = parse_version(self.version)
        return parsed is None or parsed >= first

    def arguments(self, launch: Launch) -> list[str]:
        """The user's own may change how a draft is made, which the validation sees; of two the last one counts."""
        recipe = launch.recipe
        drafts = [
            "--speculative-algorithm=EAGLE3",
            f"--speculative-num-steps={self.draft_length}",
            "--speculative-eagle-topk=1",  # a chain: rates of trees cannot be compared with anything
            f"--speculative-num-draft-tokens={self.draft_length + 1}",
        ]
        limits = [f"--context-length={recipe.engine.context_length}"] if recipe.engine.context_length else []
        if recipe.engine.gpu_memory_fraction is not None:
            limits.append(f"--mem-fraction-static={recipe.engine.gpu_memory_fraction:g}")
        if recipe.engine.tensor_parallel:
            limits.append(f"--tensor-parallel-size={recipe.engine.tensor_parallel}")
        own = [
            f"--model-path={launch.target_folder}",
            f"--served-model-name={recipe.model_name}",
            "--host=$(POD_IP)",
            f"--port={WORKER_PORT}",
            "--enable-metrics",
        ]
        if not launch.drafter_folder:
            return [*limits, *_without_speculation(recipe.engine.args), *own]
        drafter = f"--speculative-draft-model-path={launch.drafter_folder}"
        return [*drafts, *limits, *recipe.engine.args, *own, drafter]

    def read(self, text: str) -> Metrics:
        """Counters grow when a request ends, all of them at once, and appear with their first increment.

        Drafts are calls of verify. The tokens of a request are its first one, which the prompt gives, and what its
        rounds emitted, the bonus token of each included. Positions are not counted: their rate follows from the accept
        length. `running` stays 0: a counter that stands still while long requests run says nothing.
        """
        if "sglang:" not in text:
            raise ValueError("/metrics has nothing of SGLang")
        counters = counters_of("sglang", self.version)
        sums, gauges = _sums(text, (counters.drafts, counters.emitted, REQUESTS) if counters else ())
        if counters is None:
            raise ValueError(self._no_counters(gauges))
        drafts = whole(sums, counters.drafts, 0)
        requests = whole(sums, REQUESTS, 0)
        generated = whole(sums, counters.emitted, 0)
        accepted = max(0, generated - requests - drafts) if drafts else 0
        steps = whole(gauges, "sglang:spec_num_steps", 0) or self.draft_length
        rate = position0_from_accept_length(1 + accepted / drafts, steps) if drafts else 0.0
        counts = Counts(
            drafts=drafts,
            accepted=accepted,
            accepted0=round(drafts * rate),
            requests=requests,
            user_requests=requests,
            generated=generated,
        )
        return Metrics(counts)

    def _no_counters(self, gauges: dict[str, float]) -> str:
        """A gauge is the mean of the last interval and holds it while idle: for people, never for a verdict."""
        said = f"SGLang {self.version} counts no drafts that Tandem knows of (0.5.13 to 0.5.23 do)"
        length = gauges.get("sglang:spec_accept_length")
        rate = gauges.get("sglang:spec_accept_rate")
        if not length and rate is not None:
            length = accept_length_from_sglang_rate(self.version, rate, self.draft_length, self.draft_length + 1)
        return f"{said}; its last accept length was {length:.2f}" if length else said


def _without_speculation(arguments: list[str]) -> list[str]:
    """Without --speculative-… and its value: without an algorithm they have nothing to say."""
    kept: list[str] = []
    dropped = False
    for argument in arguments:
        option = argument.startswith("--")
        if option:
            dropped = argument.startswith("--speculative-")
        if not dropped:
            kept.append(argument)
    return kept


def _sums(text: str, counters: tuple[str, ...]) -> tuple[dict[str, float], dict[str, float]]:
    """-> counters summed over their labels, gauges as the largest: only some ranks write theirs."""
    sums: dict[str, float] = {}
    gauges: dict[str, float] = {}
    for item in samples(text, counters + GAUGES):
        if item.name in GAUGES:
            gauges[item.name] = max(gauges.get(item.name, item.value), item.value)
        else:
            sums[item.name] = sums.get(item.name, 0.0) + item.value
    return sums, gauges
