"""The four acts. Each brings something about, waits for its end, and has it judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import Any

from demo import judge
from demo.install import HOME
from demo.judge import Check, Measured
from demo.load import Load, Statistics, background, send
from demo.pairs import TRAINED_ON, Manifest, on_gpu, pair, target_only
from demo.world import ActFailed, Shown, WorkerPod, World
from localcluster.cluster import Cluster
from tandem_operator.api.status import Counts
from tandem_operator.plan.analysis.evidence import accept_length, increment, plus

GOOD, PLAIN, LONELY = "tiny", "tiny-plain", "lonely"
MEASURED_REQUESTS, WARM_UP_REQUESTS = 32, 4
CONCURRENCY = 4

Figures = dict[str, Any]

MEMORY_FRACTION = 0.1  # of a GPU, for each of the demo's workers


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class Stage:
    cluster: Cluster
    world: World
    prompts: Sequence[str]
    say: Callable[[str], None]
    device: Device = Device.CPU

    async def apply(self, manifest: Manifest) -> Manifest:
        """Places the object on the demo's device; returns it as it was written."""
        if self.device is Device.CUDA:
            manifest = on_gpu(manifest, MEMORY_FRACTION, str(HOME / "kernels"))
        await self.world.apply(manifest)
        return manifest

    async def load(self, name: str, **changes: int) -> Load:
        """Client requests to the Service of an object."""
        url = await asyncio.to_thread(self.cluster.service_url, "default", name, 80)
        return Load(url, model=name, prompts=self.prompts, **changes)

    async def measure(self, name: str, requests: int = MEASURED_REQUESTS) -> Measured:
        before = await self.world.counts(name)
        sent = await send(await self.load(name, concurrency=CONCURRENCY), requests)
        return Measured(sent, increment(before, await self.world.counts(name)))


@dataclass
class Ending:
    checks: list[Check]
    figures: Figures = field(default_factory=dict)
    finished: bool = True  # False: it was given up, and what follows has no ground


async def act_good_pair(stage: Stage) -> Ending:
    """A good pair, measured with speculation and beside it the same target without."""
    world, start = stage.world, time.monotonic()
    await stage.apply(pair(GOOD, "drafter", "Probe", TRAINED_ON))
    await stage.apply(target_only(PLAIN))
    await world.until_object(GOOD, f"{GOOD} to serve", serves)
    serving_after_seconds = time.monotonic() - start
    await world.until_object(PLAIN, f"{PLAIN} to serve", serves)
    measured = {}
    for name in (GOOD, PLAIN):
        stage.say(f"{MEASURED_REQUESTS} client requests through the Service of {name}, {CONCURRENCY} at a time")
        await send(await stage.load(name), WARM_UP_REQUESTS)
        measured[name] = await stage.measure(name)
    await world.delete(PLAIN)
    pair_speed, plain_speed = (measured[name].load.tokens_per_second for name in (GOOD, PLAIN))
    figures = {
        "seconds_from_apply_to_serving": round(serving_after_seconds, 1),
        "tokens_per_second": round(pair_speed, 1),
        "tokens_per_second_without_speculation": round(plain_speed, 1),
        "speedup": round(pair_speed / plain_speed, 2) if plain_speed else None,
        **_acceptance(measured[GOOD].counts),
    }
    shown = await world.until_object(GOOD, "speculation to be seen", lambda s: s.is_true("SpeculationActive"), 30)
    return Ending(judge.good_pair(shown, measured[GOOD], measured[PLAIN]), figures)


async def act_miswired(stage: Stage) -> Ending:
    """The drafter's weights with layer ids of another convention: refused before any worker pod exists."""
    world = stage.world
    stable = world.shown(GOOD).resource.status.stable_revision
    async with background(await stage.load(GOOD), pause_seconds=0.5) as clients:
        await stage.apply(pair(GOOD, "drafter-miswired", "Probe", TRAINED_ON))
        shown = await world.until_object(GOOD, "the pair to be refused", lambda s: s.status_of("Validated") == "False")
        await asyncio.sleep(2)  # were a worker to come all the same, it would come now
    validation = shown.resource.status.validation
    if validation:
        stage.say(f"{validation.verdict}: {validation.summary}")
    revisions = {pod.revision for pod in world.workers.values() if pod.owner == GOOD}
    load = clients.statistics()
    return Ending(judge.miswired(world.shown(GOOD), stable, revisions, load), users(load))


