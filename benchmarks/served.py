"""A worker as a process of its own, and what its `/metrics` say."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tandem_worker.contract import Metric

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
START_SECONDS = 300


@dataclass(frozen=True)
class Served:
    address: str
    pid: int

    def read(self) -> Readings:
        with urllib.request.urlopen(f"{self.address}/metrics") as answer:
            at, text = time.perf_counter(), answer.read().decode()
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        values = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
        return Readings(at, cpu_seconds(self.pid), values)


@dataclass(frozen=True)
class Readings:
    at: float  # time.perf_counter()
    cpu_seconds: float  # of the worker, since it started
    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def total(self, name: str, **labels: str) -> float:
        """Over all samples with these labels."""
        return sum(v for (n, found), v in self.values.items() if n == name and labels.items() <= dict(found).items())

    def ended(self) -> dict[str, int]:
        """Choices of requests that the worker has ended, by outcome."""
        outcomes = ("finished", "cancelled", "failed")
        return {outcome: int(self.total(Metric.REQUESTS, outcome=outcome)) for outcome in outcomes}


def chattable(target: Path, folder: Path) -> Path:
    """The target, by links, with a chat template if it has none."""
    if (target / "chat_template.jinja").exists() or '"chat_template"' in _text(target / "tokenizer_config.json"):
        return target
    copy = folder / "target"
    copy.mkdir()
    for file in target.iterdir():
        (copy / file.name).symlink_to(file.resolve())
    (copy / "chat_template.jinja").write_text(TEMPLATE)
    return copy


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@contextmanager
def served(target: Path, drafter: Path, log: Path, *arguments: str) -> Iterator[Served]:
    """`tandem-worker serve --model=it` with these, once it answers. Raises SystemExit with its log when it does not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tandem_worker", "serve", f"--target={target}", f"--drafter={drafter}"]
    command += ["--model=it", "--host=127.0.0.1", f"--port={port}", "--drain-seconds=0", *arguments]
    with log.open("wb") as sink, subprocess.Popen(command, stderr=sink) as worker:
        started, address = time.monotonic(), f"http://127.0.0.1:{port}"
        try:
            while not _ready(address):
                if worker.poll() is not None or time.monotonic() - started > START_SECONDS:
                    raise SystemExit(f"the worker did not start:\n{log.read_text()[-3000:]}")
                time.sleep(0.1)
            yield Served(address, worker.pid)
        finally:
            worker.terminate()


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def gpu_mib() -> float | None:
    """Memory in use on the first GPU, by all; None without one."""
    if not shutil.which("nvidia-smi"):
        return None
    query: Sequence[str] = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    return float(shown[0]) if shown else None
