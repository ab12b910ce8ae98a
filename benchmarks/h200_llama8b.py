"""The builtin engine on one GPU at the shape of Llama-3.1-8B with its EAGLE-3 drafter, beside the card's own ceilings.

    python benchmarks/h200_llama8b.py --out benchmarks/results/h200-llama8b.json
    python benchmarks/h200_llama8b.py --out h200-llama8b-fp8.json --fp8 channel
    python benchmarks/h200_llama8b.py --out h200-llama8b-drawn.json --drawn

Weights are random and made on the device, so times are real and text and acceptance are not: acceptance is forced (see
`kernels.choice`), to 1.8 of 3, 2.4 of 5 and 2.9 of 7 drafted tokens. Everything goes through the engine's own scheduler
and loop: B requests at once, prompt 128, 256 new tokens, greedy, again and again for --seconds. A figure is the median
over rounds in which all B requests decode, seen from the host: from one round's end to the next one's.

--drawn: the same rounds with top-p 0.95. Random weights make logits of all tokens much alike; a temperature of 0.1
makes of them what a trained model's are, some of which are far above the rest.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.request import Request, Sampling
from tandem_worker.engine.rounds import Played
from tandem_worker.kernels.choice import FORCED
from tandem_worker.kernels.tiling import Placing, Tiling
from tandem_worker.models.random_pair import llama_8b, random_pair, round_layers

CUDA, BF16 = torch.device("cuda"), torch.bfloat16
PROMPT, NEW = 128, 256
FORCED_PATTERN = {3: [2, 2, 2, 2, 1], 5: [2, 3, 2, 3, 2], 7: [3, 3, 3, 3, 3, 3, 3, 3, 3, 2]}
BATCHES = (1, 8, 32)


def timed(function: Callable[[], object], repeats: int = 15, warm: int = 3) -> float:
    """Median milliseconds, by events."""
    for _ in range(warm):
        function()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in events:
        start.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def captured(function: Callable[[], object]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def ceilings(engine: Engine) -> dict[str, Any]:
    """Copy bandwidth, cuBLAS's rate, and cuBLAS over the target's own weights."""
    source, sink = torch.randn(2, 1 << 30, device=CUDA, dtype=BF16)
    copy = timed(lambda: sink.copy_(source))
    a, b = torch.randn(2, 8192, 8192, device=CUDA, dtype=BF16)
    square = timed(lambda: a @ b)
    target = engine.runner.target.target  # type: ignore[union-attr]
    chains = {}
    for rows in (1, 6, 8, 32, 48, 128, 192, 2048):
        inputs = {k: torch.randn(rows, k, device=CUDA, dtype=BF16) for k in (4096, 14336)}

        def chain(inputs: dict[int, Tensor] = inputs, rows: int = rows) -> None:
            for layer in target.layers:
                for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
                    F.linear(inputs[linear.weight.shape[1]], linear.weight)
            F.linear(inputs[4096][: min(rows, 256)], target.head.weight)

        graph = captured(chain)
        chains[rows] = timed(graph.replay, 9)
        del graph
    return {
        "copy_tb_s": 4 * 2**30 / copy / 1e9,
        "bf16_8192_tflop_s": 2 * 8192**3 / square / 1e9,
        "cublas_products_ms": chains,
    }


class Waves:
    """B requests at a time through the engine, and what its rounds took."""

    def __init__(self, engine: Engine, batch: int, drawn: bool) -> None:
        self.engine, self.batch, self.drawn, self.played = engine, batch, drawn, list[Played]()
        self.tokens, self.chance = 0, random.Random(1)
        engine.scheduler.max_batch = batch
        assert engine.rounds
        self._finish = type(engine.rounds).finish.__get__(engine.rounds)
        engine.rounds.finish = self._played  # type: ignore[method-assign]

    def _played(self) -> Played:
        played = self._finish()
        if sum(request.finish is None for request in played.requests) == self.batch:
            self.played.append(played)
        return played

    def run(self, seconds: float) -> float:
        """Returns the seconds that it took."""
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            for _ in range(self.batch):
                prompt = tuple(self.chance.randrange(128000) for _ in range(PROMPT))
                seed = self.chance.getrandbits(32)
                sampling = Sampling(NEW, 0.1, 0.95, seed) if self.drawn else Sampling(NEW)
                self.engine.submit(Request(prompt, sampling, self._listen))
            while not self.engine.idle:
                self.engine.step()
        torch.cuda.synchronize()
        return time.perf_counter() - started

    def _listen(self, tokens: list[int], finish: object) -> None:
        self.tokens += len(tokens)


def measure(engine: Engine, batch: int, drafts: int, seconds: float, drawn: bool) -> dict[str, Any]:
    assert engine.rounds
    engine.switch(drafts > 0)
    pattern = FORCED_PATTERN.get(drafts, [-1])
    engine.rounds.forced.copy_(torch.tensor((pattern * FORCED)[:FORCED], dtype=torch.int32))
    Waves(engine, batch, drawn).run(0.1)
    gc.collect()
    gc.freeze()  # as `Engine.prepare` does
    waves = Waves(engine, batch, drawn)
    wall = waves.run(seconds)
    steady = waves.played[len(waves.played) // 10 :]
    times = sorted(played.seconds * 1000 for played in steady)
    emitted = sum(sum(result[0] + 1 for result in played.results) for played in steady)
    busy, total = sum(p.busy_seconds for p in steady), sum(p.seconds for p in steady)
    row = {
        "batch": batch,
        "drafts": drafts,
        "ms": statistics.median(times),
        "p10_p90_ms": [times[len(times) // 10], times[len(times) * 9 // 10]],
        "rounds": len(steady),
        "busy_ms": statistics.median(played.busy_seconds * 1000 for played in steady),
        "idle_share": 1 - busy / total,
        "accept_length": emitted / len(steady) / batch,
        "tokens_per_second": emitted / total,
        "whole_tokens_per_second": waves.tokens / wall,
        "power": smi(),
    }
    print(json.dumps(row), flush=True)
    return row


def smi() -> str:
    query = "clocks.sm,power.draw,clocks_event_reasons.sw_power_cap"
    command = ["nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def draft_token(engine: Engine, batch: int) -> float:
    """One more step of the drafter's chain, in a graph of ten."""
    rounds = engine.rounds
    assert rounds
    assert rounds.drafter
    drafter, state = rounds.drafter, rounds._state(batch, rounds.draft_length + 1)
    each = Tiling(rounds._each, rounds._ones, batch, 1, 512)
    placing = Placing(rounds._draft_positions, rounds._each, rounds._tables)

    def steps() -> None:
        for _ in range(10):
            drafter.next(1, batch, state.tokens[:, 1], state.result[:, 1], state.lengths, placing, each)

    rounds._lengths.fill_(PROMPT + NEW)
    graph = captured(steps)
    return timed(graph.replay) / 10


