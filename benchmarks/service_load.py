"""One worker with `auto`, and more clients than it lets wait, for some minutes, of the requests in `service_plan`.

Every request must be accounted for, on both sides; nothing stuck; known texts as ever; memory flat; all pages free in
the end. So it is after each five minutes, when all clients have ended what they had begun: a run that is cut off leaves
the parts that were whole.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from served import Readings, Served, gpu_mib, resident_mib, served
from service_client import ask
from service_plan import Account, End, Sample, Schedule, memory_of, parts_of
from tandem_worker.contract import Metric

LOAD_BATCH, LOAD_WAITING = {"cuda": 32, "cpu": 8}, 8
SAMPLE_SECONDS, EMPTY_SECONDS, WARM_SHARE = 1.0, 30, 0.25


async def pressed(worker: Served, schedule: Schedule, clients: int, seconds: float, account: Account) -> None:
    """All clients take from one schedule until the time is up, and end what they have begun."""
    left, until = iter(schedule), time.monotonic() + seconds

    async def one(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < until:
            asked = next(left)
            outcome = await ask(session, "it", asked)
            account.add(asked, outcome)
            if outcome.end is End.REFUSED:
                await asyncio.sleep(1)  # as Retry-After says

    async with aiohttp.ClientSession(worker.address, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(one(session) for _ in range(clients)))


async def sampled(worker: Served, samples: list[Sample]) -> None:
    """Memory, once a second, for ever."""
    while True:
        gpu = await asyncio.to_thread(gpu_mib)
        samples.append(Sample(time.monotonic(), resident_mib(worker.pid), gpu))
        await asyncio.sleep(SAMPLE_SECONDS)


async def emptied(worker: Served) -> Readings:
    """What the worker says when nothing runs or waits any more, or after EMPTY_SECONDS."""
    until = time.monotonic() + EMPTY_SECONDS
    while True:
        now = await asyncio.to_thread(worker.read)
        if not now.total(Metric.RUNNING) + now.total(Metric.WAITING) or time.monotonic() > until:
            return now
        await asyncio.sleep(0.2)


@dataclass
class Run:
    """A worker under load, and what is known of it from one part to the next."""

    worker: Served
    schedule: Schedule
    clients: int
    warm_seconds: float  # of the first part, that memory may grow in
    samples: list[Sample] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)  # of known requests


async def part(run: Run, seconds: float) -> dict[str, Any]:
    worker, account = run.worker, Account(known_texts=run.texts)
    before = worker.read()
    sampler = asyncio.create_task(sampled(worker, run.samples))
    await pressed(worker, run.schedule, run.clients, seconds, account)
    sampler.cancel()
    after = await emptied(worker)
    ended = {name: count - before.ended()[name] for name, count in after.ended().items()}
    refused = int(after.total(Metric.REFUSED) - before.total(Metric.REFUSED))
    pages = [int(readings.total(Metric.FREE_PAGES)) for readings in (before, after)]
    disagreements, memory = account.disagreements(ended, refused), memory_of(run.samples, run.warm_seconds)
    bars = {
        "every_request_accounted_for": not disagreements and not account.ends[End.WRONG],
        "nothing_stuck": not account.ends[End.STUCK] and not after.total(Metric.RUNNING) + after.total(Metric.WAITING),
        "pages_free_as_at_the_start": pages[0] == pages[1],
    }
    return {
        "minutes": round(seconds / 60, 2),
        "clients": run.clients,
        "requests": dict(account.ends),
        "choices": dict(account.choices),
        "worker_ended": ended,
        "worker_refused": refused,
        "known_texts_compared": account.known_asked,
        "tokens_seen": account.tokens,
        "problems": (disagreements + account.problems)[:20],
        "free_pages": pages,
        "memory_after_warm_up": memory,
        "bars": bars | {f"{name}_flat": found["flat"] for name, found in memory.items()},
        "first_token": account.first.counts,
        "between_events": account.between_events.counts,
        "between_tokens": account.between_tokens.counts,
    }


def load(options: argparse.Namespace, folder: Path, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Its parts, of one worker."""
    batch = LOAD_BATCH[options.device]
    arguments: tuple[str, ...] = (f"--device={options.device}", f"--max-batch={batch}", f"--max-waiting={LOAD_WAITING}")
    if options.cache_tokens:
        arguments += (f"--kv-cache-tokens={options.cache_tokens}",)
    began, parts = time.monotonic(), parts_of(options.minutes * 60)
    with served(options.target, options.drafter, folder / "load.log", *arguments, "--draft-length=auto") as worker:
        ready = {"seconds_until_ready": round(time.monotonic() - began, 1)}
        schedule = Schedule(options.seed, texts, min(context_of(worker), 2048))
        run = Run(worker, schedule, batch + LOAD_WAITING + 4, WARM_SHARE * parts[0])
        for seconds in parts:
            yield ready | asyncio.run(part(run, seconds))


def context_of(worker: Served) -> int:
    async def asked() -> int:
        async with aiohttp.ClientSession(worker.address) as session, session.get("/v1/models") as answer:
            return int((await answer.json())["data"][0]["max_model_len"])

    return asyncio.run(asked())
