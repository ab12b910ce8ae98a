"""`make bench-static`: the static verdict, cold process, on an 8B pair and on one of a trillion parameters.

Each figure is the best of several fresh processes, as a user starts them: interpreter, imports, reading, verdict,
printing. Wall time needs an idle machine; processor time is given beside it, and how busy the machine was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import static_pairs

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "static.json"
ENGINE = "sglang@0.5.23"


class Case(NamedTuple):
    name: str
    write_target: Callable[[Path], int]
    write_drafter: Callable[[Path], int]
    seconds: float  # the bar
    peak_mib: float


CASES = (
    Case("llama-3.1-8b", static_pairs.write_llama_8b, static_pairs.write_llama_8b_drafter, 0.25, 200),
    Case("kimi-k2.5", static_pairs.write_kimi, static_pairs.write_kimi_drafter, 1.0, 200),
)


class Run(NamedTuple):
    wall_seconds: float
    cpu_seconds: float
    peak_mib: float
    verdict: str


def main() -> int:
    """Exit status 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="fresh processes per pair (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="write the pairs here and use them again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = [measure(case, options.keep or Path(scratch), options.runs) for case in CASES]
    machine = {"cores": os.cpu_count(), "processor": _processor(), "python": platform.python_version()}
    record = {"machine": machine, "load_average": os.getloadavg()[0], "engine": ENGINE, "pairs": results}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(result["met"] for result in results) else 1


def measure(case: Case, folder: Path, runs: int) -> dict[str, Any]:
    target, drafter = folder / f"{case.name}-target", folder / f"{case.name}-drafter"
    tensors = 0
    for place, write in ((target, case.write_target), (drafter, case.write_drafter)):
        if not place.exists():
            print(f"writing {place}", flush=True)
            tensors += write(place)
    command = [sys.executable, "-m", "tandem_worker", "check", str(target), str(drafter), "--engine", ENGINE]
    seen = [fresh([*command, "--format", "json"]) for _ in range(runs)]
    best = seen[0]._replace(
        wall_seconds=min(run.wall_seconds for run in seen),
        cpu_seconds=min(run.cpu_seconds for run in seen),
        peak_mib=max(run.peak_mib for run in seen),
    )
    met = best.wall_seconds < case.seconds and best.peak_mib < case.peak_mib
    print(
        f"{case.name}: {best.verdict} in {best.wall_seconds:.3f} s ({best.cpu_seconds:.3f} s of processor time), "
        f"{best.peak_mib:.0f} MiB; bars {case.seconds} s, {case.peak_mib:.0f} MiB: {'met' if met else 'missed'}",
        flush=True,
    )
    return {
        "pair": case.name,
        **best._asdict(),
        "bar_seconds": case.seconds,
        "bar_mib": case.peak_mib,
        "met": met,
        "imports": imports(),
        "profile": profile(target, drafter),
    }


def fresh(command: list[str]) -> Run:
    """One process, from fork to exit."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=_environment())
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, json.loads(output)["verdict"])


def imports(count: int = 10) -> dict[str, float]:
    """Milliseconds of the modules whose import takes longest, with what they import."""
    code = "import tandem_worker.check, tandem_worker.formats"
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True, env=_environment())
    lines = [line.split("|") for line in done.stderr.splitlines() if line.count("|") == 2 and "cumulative" not in line]
    took = {name.strip(): int(cumulative) / 1000 for _, cumulative, name in lines}
    return dict(sorted(took.items(), key=lambda item: -item[1])[:count])


def profile(target: Path, drafter: Path, count: int = 15) -> dict[str, float]:
    """Seconds inside of functions themselves, under the profiler, which makes calls dearer than they are."""
    code = (
        "import cProfile, pstats, sys, io\n"
        "from tandem_worker.check import check\n"
        "sys.stdout, out = io.StringIO(), sys.stdout\n"
        "run = cProfile.Profile()\n"
        f"run.runcall(check, [{str(target)!r}, {str(drafter)!r}, '--engine', {ENGINE!r}, '--format', 'json'])\n"
        "rows = sorted(pstats.Stats(run).stats.items(), key=lambda row: -row[1][2])\n"
        f"for (file, line, name), row in rows[:{count}]:\n"
        "    print(f'{file.rpartition(chr(47))[2]}:{line} {name}\\t{row[2]:.4f}', file=out)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=_environment()
    )
    return {name: float(seconds) for name, seconds in (line.split("\t") for line in done.stdout.splitlines())}


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("operator", "worker"))}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    sys.exit(main())