def prefill(engine: Engine, rows: int) -> dict[str, float]:
    """One prompt in one chunk, from submit to its first token, without drafter."""
    engine.switch(False)
    engine.scheduler.max_batch = 1
    times = []
    for _ in range(8):
        prompt = tuple(random.randrange(128000) for _ in range(rows))
        torch.cuda.synchronize()
        started = time.perf_counter()
        engine.submit(Request(prompt, Sampling(1), lambda tokens, finish: None))
        while not engine.idle:
            engine.step()
        times.append((time.perf_counter() - started) * 1000)
    target = engine.runner.target.target  # type: ignore[union-attr]
    q = torch.randn(1, 32, rows, 128, device=CUDA, dtype=BF16)
    kv = torch.randn(1, 8, rows, 128, device=CUDA, dtype=BF16)
    inputs = {k: torch.randn(rows, k, device=CUDA, dtype=BF16) for k in (4096, 14336)}

    def torch_ops() -> None:
        for layer in target.layers:
            F.linear(F.rms_norm(inputs[4096], (4096,)), layer.qkv.weight)
            F.scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=True)
            F.linear(inputs[4096], layer.out.weight)
            gate, up = F.linear(F.rms_norm(inputs[4096], (4096,)), layer.gate_up.weight).chunk(2, -1)
            F.linear(F.silu(gate) * up, layer.down.weight)

    def products() -> None:
        for layer in target.layers:
            for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
                F.linear(inputs[linear.weight.shape[1]], linear.weight)

    if target.layers[0].qkv.scale is not None:  # torch has no such product
        return {"ms": statistics.median(times[2:])}
    return {
        "ms": statistics.median(times[2:]),
        "torch_ops_ms": timed(torch_ops, 5, 2),
        "cublas_products_ms": timed(products, 5, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--drafts", default="3,5,7")
    parser.add_argument("--commit", default="")
    parser.add_argument("--fp8", choices=("channel", "block"), help="round the layers' weights, which stay so")
    parser.add_argument("--drawn", action="store_true", help="sampled requests, and nothing but their rounds")
    options = parser.parse_args()
    torch.manual_seed(0)
    started = time.perf_counter()
    pair = random_pair(*llama_8b(), CUDA, BF16)
    if options.fp8:
        round_layers(pair[0], 128 if options.fp8 == "block" else None)
    report: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()},
        "command": shlex.join(["python", *sys.argv]),
        "commit": options.commit,
    }
    rows: list[dict[str, Any]] = []
    for drafts in map(int, options.drafts.split(",")):
        settings = EngineOptions(drafts, 32, 32 * 640, prefill_chunk=2048, dtype=BF16, device="cuda")
        engine = Engine(*pair, settings)
        assert engine.rounds
        if not rows:
            report["seconds_to_engine"] = time.perf_counter() - started  # weights are made, not read
            report["weights"] = f"FP8 by {options.fp8}" if options.fp8 else "bfloat16"
            if not options.fp8 and not options.drawn:
                report["ceilings"] = ceilings(engine)
                print(json.dumps(report["ceilings"]), flush=True)
            rows += [measure(engine, batch, 0, options.seconds, options.drawn) for batch in BATCHES]
            if not options.drawn:
                report["prefill"] = {"rows": 2048, **prefill(engine, 2048)}
                print(json.dumps(report["prefill"]), flush=True)
        rows += [measure(engine, batch, drafts, options.seconds, options.drawn) for batch in BATCHES]
        if "draft_token_ms" not in report and not options.drawn:
            report["draft_token_ms"] = {batch: draft_token(engine, batch) for batch in BATCHES}
            print(json.dumps(report["draft_token_ms"]), flush=True)
        del engine
        gc.collect()
        torch.cuda.empty_cache()
    names = {0: "plain_step_ms", 3: "round_k3_ms", 5: "round_k5_ms", 7: "round_k7_ms"}
    for drafts, name in names.items():
        report[name] = {row["batch"]: round(row["ms"], 3) for row in rows if row["drafts"] == drafts}
    report["tokens_per_second"] = {f"b{row['batch']}_k{row['drafts']}": round(row["tokens_per_second"]) for row in rows}
    report["idle_share"] = {f"b{row['batch']}_k{row['drafts']}": round(row["idle_share"], 4) for row in rows}
    report["rows"] = rows
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
