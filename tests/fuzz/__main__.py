"""`make fuzz`: runs each target in pieces and says how many inputs went without a crash, a hang or too much memory.

Finds (crashes and the growing corpus) go to build/fuzz; the committed corpus is only read.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
FOUND = Path("build/fuzz")
RUNS = 1_200_000
SHARES = {"header": 0.5, "json": 0.4, "config": 0.1}  # a config is judged whole, which takes longer
PIECE = 100_000
LIMITS = ["-timeout=20", "-rss_limit_mb=700", "-max_len=4096", "-print_final_stats=1", "-verbosity=0"]


def main(runs: int) -> int:
    done = 0
    for target, share in SHARES.items():
        left, began = int(runs * share), time.monotonic()
        goal = left
        while left > 0:
            count = _piece(target, min(left, PIECE))
            if count < 0:
                print(f"{target}: failed; the input is in {FOUND / target}", flush=True)
                return 1
            left -= count
        seconds = time.monotonic() - began
        done += goal
        print(f"{target}: {goal} inputs in {seconds:.0f} s, no failure", flush=True)
    print(f"{done} inputs, no crash, no hang, no read outside of a file, memory below the limit")
    return 0


def _piece(target: str, runs: int) -> int:
    """How many inputs were tried; -1 after a failure, whose report is printed."""
    corpus = FOUND / target
    corpus.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fuzz.run", target, f"-runs={runs}", *LIMITS, f"-artifact_prefix={corpus}/"]
    seeds = HERE / "corpus" / ("header" if target == "header" else "config")
    command += [f"-dict={HERE / 'json.dict'}", str(corpus), str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    if done.returncode or executed is None:
        print(done.stdout[-2000:], done.stderr[-4000:])
        return -1
    return int(executed[1])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else RUNS))