async def act_foreign(stage: Stage) -> Ending:
    """A drafter of the right shapes for another target: only requests can tell, and they do."""
    world = stage.world
    stable = world.shown(GOOD).resource.status.stable_revision
    async with background(await stage.load(GOOD, concurrency=4), pause_seconds=0.5) as clients:
        written = await stage.apply(pair(GOOD, "drafter-foreign", "Static"))
        async with _counting(world, stable) as counting:
            await world.until_object(GOOD, "the canary to be taken back", lambda s: _taken_back(s, stable))
            seconds = time.monotonic() - counting.first_draft
            await world.until("the canary's pods to end", lambda: not _canaries(world, stable), limit_seconds=60)
        await asyncio.sleep(1)  # requests go on after the last pod has gone
    canary = reduce(plus, counting.last.values(), Counts())
    load = clients.statistics()
    shown = world.shown(GOOD)
    if shown.resource.status.quarantined:
        stage.say(shown.resource.status.quarantined[-1].message)
    figures = {
        **_acceptance(canary),
        "seconds_from_first_draft_to_rollback": round(seconds, 1),
        "canary_requests": canary.user_requests,
        **users(load),
    }
    return Ending(judge.foreign(shown, stable, written, canary, load), figures)


async def act_nothing_to_go_back_to(stage: Stage) -> Ending:
    """A fresh object with nothing but the foreign drafter: the target serves, speculation goes off."""
    world = stage.world
    await stage.apply(pair(LONELY, "drafter-foreign", "Static"))
    await world.until_object(LONELY, f"{LONELY} to serve", serves)
    async with background(await stage.load(LONELY), pause_seconds=0.05) as clients:
        shown = await world.until_object(
            LONELY,
            "speculation to be switched off",
            lambda s: s.status_of("SpeculationActive") == "False" and bool(s.resource.status.quarantined),
        )
    stage.say(shown.resource.status.quarantined[-1].message)
    after = await stage.measure(LONELY, requests=8)
    shown = await world.until_object(LONELY, "it to be ready", serves)
    return Ending(judge.nothing_to_go_back_to(shown, after), users(clients.statistics(), after.load))


Act = Callable[[Stage], Awaitable[Ending]]
ACTS: tuple[tuple[str, Act], ...] = (
    ("A good pair", act_good_pair),
    ("A mis-wired drafter", act_miswired),
    ("A drafter that does not predict", act_foreign),
    ("Nothing to go back to", act_nothing_to_go_back_to),
)


def serves(shown: Shown) -> bool:
    return shown.is_true("Ready") and bool(shown.resource.status.stable_revision)


def _taken_back(shown: Shown, stable: str) -> bool:
    status = shown.resource.status
    return shown.is_true("RolledBack") and not status.canary_revision and status.stable_revision == stable


def _canaries(world: World, stable: str) -> list[WorkerPod]:
    return [pod for pod in world.alive(GOOD) if pod.revision != stable]


@dataclass
class Counting:
    last: dict[str, Counts] = field(default_factory=dict)  # of every canary pod, by uid
    first_draft: float = 0.0  # time.monotonic() at which one was seen


@asynccontextmanager
async def _counting(world: World, stable: str) -> AsyncIterator[Counting]:
    """The counters of the canary's pods, read again and again as long as the block runs."""
    counting = Counting()

    async def read() -> None:
        while True:
            for pod in _canaries(world, stable):
                with suppress(ActFailed):  # not ready yet, or gone
                    counts = counting.last[pod.uid] = await world.counts_of(pod)
                    if counts.drafts and not counting.first_draft:
                        counting.first_draft = time.monotonic()
            await asyncio.sleep(0.3)

    reading = asyncio.create_task(read())
    try:
        yield counting
    finally:
        reading.cancel()


def _acceptance(counts: Counts) -> Figures:
    length = round(accept_length(counts), 2) if counts.drafts else None
    return {"accept_length": length, "drafts": counts.drafts}


def users(*loads: Statistics) -> Figures:
    return {
        "client_requests": sum(load.requests for load in loads),
        "failed_requests": sum(load.failed for load in loads),
    }
