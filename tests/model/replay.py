"""`python -m model.replay`: random lives of the model, played on a real API server with a hollow node.

After every input both must stand alike, and in the end: stable and canary, weights, conditions, quarantine, answers,
records, workers and what they do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from crashtest.lab import Lab, Place
from hollow.fates import tell
from hollow.node import WHERE
from localcluster import Cluster
from model.inputs import DRAFTERS, FATE_OF_C, MOST_INPUTS, Input, Times, Wishes, draw
from model.lives import Lived
from model.told import label, told
from provenance import provenance
from tandem_operator import names
from tandem_operator.api import PLURAL
from tandem_operator.api.recipe import Recipe
from tandem_worker.contract import WORKER_PORT, SelfTestOutcome, WorkerStatus

TIMES = Times(interval=1, deadline=60, timeout=60)
LIMIT_SECONDS, STILL_SECONDS, LOOK_SECONDS = 600.0, 2.5, 0.3
REQUESTS_PER_SECOND = 60.0
FATES: dict[str, dict[str, Any]] = {
    "healthy": {},
    "weak": {"rate": 0.05},
    "dead": {"rate": 0.0},
    "never ready": {"start_seconds": -1.0},
    "no life": {"self_test": SelfTestOutcome.NO_LIFE},
}


class Played:
    """The life of an object in one place."""

    def __init__(self, place: Place) -> None:
        self.place, self.wishes = place, Wishes(TIMES)
        self._lives = dict.fromkeys(DRAFTERS, "healthy") | {"c": FATE_OF_C}
        self._verdicts: dict[str, str] = {}
        self._flows = True
        self._labels: dict[str, str] = {}  # of every revision that was ever recorded

    async def takes(self, said: Input) -> None:
        revision = await self._revision(said.given.get("drafter", ""))
        if self.wishes.hear(said, revision):
            await self._wish()
        else:
            await self._happens(said, revision)

    async def stands(self) -> dict[str, Any]:
        """As `told`; besides, whether the operator has seen the object as it is."""
        shown, pods = await self.place.show(), await self.place.items("pods")
        records = [
            (item["revision"], item["metadata"]["labels"][names.REVISION], _served(item), item["data"])
            for item in await self.place.items("controllerrevisions")
        ]
        self._labels |= {revision: label(Recipe.model_validate(data)) for _, revision, _, data in records}
        deployments = [
            (
                item["metadata"]["labels"][names.REVISION],
                item["spec"]["replicas"],
                item["status"].get("readyReplicas", 0),
            )
            for item in await self.place.items("deployments")
        ]
        workers = [pod for pod in pods if pod["metadata"]["labels"].get(names.ROLE) == names.WORKER]
        speculating = [
            (pod["metadata"]["labels"][names.REVISION], await self._speculates(pod)) for pod in workers if _ready(pod)
        ]
        seen = shown.status.observed_generation == shown.metadata.generation
        known = [(number, revision, served) for number, revision, served, _ in records]
        return {**told(shown.status, known, deployments, speculating, self._labels), "seen": seen}

    async def comes_to(self, expected: dict[str, Any]) -> list[str]:
        """What still differs when it has had time enough; nothing once it has stood as expected for a while."""
        expected = {**expected, "seen": True}
        deadline, since = time.monotonic() + LIMIT_SECONDS, time.monotonic()
        while True:
            found = await self.stands()
            now = time.monotonic()
            if found != expected:
                since = now
            if now - since >= STILL_SECONDS:
                return []
            if now > deadline:
                keys = [key for key in expected if found[key] != expected[key]]
                return [f"{key} is {found[key]}, in the model {expected[key]}" for key in keys] or ["it never rests"]
            await asyncio.sleep(LOOK_SECONDS)

    async def _wish(self) -> None:
        await self.place.apply({**self.wishes.spec(), "pod": WHERE}, **self.wishes.annotations)

    def _tell(self) -> None:
        common = {"requests_per_second": REQUESTS_PER_SECOND * self._flows, "calibrates": 0.0}
        fates = {
            drafter: {**common, **FATES[life], "verdict": self._verdicts.get(drafter, "Fits")}
            for drafter, life in self._lives.items()
        }
        tell(self.place.lab.cluster.layout.fates, self.place.namespace, fates)

    async def _speculates(self, pod: dict[str, Any]) -> bool | None:
        """None: it can't be asked, having just begun or ended."""
        url = f"http://{pod['status']['podIP']}:{WORKER_PORT}/status"
        try:
            async with self.place.lab.http.get(url) as answer:
                answer.raise_for_status()
                return WorkerStatus.model_validate_json(await answer.text()).speculation_enabled
        except aiohttp.ClientError:
            return None

    async def _revision(self, drafter: str) -> str:
        """As in the model: the canary if it has this drafter, else the newest record that has."""
        if not drafter:
            return ""
        canary = (await self.place.show()).status.canary_revision
        items = sorted(await self.place.items("controllerrevisions"), key=lambda item: item["revision"])
        known = {
            item["metadata"]["labels"][names.REVISION]: label(Recipe.model_validate(item["data"])) for item in items
        }
        mine = [revision for revision, name in known.items() if name.split(",")[0] == drafter]
        return canary if canary in mine else mine[-1] if mine else ""

    async def _happens(self, said: Input, revision: str) -> None:
        given, child = said.given, f"pair-{revision}"
        match said.what:
            case "begin":
                self._tell()
                await self._wish()
            case "fate":
                self._lives[given["drafter"]] = given["life"]
                self._tell()
            case "judge":
                self._verdicts[given["drafter"]] = given["verdict"]
                self._tell()
            case "traffic":
                self._flows = given["flows"]
                self._tell()
            case "scale a child":
                await self._ask("PATCH", "deployments", child, {"spec": {"replicas": given["replicas"]}})
            case "delete a deployment":
                await self._ask("DELETE", "deployments", child, {"propagationPolicy": "Background"})
            case "delete a record":
                await self._ask("DELETE", "controllerrevisions", child)
            case "delete a pod":
                if pods := [p for p in await self.place.items("pods") if _of(p) == revision and revision]:
                    await self._ask("DELETE", "pods", pods[0]["metadata"]["name"])
            case "delete the jobs":
                await self._ask("DELETE", "jobs", "", {"propagationPolicy": "Background"})
            case "wipe the status":
                await self._ask("PATCH", PLURAL, "pair/status", {"status": None})

    async def _ask(self, method: str, plural: str, name: str, body: dict[str, Any] | None = None) -> None:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            await self.place.lab.ask(method, self.place.path(plural, name), body, kind)
        except aiohttp.ClientResponseError as error:
            if error.status != 404:  # there is nothing that it could be done to
                raise


