"""How the operator's cost grows with the number of objects: 10, 100 and 1,000, each with workers that answer.

A real API server, and a hollow node (hack/hollow) that answers for every pod: one process serves `/status` and
`/metrics` of them all. The operator runs as it is deployed, but as a process of this machine. Measured of it:

    change      from the answer to a changed spec until the child carries the change, as a watch tells
    requests    what it asked the API server for in steady state, by the audit log, per object and minute
    memory, CPU of its process, from /proc
    loop lag    how late a timer of its event loop fires, looked at ten times a second, from its own /metrics, which are
                read every 15 s as a Prometheus would
    turns       of its event loop, the longest, by the clock and by the CPU time of the thread (operator_loop.py)

Where the kernel shares its cores among sessions (sched_autogroup) and the caller is root, the operator's gets a greater
share, else what it waits for would be other work of the machine. `make bench-operator`; COUNTS="10 100" for a look.
Takes about eight minutes for each thousand objects.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp

import operator_loop
from crashtest.lab import GROUPS, Lab, hollow_spec
from localcluster import Cluster
from localcluster.build import KUBERNETES_VERSION
from tandem_operator import names
from tandem_operator.api import GROUP, KIND, PLURAL, VERSION

INTERVAL_SECONDS, CHANGES, WARM_SECONDS, SCRAPE_SECONDS = 30, 100, 60, 15
SHARE = -10  # of the operator's session, as a nice value
NAMESPACE = "scale"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    objects: int
    install_seconds: float  # from the first object to the last that serves
    change_p50_seconds: float
    change_p99_seconds: float
    requests_per_object_and_minute: float
    cpu_cores: float
    rss_mib: float
    loop_lag_p50_seconds: float
    loop_lag_p99_seconds: float
    passes_per_second: float
    turns: dict[str, Any]


def spec(replicas: int = 1) -> dict[str, Any]:
    made = hollow_spec(replicas=replicas, requests_per_second=0.5)
    made["rollout"] = {"steps": [], "maxSurge": 1, "analysis": {"intervalSeconds": INTERVAL_SECONDS}}
    return made


class Bench:
    def __init__(self, lab: Lab, port: int, process: subprocess.Popen[bytes], turns: Path) -> None:
        self.lab, self.port, self.process, self._turns_at = lab, port, process, turns

    async def apply(self, name: str, replicas: int = 1) -> None:
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "spec": spec(replicas)}
        path = f"/{GROUPS[PLURAL]}/namespaces/{NAMESPACE}/{PLURAL}/{name}?fieldManager=user&force=true"
        await self.lab.ask("PATCH", path, body, "application/apply-patch+yaml")

    async def install(self, first: int, last: int) -> float:
        """Objects `first` up to `last`; -> seconds until all serve."""
        started = time.monotonic()
        for number in range(first, last):
            await self.apply(f"pair-{number}")
        while True:
            if (code := self.process.poll()) is not None:
                raise SystemExit(f"the operator has ended with {code}: {self.lab.cluster.logs_dir / 'operator.log'}")
            found = await self.lab.ask("GET", f"/{GROUPS[PLURAL]}/namespaces/{NAMESPACE}/{PLURAL}")
            ready = sum(_ready(item) for item in found["items"])
            print(f"  {ready} of {last} serve", file=sys.stderr, flush=True)
            if ready >= last:
                return time.monotonic() - started
            await asyncio.sleep(2)

    async def changes(self, objects: int) -> list[float]:
        """Seconds from a changed spec to the changed child, for objects all over the range, one after the other."""
        waiting: dict[str, asyncio.Future[float]] = {}

        async def watch(opened: asyncio.Event) -> None:
            path = f"/{GROUPS['deployments']}/namespaces/{NAMESPACE}/deployments?watch=true"
            url, trusted = self.lab.server + path, self.lab.trusted
            limits = aiohttp.ClientTimeout(total=None)
            async with self.lab.http.get(url, ssl=trusted, timeout=limits, read_bufsize=2**22) as answer:
                opened.set()
                async for line in answer.content:
                    item = json.loads(line)["object"]
                    owner = item["metadata"].get("labels", {}).get(names.NAME, "")
                    future = waiting.get(owner)
                    if future and not future.done() and item["spec"]["replicas"] == 2:
                        future.set_result(time.monotonic())

        opened = asyncio.Event()
        watching = asyncio.create_task(watch(opened))
        await opened.wait()
        await asyncio.sleep(1)
        seconds = []
        step = max(1, objects // CHANGES)
        for number in range(0, objects, step):
            name = f"pair-{number}"
            waiting[name] = asyncio.get_running_loop().create_future()
            await self.apply(name, replicas=2)
            asked = time.monotonic()
            seconds.append(max(0.0, await asyncio.wait_for(waiting[name], 60) - asked))
            await asyncio.sleep(0.05)
        watching.cancel()
        for number in range(0, objects, step):
            await self.apply(f"pair-{number}", replicas=1)
        return seconds

    async def steady(self, objects: int, seconds: float) -> dict[str, Any]:
        """Nobody does anything for `seconds`."""
        await self._turns()
        lags, passes = await self._histogram("tandem_operator_loop_lag_seconds"), await self._passes()
        cpu, asked, began = self._cpu_seconds(), self._requests(), time.monotonic()
        rss, scraped = 0.0, began
        while time.monotonic() - began < seconds:
            await asyncio.sleep(1)
            rss = max(rss, self._rss_mib())
            if time.monotonic() - scraped > SCRAPE_SECONDS:
                scraped = time.monotonic()
                await self._metrics()
        took = time.monotonic() - began
        later = await self._histogram("tandem_operator_loop_lag_seconds")
        moved = {bound: later[bound] - lags.get(bound, 0) for bound in later}
        return {
            "requests_per_object_and_minute": (self._requests() - asked) / objects / took * 60,
            "cpu_cores": (self._cpu_seconds() - cpu) / took,
            "rss_mib": rss,
            "loop_lag_p50_seconds": _quantile(moved, 0.5),
            "loop_lag_p99_seconds": _quantile(moved, 0.99),
            "passes_per_second": (await self._passes() - passes) / took,
            "turns": await self._turns(),
        }

    async def _turns(self) -> dict[str, Any]:
        """Since the last call."""
        self._turns_at.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        for _ in range(600):
            if self._turns_at.exists():
                break
            await asyncio.sleep(0.1)
        said: dict[str, Any] = json.loads(self._turns_at.read_text())
        return said

    async def _metrics(self) -> str:
        async with self.lab.http.get(f"http://127.0.0.1:{self.port}/metrics") as answer:
            return await answer.text()

    async def _histogram(self, name: str) -> dict[float, float]:
        """Upper bound -> cumulative count."""
        found = re.findall(rf'^{name}_bucket{{le="([^"]+)"}} (\S+)$', await self._metrics(), re.MULTILINE)
        return {float(bound): float(count) for bound, count in found}

    async def _passes(self) -> float:
        found = re.search(r"^tandem_operator_reconcile_seconds_count (\S+)$", await self._metrics(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def _rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) / 1024 if found else 0.0

    def _requests(self) -> int:
        """Of the operator, whose user agent tells it from this script; watches count once, when they end."""
        log = (self.lab.cluster.logs_dir / "audit.log").read_text()
        return log.count(f'"userAgent":"{names.FIELD_MANAGER}"') + log.count('"userAgent":"kopf')


def prefer(process: int) -> str:
    """Give its session a greater share of the cores, if that can be; -> what came of it."""
    share = Path(f"/proc/{process}/autogroup")
    try:
        share.write_text(str(SHARE))
        return share.read_text().strip()
    except OSError as error:
        return f"no greater share of the cores: {error.strerror}"


def _ready(item: dict[str, Any]) -> bool:
    conditions = item.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _quantile(cumulative: dict[float, float], share: float) -> float:
    """The upper bound of the bucket that holds it: never too small."""
    total = max(cumulative.values(), default=0.0)
    return next((bound for bound in sorted(cumulative) if cumulative[bound] >= share * total), float("inf"))


async def measure(lab: Lab, counts: Sequence[int], steady_seconds: float) -> list[Row]:
    await lab.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [sys.executable, operator_loop.__file__, "--worker-image=worker", "--allowed-host-path=/models"]
    command += ["--http-host=127.0.0.1", f"--http-port={port}", f"--lease-namespace={NAMESPACE}"]
    rows = []
    with (lab.cluster.logs_dir / "operator.log").open("wb") as log:
        turns = lab.cluster.logs_dir / "turns.json"
        environment = os.environ | {"KUBECONFIG": str(lab.cluster.kubeconfig), "LOOP_OUT": str(turns)}
        process = await asyncio.to_thread(
            subprocess.Popen, command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        prefer(process.pid)
        bench = Bench(lab, port, process, turns)
        try:
            before = 0
            for objects in counts:
                installed = await bench.install(before, objects)
                before = objects
                await asyncio.sleep(WARM_SECONDS)
                steady = await bench.steady(objects, steady_seconds)
                changes = sorted(await bench.changes(objects))
                figures: dict[str, Any] = {k: round(v, 4) if isinstance(v, float) else v for k, v in steady.items()}
                rows.append(
                    Row(
                        objects=objects,
                        install_seconds=round(installed, 1),
                        change_p50_seconds=round(statistics.median(changes), 3),
                        change_p99_seconds=round(changes[min(len(changes) - 1, int(0.99 * len(changes)))], 3),
                        **figures,
                    )
                )
                print(json.dumps(asdict(rows[-1])), flush=True)
        finally:
            process.kill()
            process.wait()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--steady-seconds", type=float, default=120)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    async def run(cluster: Cluster) -> list[Row]:
        async with Lab.of(cluster) as lab:
            return await measure(lab, arguments.counts, arguments.steady_seconds)

    with Cluster.start(name=f"scale-{os.getpid()}", hollow=True) as cluster:
        rows = asyncio.run(run(cluster))
    report = {
        "command": "python benchmarks/operator_scale.py " + " ".join(map(str, arguments.counts)),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, shared with API server, etcd and hollow node",
        "operator_share": f"session with nice {SHARE} (sched_autogroup), where it can be set",
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            "api server": KUBERNETES_VERSION,
            **{name: version(name) for name in ("kopf", "kubernetes", "aiohttp", "pydantic")},
        },
        "interval_seconds": INTERVAL_SECONDS,
        "steady_seconds": arguments.steady_seconds,
        "rows": [asdict(row) for row in rows],
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
