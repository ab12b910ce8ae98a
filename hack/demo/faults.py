"""Faults, each brought about on purpose while clients ask for text, and its outcome in the object's conditions."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence

from demo import fault_judge as judge
from demo.acts import GOOD, Act, Device, Ending, Stage, serves, users
from demo.gpu import hogged, processes_on_gpu
from demo.install import HOME
from demo.load import Background, background
from demo.pairs import TRAINED_ON, Manifest, pair, target_only
from demo.world import Shown, WorkerPod
from localcluster.images import PYTHON_PATH
from random_checkpoint import WIDE, write_target

HOGGED, LARGE, SLOW = "hogged", "large", "slow"
SABOTAGE = HOME.parent / "hack" / "demo" / "sabotage"
LEFT_BY_HOG, WANTED_OF_HOGGED, TOO_SMALL = 0.3, 0.5, 0.01
SETTLED_SECONDS = 3  # requests before and after what is done to them


async def act_killed(stage: Stage) -> Ending:
    """SIGKILL to a worker while its rounds run: it starts anew, nobody waits for ever, the GPU is given back."""
    world = stage.world
    await _good_pair_serves(stage)
    pod = world.alive(GOOD)[0]
    process, _ = await _process(stage, pod)
    async with background(await stage.load(GOOD, concurrency=8), pause_seconds=0.01) as clients:
        await asyncio.sleep(SETTLED_SECONDS)
        os.kill(process, signal.SIGKILL)
        killed = time.monotonic()
        down = await world.until_object(GOOD, "it to be seen", lambda s: s.status_of("Ready") == "False", 60)
        stage.say(f"Ready={down.status_of('Ready')} {down.message_of('Ready')}")
        up = await world.until_object(GOOD, "it to serve again", serves)
        seconds = time.monotonic() - killed
        await asyncio.sleep(SETTLED_SECONDS)
    restarts = (await _process(stage, pod))[1]
    left = process in processes_on_gpu()
    load = clients.statistics()
    figures = {
        "seconds_to_serving_again": round(seconds, 1),
        "requests_cut_off": load.failures.get("connection lost", 0),
        "refused_while_down": load.failures.get("connection refused", 0),
        "answered": load.requests - load.failed,
    }
    return Ending(judge.killed(down, up, restarts, left, load), figures)


async def act_switched(stage: Stage) -> Ending:
    """Speculation off and on again under load, by a floor that nothing reaches: same workers, same text, no gap."""
    world = stage.world
    await _good_pair_serves(stage)
    before = world.alive(GOOD)
    written = pair(GOOD, "drafter", "Static", TRAINED_ON)
    async with background(await stage.load(GOOD, concurrency=4), pause_seconds=0.02) as clients:
        await stage.apply(written)
        await asyncio.sleep(SETTLED_SECONDS)
        speculating = len(clients.outcomes)
        await stage.apply(_with_guard(written, minAcceptLength=8.9, onCollapse="DisableSpeculation"))
        off = await world.until_object(
            GOOD, "speculation to go off", lambda s: s.status_of("SpeculationActive") == "False"
        )
        stage.say(f"SpeculationActive=False {off.message_of('SpeculationActive')}")
        switched = len(clients.outcomes)
        await asyncio.sleep(SETTLED_SECONDS)
        plain = len(clients.outcomes)
        await stage.apply(written)
        on = await world.until_object(GOOD, "speculation to go on", lambda s: s.is_true("SpeculationActive"))
        await asyncio.sleep(SETTLED_SECONDS)
    load = clients.statistics()
    texts = _texts(clients)
    figures = {
        "requests_before_off_on_after": [speculating, switched - speculating, plain - switched, load.requests - plain],
        "texts_compared": sum(len(of_prompt) for of_prompt in texts),
        **users(load),
    }
    return Ending(judge.switched(off, on, before, world.alive(GOOD), texts, load), figures)


async def act_hogged(stage: Stage) -> Ending:
    """A second process holds the GPU: a worker that asks for more than is left says so, and starts when it is gone."""
    world = stage.world
    async with background(await stage.load(GOOD), pause_seconds=0.05) as clients:
        async with hogged(LEFT_BY_HOG):
            await stage.apply(_with_fraction(target_only(HOGGED), WANTED_OF_HOGGED))
            refused = await world.until_object(
                HOGGED, "the refusal", lambda s: s.reason_of("Ready") == "InsufficientGpuMemory"
            )
            stage.say(f"Ready={refused.status_of('Ready')} {refused.message_of('Ready')}")
        freed = time.monotonic()
        up = await world.until_object(HOGGED, "it to serve", serves)
        seconds = time.monotonic() - freed
    await world.delete(HOGGED)
    load = clients.statistics()
    return Ending(judge.hogged(refused, up, load), {"seconds_from_free_to_serving": round(seconds, 1), **users(load)})


async def act_out_of_memory(stage: Stage) -> Ending:
    """A target larger than its share of the GPU: the worker says what it lacks; its neighbours do not notice."""
    world = stage.world
    await asyncio.to_thread(write_target, HOME / "checkpoints" / "target-wide", WIDE)
    async with background(await stage.load(GOOD), pause_seconds=0.05) as clients:
        await stage.apply(_with_fraction(target_only(LARGE, "target-wide"), TOO_SMALL))
        refused = await world.until_object(LARGE, "the refusal", lambda s: s.reason_of("Ready") == "OutOfGpuMemory")
        stage.say(f"Ready={refused.status_of('Ready')} {refused.message_of('Ready')}")
    await world.delete(LARGE)
    load = clients.statistics()
    return Ending(judge.out_of_memory(refused, load), users(load))


async def act_no_graphs(stage: Stage) -> Ending:
    """CUDA graphs can not be captured: the same text, more slowly, and the object says so."""
    world = stage.world
    written = pair(SLOW, "drafter", "Static", TRAINED_ON)
    path = ":".join([*PYTHON_PATH, str(SABOTAGE)])
    env = {"env": [{"name": "PYTHONPATH", "value": path}]}
    await stage.apply({**written, "spec": {**written["spec"], "pod": env}})
    await world.until_object(SLOW, f"{SLOW} to serve", serves)
    texts, speeds = [], {}
    for name in (GOOD, SLOW):
        async with background(await stage.load(name, concurrency=4)) as clients:
            await asyncio.sleep(2 * SETTLED_SECONDS)
        speeds[name] = clients.statistics()
        texts.append(clients)
    shown = await world.until_object(SLOW, "speculation", lambda s: s.is_true("SpeculationActive"))
    stage.say(f"Ready={shown.status_of('Ready')} {shown.message_of('Ready')}")
    await world.delete(SLOW)
    figures = {
        "tokens_per_second_with_graphs": round(speeds[GOOD].tokens_per_second, 1),
        "tokens_per_second": round(speeds[SLOW].tokens_per_second, 1),
        **users(*speeds.values()),
    }
    return Ending(judge.no_graphs(shown, _texts(*texts), speeds[SLOW]), figures)


def faults(device: Device) -> tuple[tuple[str, Act], ...]:
    """Those that make sense on the device."""
    anywhere = (("A worker killed in mid-round", act_killed), ("Speculation off and on under load", act_switched))
    if device is Device.CPU:
        return anywhere
    return (
        *anywhere,
        ("A second process hogs the GPU", act_hogged),
        ("Out of memory at load", act_out_of_memory),
        ("CUDA graphs can not be captured", act_no_graphs),
    )


async def _good_pair_serves(stage: Stage) -> Shown:
    await stage.apply(pair(GOOD, "drafter", "Probe", TRAINED_ON))
    return await stage.world.until_object(
        GOOD, f"{GOOD} to serve and speculate", lambda s: serves(s) and s.is_true("SpeculationActive")
    )


async def _process(stage: Stage, pod: WorkerPod) -> tuple[int, int]:
    """The worker's process id on this machine, and how often its container was started again."""
    path = "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}"
    told = await asyncio.to_thread(stage.cluster.kubectl, "get", "pod", pod.name, f"--output={path}")
    container, restarts = told.split()
    return int(container.removeprefix("process://")), int(restarts)


def _with_guard(manifest: Manifest, **guard: object) -> Manifest:
    spec = manifest["spec"]
    return {**manifest, "spec": {**spec, "guard": {**spec.get("guard", {}), **guard}}}


def _with_fraction(manifest: Manifest, fraction: float) -> Manifest:
    return {**manifest, "spec": {**manifest["spec"], "engine": {"gpuMemoryFraction": fraction}}}


def _texts(*seen: Background) -> Sequence[list[str]]:
    """What was answered to each prompt, by everybody."""
    by_prompt: dict[str, list[str]] = {}
    for clients in seen:
        for outcome in clients.outcomes:
            if not outcome.failure:
                by_prompt.setdefault(outcome.prompt, []).append(outcome.text)
    return list(by_prompt.values())