Trace = list[tuple[Input, dict[str, Any]]]
BEGIN = Input("begin", {})


def trace_of(seed: int) -> Trace:
    """Random inputs, and how the model stands after each."""
    chance, lived = random.Random(seed), Lived()
    trace = [(BEGIN, lived.told())]
    for _ in range(MOST_INPUTS):
        lived.takes(said := draw(chance.choice))
        trace.append((said, lived.told()))
    return trace


async def replay(lab: Lab, trace: Trace) -> list[str]:
    """What went otherwise than in the model; nothing if all went alike."""
    async with lab.place() as place:
        played = Played(place)
        for number, (said, expected) in enumerate(trace):
            await played.takes(said)
            if problems := await played.comes_to(expected):
                where = f"in {place.namespace}, input {number} ({said.what} {said.given})"
                return [f"{where}: {problem}" for problem in problems]
    return []


def _served(record: dict[str, Any]) -> bool:
    return bool(record["metadata"]["annotations"].get(names.SERVED) == "true")


def _of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"].get(names.REVISION, ""))


def _ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    going = "deletionTimestamp" in pod["metadata"]
    return not going and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first trace; the next one has the next number")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    wrong: list[str] = []
    room, started = asyncio.Semaphore(arguments.at_once), time.monotonic()
    traces = {seed: trace_of(seed) for seed in range(arguments.seed, arguments.seed + arguments.traces)}
    with Cluster.start(name=f"replay-{os.getpid()}", hollow=True) as cluster:
        async with Lab.of(cluster) as lab:

            async def one(seed: int, trace: Trace) -> None:
                async with room:
                    problems = [f"trace {seed}, {problem}" for problem in await replay(lab, trace)]
                wrong.extend(problems)
                print("\n".join(problems) or f"trace {seed} went as in the model", file=sys.stderr, flush=True)

            await asyncio.gather(*(one(seed, trace) for seed, trace in traces.items()))
    report = {
        **provenance("kopf", "kubernetes"),
        "seeds": [arguments.seed, arguments.seed + arguments.traces - 1],
        "inputs_of_each": MOST_INPUTS,
        "seconds": round(time.monotonic() - started),
        "wrong": wrong,
    }
    print(text := json.dumps(report, indent=2))
    if arguments.json:
        arguments.json.write_text(text + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
