"""`python -m crashtest`: kill the operator right before and right after every one of its writes.

Each life must end as the one that nobody disturbed: the same children, the same status up to times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

from crashtest.lab import Lab, Manifest
from crashtest.scenarios import SCENARIOS
from localcluster import Cluster
from provenance import provenance

When = Literal["before", "after"]


@dataclass
class Told:
    scenario: str
    writes: int  # of a life that nobody disturbed
    cases: int
    deaths: dict[str, int] = field(
        default_factory=dict
    )  # by when and at which write; lives differ in how many they make
    wrong: list[str] = field(default_factory=list)  # what ended otherwise


async def undisturbed(lab: Lab, name: str) -> tuple[Manifest, list[str]]:
    """How the scenario ends, and the writes on the way, in words."""
    async with lab.place() as place:
        await SCENARIOS[name](place)
        return await place.end(), list(place.proxy.log)


async def killed(lab: Lab, name: str, number: int, when: When) -> tuple[Manifest, str]:
    """How it ends when the operator dies at its write `number`, and that write; empty: it made fewer writes."""
    async with lab.place() as place:
        place.proxy.kill_at = (number, when)
        try:
            await SCENARIOS[name](place)
        except AssertionError as error:
            error.add_note(f"killed at {place.proxy.killed_at}")
            raise
        return await place.end(), place.proxy.killed_at


def differences(found: Manifest, expected: Manifest) -> list[str]:
    return [f"{key}: {found[key]} instead of {expected[key]}" for key in expected if found[key] != expected[key]]


async def crash_at_every_write(lab: Lab, name: str, share: float, at_once: int, seed: int) -> Told:
    """`share` of all (write, before or after), chosen by `seed`."""
    expected, log = await undisturbed(lab, name)
    cases: list[tuple[int, When]] = list(product(range(1, len(log) + 1), ("before", "after")))
    chosen = random.Random(seed).sample(cases, max(1, round(share * len(cases))))
    room, told = asyncio.Semaphore(at_once), Told(name, len(log), len(chosen))

    async def one(number: int, when: When) -> None:
        async with room:
            try:
                found, at = await killed(lab, name, number, when)
            except AssertionError as error:
                told.wrong.append(f"{name}, {when} write {number}: {error} {' '.join(error.__notes__)}")
                return
            if at:
                told.deaths[f"{when} {at}"] = told.deaths.get(f"{when} {at}", 0) + 1
            if problems := differences(found, expected):
                told.wrong.append(f"{name}, {when} write {number} ({at}): {'; '.join(problems)}")

    await asyncio.gather(*(one(number, when) for number, when in chosen))
    return told


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of all cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with Cluster.start(name=f"crash-{os.getpid()}", hollow=True) as cluster:
        started = time.monotonic()
        async with Lab.of(cluster) as lab:
            told = [
                await crash_at_every_write(lab, name, arguments.share, arguments.at_once, arguments.seed)
                for name in SCENARIOS
            ]
    report = {
        **provenance("kopf", "kubernetes"),
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - started),
        "scenarios": [asdict(one) for one in told],
    }
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    return int(any(one.wrong for one in told))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
