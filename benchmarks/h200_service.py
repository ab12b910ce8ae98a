"""The builtin engine in service: real requests over HTTP to real workers, how fast and for how long.

    make bench-service OUT=h200-service.json                   # on the GPU, the tiny pair: some seven minutes
    make bench-service PAIR=cyclic-8b ARGS="--only sweep"      # real cost, acceptance built in (hack/cyclic_pair.py)
    make bench-service PAIR=build/smollm2 ARGS="--only sweep"  # a real model: with target/, drafter/, prompts.jsonl
    make bench-service DEVICE=cpu                              # a look

sweep   Four workers of one pair: speculation off, K = 3, K = 5, `auto`. At each batch size so many clients ask without
        a pause, one worker after the other, three times round, so that the card's moods fall on all alike. Tokens per
        second are those that the worker counted between two looks. Bar: `auto` is never slower than off. On a CPU that
        other work shares, tokens per second of the worker's CPU time say more.

load    One worker with `auto`, and more clients than it lets wait, for some minutes (`service_load`).

Each run of this adds to the JSON (a machine may be had for ten minutes at a time only), which is written after each
batch size, and each five minutes of load; what all parts of load say together stands under `load_total`. Bars that are
missed are told and do not end the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import torch

from cyclic_pair import write_pair
from provenance import provenance
from served import Served, chattable, served
from service_client import ask
from service_load import load
from service_plan import Asked, End, joined
from tandem_worker.contract import Metric

ROOT = Path(__file__).parents[1]
TINY = ROOT / "examples" / "tiny-pair"
MODES = {
    "off": ("--no-speculation", "--draft-length=5"),
    "k3": ("--draft-length=3",),
    "k5": ("--draft-length=5",),
    "auto": ("--draft-length=auto",),
}
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128}
SMALL = {"hidden_size": 128, "intermediate_size": 256, "layers": 6, "heads": 4, "kv_heads": 2, "head_dim": 32}
CYCLIC = {
    "cyclic-8b": (LLAMA_8B | {"vocab_size": 128000, "max_position_embeddings": 8192}, 32000),
    "cyclic-small": (SMALL | {"vocab_size": 1000, "max_position_embeddings": 512}, 600),
}
"""Sizes of the target, and of the draft vocabulary."""

Chat = list[dict[str, str]]
"""Messages."""

Question = Callable[[int], Asked]
"""The n-th request of the sweep; no two begin alike, where prompts are not few."""

SWEEP_TOKENS, CHAT_TOKENS, SWEEP_ROUNDS, SETTLE_SECONDS = 128, 256, 3, 0.5


@asynccontextmanager
async def clients(worker: Served, count: int, question: Question) -> AsyncIterator[None]:
    """So many, who each ask for one answer after the other until the block ends. Raises RuntimeError when one fails."""

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        while True:
            number += count
            outcome = await ask(session, "it", question(number))
            if outcome.end is not End.FINISHED:
                raise RuntimeError(f"a client of the sweep: {outcome}")

    async with aiohttp.ClientSession(worker.address, connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(one(session, number)) for number in range(count)]
        try:
            yield
        finally:
            failed = [task.exception() for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if failed:
            raise RuntimeError("clients ended") from failed[0]


async def window(worker: Served, batch: int, seconds: float, question: Question) -> dict[str, float]:
    async with clients(worker, batch, question):
        await asyncio.sleep(SETTLE_SECONDS)
        before = await asyncio.to_thread(worker.read)
        await asyncio.sleep(seconds)
        after = await asyncio.to_thread(worker.read)
    took = after.at - before.at

    def grown(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    generated, drafts = grown(Metric.GENERATED_TOKENS), grown(Metric.DRAFTS)
    phases = ("verify", "plain", "draft")
    seconds_of_rounds = sum(grown(f"{Metric.STEP_SECONDS}_sum", phase=phase) for phase in phases)
    return {
        "tokens_per_second": generated / took,
        "tokens_per_cpu_second": generated / (after.cpu_seconds - before.cpu_seconds),
        "accept_length": 1 + grown(Metric.ACCEPTED_TOKENS) / drafts if drafts else 1.0,
        "draft_length": grown(Metric.DRAFT_TOKENS) / drafts if drafts else 0.0,
        "undrafted_share": grown(Metric.UNDRAFTED_TOKENS) / generated if generated else 0.0,
        "rounds_share_of_time": seconds_of_rounds / took,
    }


def swept(batch: int, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """The median of each mode's windows, and the bar."""
    modes: dict[str, dict[str, Any]] = {}
    for mode, windows in found.items():
        modes[mode] = {name: round(statistics.median(one[name] for one in windows), 3) for name in windows[0]}
        modes[mode]["windows"] = [round(one["tokens_per_second"]) for one in windows]

    def over_off(name: str) -> dict[str, float]:
        return {mode: round(modes[mode][name] / modes["off"][name], 4) for mode in MODES if mode != "off"}

    ratios = over_off("tokens_per_second")
    by_cpu = over_off("tokens_per_cpu_second")
    bar = {"auto_never_slower_than_off": ratios["auto"] >= 1}
    return {"batch": batch, **bar, "over_off": ratios, "over_off_by_cpu_time": by_cpu, **modes}


