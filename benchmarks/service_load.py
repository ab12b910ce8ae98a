"""One worker with `auto`, and more clients than it lets wait, for some minutes, of the requests in `service_plan`.

Every request must be accounted for, on both sides; nothing stuck; known texts as ever; memory flat; all pages free in
the end.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from served import Readings, Served, gpu_mib, resident_mib, served
from service_client import ask
from service_plan import Account, End, Schedule, trend
from tandem_worker.contract import Metric

LOAD_BATCH, LOAD_WAITING = {"cuda": 32, "cpu": 8}, 8
SAMPLE_SECONDS, EMPTY_SECONDS, WARM_SHARE = 1.0, 30, 0.25


async def pressed(worker: Served, schedule: Schedule, clients: int, seconds: float) -> Account:
    """All clients take from one schedule until the time is up, and end what they have begun."""
    account, left, until = Account(), iter(schedule), time.monotonic() + seconds

    async def one(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < until:
            asked = next(left)
            outcome = await ask(session, "it", asked)
            account.add(asked, outcome)
            if outcome.end is End.REFUSED:
                await asyncio.sleep(1)  # as Retry-After says

    async with aiohttp.ClientSession(worker.address, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(one(session) for _ in range(clients)))
    return account


async def sampled(worker: Served, samples: list[dict[str, Any]]) -> None:
    """Memory, once a second, for ever."""
    started = time.monotonic()
    while True:
        gpu = await asyncio.to_thread(gpu_mib)
        at = time.monotonic() - started
        samples.append({"seconds": round(at, 1), "host_mib": resident_mib(worker.pid), "gpu_mib": gpu})
        await asyncio.sleep(SAMPLE_SECONDS)


async def emptied(worker: Served) -> Readings:
    """What the worker says when nothing runs or waits any more, or after EMPTY_SECONDS."""
    until = time.monotonic() + EMPTY_SECONDS
    while True:
        now = await asyncio.to_thread(worker.read)
        if not now.total(Metric.RUNNING) + now.total(Metric.WAITING) or time.monotonic() > until:
            return now
        await asyncio.sleep(0.2)


async def loaded(worker: Served, schedule: Schedule, clients: int, seconds: float) -> dict[str, Any]:
    samples: list[dict[str, Any]] = []
    before = worker.read()
    sampler = asyncio.create_task(sampled(worker, samples))
    account = await pressed(worker, schedule, clients, seconds)
    sampler.cancel()
    after = await emptied(worker)
    ended = {name: count - before.ended()[name] for name, count in after.ended().items()}
    refused = int(after.total(Metric.REFUSED) - before.total(Metric.REFUSED))
    pages = [int(readings.total(Metric.FREE_PAGES)) for readings in (before, after)]
    disagreements = account.disagreements(ended, refused)
    bars = {
        "every_request_accounted_for": not disagreements and not account.ends[End.WRONG],
        "nothing_stuck": not account.ends[End.STUCK] and not after.total(Metric.RUNNING) + after.total(Metric.WAITING),
        "pages_free_as_at_the_start": pages[0] == pages[1],
    }
    memory: dict[str, Any] = {}
    for name in ("host_mib", "gpu_mib"):
        line = [(one["seconds"], one[name]) for one in samples if one[name] is not None]
        found = trend(line, WARM_SHARE * seconds)
        if found:
            memory[name] = {k: round(v, 2) for k, v in found._asdict().items()} | {"flat": found.flat}
            bars[f"{name}_flat"] = found.flat
    return {
        "minutes": round(seconds / 60, 2),
        "clients": clients,
        "requests": dict(account.ends),
        "choices": dict(account.choices),
        "worker_ended": ended,
        "worker_refused": refused,
        "known_texts_compared": account.known_asked,
        "tokens_seen": account.tokens,
        "problems": (disagreements + account.problems)[:20],
        "free_pages": pages,
        "memory_after_warm_up": memory,
        "bars": bars,
        "first_token": account.first.counts,
        "between_events": account.between_events.counts,
        "between_tokens": account.between_tokens.counts,
    }


def load(options: argparse.Namespace, folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    batch = LOAD_BATCH[options.device]
    arguments: tuple[str, ...] = (f"--device={options.device}", f"--max-batch={batch}", f"--max-waiting={LOAD_WAITING}")
    if options.cache_tokens:
        arguments += (f"--kv-cache-tokens={options.cache_tokens}",)
    began = time.monotonic()
    with served(options.target, options.drafter, folder / "load.log", *arguments, "--draft-length=auto") as worker:
        ready = {"seconds_until_ready": round(time.monotonic() - began, 1)}
        context = context_of(worker)
        schedule = Schedule(options.seed, texts, min(context, 2048))
        return ready | asyncio.run(loaded(worker, schedule, batch + LOAD_WAITING + 4, options.minutes * 60))


def context_of(worker: Served) -> int:
    async def asked() -> int:
        async with aiohttp.ClientSession(worker.address) as session, session.get("/v1/models") as answer:
            return int((await answer.json())["data"][0]["max_model_len"])

    return asyncio.run(asked())
