"""`python -m model.soak --steps 1000000 --seed 1`: the machine for as long as one likes, in pieces.

Each piece has a seed of its own: `--seed` of that piece repeats a finding, `--shrink` makes its trace minimal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from model.machine import Rollouts

PIECE_STEPS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=PIECE_STEPS)
    parser.add_argument("--seed", type=int, default=0, help="of the first piece; the next one has the next number")
    parser.add_argument("--length", type=int, default=100, help="steps of one example")
    parser.add_argument("--shrink", action="store_true")
    arguments = parser.parse_args()
    phases = [Phase.generate] + ([Phase.shrink] if arguments.shrink else [])
    how = settings(
        max_examples=PIECE_STEPS // arguments.length,
        stateful_step_count=arguments.length,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=phases,
    )
    number, started = arguments.seed, time.process_time()
    while Rollouts.steps < arguments.steps:
        print(f"seed {number}, {Rollouts.steps} steps so far", file=sys.stderr, flush=True)
        run_state_machine_as_test(seed(number)(Rollouts), settings=how)
        number += 1
    seconds = round(time.process_time() - started)
    print(json.dumps({"steps": Rollouts.steps, "seeds": [arguments.seed, number - 1], "cpu_seconds": seconds}))


if __name__ == "__main__":
    main()