def sweep(options: argparse.Namespace, folder: Path, question: Question) -> Iterator[dict[str, Any]]:
    """The row of one batch size after the other."""
    most = max(options.batches)
    common = [f"--device={options.device}", f"--max-batch={most}", f"--kv-cache-tokens={most * 512}"]
    common += ["--no-prefix-reuse"]  # prompts come again in each window, and a worker that is off keeps none
    with ExitStack() as held:
        # One after the other: `auto` measures costs when it starts.
        workers = {
            mode: held.enter_context(
                served(options.target, options.drafter, folder / f"{mode}.log", *common, *arguments)
            )
            for mode, arguments in MODES.items()
        }
        for batch in options.batches:
            found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
            for _ in range(SWEEP_ROUNDS):
                for mode, worker in workers.items():
                    found[mode].append(asyncio.run(window(worker, batch, options.seconds, question)))
            yield swept(batch, found)


def about(options: argparse.Namespace) -> dict[str, Any]:
    card = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} cores {platform.machine()}"
    return {
        "command": shlex.join(["python", *sys.argv]),
        "pair": Path(options.pair).name,
        "device": card,
        "load_of_machine_before": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **provenance("torch", "aiohttp", commit=options.commit),
    }


def pair_of(pair: str, folder: Path, device: str) -> Path:
    """A folder with target/ and drafter/; random weights are written into `folder`."""
    if pair not in CYCLIC:
        return Path(pair)
    shape, drafted = CYCLIC[pair]
    write_pair(folder / "pair", shape, drafted, device)
    if device == "cuda":
        torch.cuda.empty_cache()
    return folder / "pair"


def questions_of(pair: str, texts: Sequence[str], chats: Sequence[Chat]) -> Question:
    """Greedy. Conversations are answered to their own end."""
    if chats:
        return lambda number: Asked(
            "/v1/chat/completions",
            {"messages": chats[number % len(chats)], "max_tokens": CHAT_TOKENS, "temperature": 0},
        )
    settings = {"max_tokens": SWEEP_TOKENS, "temperature": 0, "ignore_eos": True}

    def prompt(number: int) -> str | list[int]:
        if pair not in CYCLIC:
            return f"{number} {texts[number % len(texts)]}"[:SWEEP_TOKENS]
        return random.Random(number).choices(range(10, CYCLIC[pair][1]), k=SWEEP_TOKENS)

    return lambda number: Asked("/v1/completions", {"prompt": prompt(number), **settings})


def prompts_of(pair: Path) -> tuple[list[str], list[Chat]]:
    """Texts, for prompts of any kind, and conversations, which a pair may bring in a `prompts.jsonl` of its own."""
    file = pair / "prompts.jsonl" if (pair / "prompts.jsonl").exists() else TINY / "prompts.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    chats = [line["messages"] for line in lines if "messages" in line]
    return [line["prompt"] for line in lines if "prompt" in line] or [chat[0]["content"] for chat in chats], chats


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["sweep", "load"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--pair", default=str(TINY), help=f"folder with target/ and drafter/, or {', '.join(CYCLIC)}")
    parser.add_argument("--batches", type=lambda text: [*map(int, text.split(","))], default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--seconds", type=float, default=1.5, help="of each of the sweep's windows")
    parser.add_argument("--minutes", type=float, default=2.5, help="of the load")
    parser.add_argument("--seed", type=int, default=0, help="of the load: another one for each run")
    parser.add_argument("--cache-tokens", type=int, help="of the load's worker; with few, who runs must make room")
    parser.add_argument("--commit", default="", help="of this checkout, where git can not tell it")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    report: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}

    def keep() -> None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pair = pair_of(options.pair, folder, options.device)
        texts, chats = prompts_of(pair)
        options.target, options.drafter = chattable(pair / "target", folder), pair / "drafter"
        if options.only != "load":
            rows: list[dict[str, Any]] = []
            report.setdefault("sweeps", []).append(about(options) | {"rows": rows})
            for row in sweep(options, folder, questions_of(options.pair, texts, chats)):
                rows.append(row)
                keep()
                print(json.dumps(row), flush=True)
        if options.only != "sweep":
            of_all = about(options) | {"seed": options.seed, "cache_tokens": options.cache_tokens}
            for part in load(options, folder, texts):
                report.setdefault("loads", []).append(of_all | part)
                report["load_total"] = joined(report["loads"])
                keep()
                print(json.dumps({name: part[name] for name in ("requests", "problems", "bars")}), flush=True)
            print(json.dumps(report["load_total"], indent=1))


if __name__ == "__main__":
    main()
