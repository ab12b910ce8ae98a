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
from itertools import product
from pathlib import Path
from typing import Any, Literal

from crashtest.lab import Lab, Manifest
from crashtest.scenarios import SCENARIOS
from localcluster import Cluster

When = Literal["before", "after"]


async def undisturbed(lab: Lab, name: str) -> tuple[Manifest, list[str]]:
    """How the scenario ends, and the writes on the way, in words."""
    async with lab.place() as place:
        await SCENARIOS[name](place)
        return await place.gist(), list(place.proxy.log)


async def killed(lab: Lab, name: str, number: int, when: When) -> tuple[Manifest, bool]:
    """How it ends when the operator dies at its write `number`; whether it came that far."""
    async with lab.place() as place:
        place.proxy.kill_at = (number, when)
        await SCENARIOS[name](place)
        return await place.gist(), place.operator.starts > 1


def differences(found: Manifest, expected: Manifest) -> list[str]:
    return [f"{key}: {found[key]} instead of {expected[key]}" for key in expected if found[key] != expected[key]]


async def crash_at_every_write(lab: Lab, name: str, share: float, at_once: int, seed: int) -> dict[str, Any]:
    """`share` of all (write, before or after), chosen by `seed`. Raises AssertionError with what ended otherwise."""
    expected, log = await undisturbed(lab, name)
    cases: list[tuple[int, When]] = list(product(range(1, len(log) + 1), ("before", "after")))
    chosen = random.Random(seed).sample(cases, max(1, round(share * len(cases))))
    room, wrong, died = asyncio.Semaphore(at_once), [], 0

    async def one(number: int, when: When) -> None:
        nonlocal died
        async with room:
            try:
                found, did = await killed(lab, name, number, when)
                died += did
                problems = differences(found, expected)
            except AssertionError as error:
                problems = [str(error)]
            if problems:
                wrong.append(f"{name}, killed {when} write {number} ({log[number - 1]}): {'; '.join(problems)}")
                print(wrong[-1], file=sys.stderr, flush=True)

    await asyncio.gather(*(one(number, when) for number, when in chosen))
    assert not wrong, "\n".join(wrong)
    return {"scenario": name, "writes": len(log), "cases": len(chosen), "deaths": died}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of all cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with Cluster.start(name=f"crash-{os.getpid()}", hollow=True) as cluster:
        results, started = [], time.monotonic()
        async with Lab.of(cluster) as lab:
            for name in SCENARIOS:
                done = await crash_at_every_write(lab, name, arguments.share, arguments.at_once, arguments.seed)
                print(json.dumps(done), flush=True)
                results.append(done)
        report = {"seed": arguments.seed, "seconds": round(time.monotonic() - started), "scenarios": results}
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
