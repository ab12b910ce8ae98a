"""A public load generator (guidellm, pinned in the Makefile) against a worker on the CPU, as users would point it.

The tiny pair, both kinds of completions, greedy and sampled, more clients at once than the worker runs. What counts is
that every request of a client that knows nothing of Tandem is answered rightly and that the latencies are there; on a
CPU the speeds say nothing of a GPU. Requests are counted twice, by the client and by the worker's own counter, and both
must find all. `make bench-load` writes benchmarks/results/server-load-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from provenance import provenance
from served import chattable, served

ROOT = Path(__file__).parents[1]
PAIR = ROOT / "examples" / "tiny-pair"
RESULT = ROOT / "benchmarks" / "results" / "server-load-cpu.json"
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 0.2}
RUNS: list[tuple[str, str, int, dict[str, Any]]] = [
    ("completions, greedy", "/v1/completions", 1, {"temperature": 0}),
    ("completions, greedy", "/v1/completions", 4, {"temperature": 0}),
    ("completions, sampled", "/v1/completions", 4, SAMPLED),
    ("completions, sampled, no drafts", "/v1/completions", 4, {**SAMPLED, "speculate": False}),
    ("chat, sampled", "/v1/chat/completions", 12, SAMPLED),
]
KEPT = ("time_to_first_token_ms", "inter_token_latency_ms", "request_latency", "output_tokens_per_second")
TOKENS = 64
POLL_SECONDS = "5"
"""guidellm 0.8.1 loses its last request when its wait for news times out (after 0.1 s by default) while it is told that
all is done: it then leaves without taking the news (`request_updates` in scheduler/worker_group.py, line 427)."""


def run(guidellm: Path, address: str, folder: Path, route: str, clients: int, body: dict, requests: int) -> Any:
    """guidellm's own report of one run."""
    report = folder / "report.json"
    backend = {
        "kind": "openai_http",
        "target": address,
        "model": "it",
        "request_format": route,
        "max_tokens": TOKENS,
        "extras": {"body": body},
    }
    command: list[str | Path] = [guidellm, "run", "--backend", json.dumps(backend), "--disable-console"]
    command += ["--profile", f"kind=concurrent,streams={clients}"]
    command += ["--constraint", f"kind=max_requests,count={requests}"]
    command += ["--data", f"kind=json_file,path={PAIR / 'prompts.jsonl'}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={PAIR / 'target'}", "--output", f"kind=json,path={report}"]
    settings = {"HF_HUB_OFFLINE": "1", "GUIDELLM__MP_POLL_INTERVAL": POLL_SECONDS}
    subprocess.run(command, check=True, env=os.environ | settings)
    return json.loads(report.read_text())["benchmarks"][0]["metrics"]


def figures(metrics: Any) -> dict[str, Any]:
    totals = metrics["request_totals"]
    kept: dict[str, Any] = {"requests": {name: totals[name] for name in ("successful", "errored", "incomplete")}}
    for name in KEPT:
        values = metrics[name]["successful"]
        percentiles = {p: round(values["percentiles"][p], 3) for p in ("p50", "p95", "p99")}
        kept[name] = {"mean": round(values["mean"], 3), **percentiles}
    return kept


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("guidellm", type=Path)
    parser.add_argument("--requests", type=int, default=48, help="of each run")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as held:
        folder = Path(name)
        target, drafter = chattable(PAIR / "target", folder), PAIR / "drafter"
        worker = held.enter_context(served(target, drafter, folder / "log", "--draft-length=4"))
        for label, route, clients, body in RUNS:
            before = worker.read().ended()
            metrics = run(arguments.guidellm, worker.address, folder, route, clients, body, arguments.requests)
            ended = {outcome: count - before[outcome] for outcome, count in worker.read().ended().items()}
            about_run = {"run": label, "clients": clients, "body": body, "ended_by_worker": ended}
            rows.append(about_run | figures(metrics))
            print(json.dumps(rows[-1]), flush=True)
    shown = subprocess.run([arguments.guidellm, "--version"], capture_output=True, text=True, check=True).stdout
    about = {
        "command": "make bench-load",
        "generator": shown.strip(),
        "machine": f"{os.cpu_count()} cores {platform.machine()}, load {os.getloadavg()[1]:.1f} at the end",
        **provenance("torch"),
        "max_tokens": TOKENS,
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(about, indent=1) + "\n")
    for row in rows:
        every = arguments.requests
        assert row["ended_by_worker"]["finished"] == row["requests"]["successful"] == every, f"not all succeeded: {row}"


if __name__ == "__main__":
    main()
