"""`python -m model.soak --steps 1000000 --lives 1000 --seed 1`: the machine, and lives, for as long as one likes.

In pieces, each of which has a seed of its own: `--seed` of that piece repeats a finding, `--shrink` makes its trace
minimal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from model.lives import ends_as_undisturbed
from model.machine import Rollouts
from provenance import provenance

PIECE_STEPS, PIECE_LIVES = 10_000, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=PIECE_STEPS)
    parser.add_argument("--lives", type=int, default=PIECE_LIVES, help="pairs of a disturbed and an undisturbed life")
    parser.add_argument("--seed", type=int, default=0, help="of the first piece; the next one has the next number")
    parser.add_argument("--length", type=int, default=100, help="steps of one example")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    how = settings(
        stateful_step_count=arguments.length,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate] + ([Phase.shrink] if arguments.shrink else []),
    )
    told = {
        **provenance("hypothesis"),
        "machine": _machine(
            arguments.steps, arguments.seed, settings(how, max_examples=PIECE_STEPS // arguments.length)
        ),
        "lives": _lives(arguments.lives, arguments.seed, settings(how, max_examples=PIECE_LIVES)),
        "cpu_seconds": round(time.process_time()),
    }
    print(text := json.dumps(told, indent=2))
    if arguments.json:
        arguments.json.write_text(text + "\n")


def _machine(steps: int, number: int, how: settings) -> dict[str, Any]:
    first = number
    while Rollouts.steps < steps:
        print(f"seed {number}, {Rollouts.steps} steps so far", file=sys.stderr, flush=True)
        run_state_machine_as_test(seed(number)(Rollouts), settings=how)
        number += 1
    return {"steps": Rollouts.steps, "seeds": [first, number - 1]}


def _lives(wanted: int, number: int, how: settings) -> dict[str, Any]:
    first, lives, inputs = number, 0, 0

    @how
    @given(data=st.data())
    def piece(data: st.DataObject) -> None:
        nonlocal lives, inputs
        inputs += ends_as_undisturbed(data)
        lives += 1

    while lives < wanted:
        print(f"seed {number}, {lives} lives so far", file=sys.stderr, flush=True)
        seed(number)(piece)()
        number += 1
    return {"lives": lives, "inputs": inputs, "seeds": [first, number - 1]}


if __name__ == "__main__":
    main()
