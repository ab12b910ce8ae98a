"""How long a worker takes from its start to its first token, with a checkpoint of 8B on local disk.

    python benchmarks/h200_startup.py --folder DIR --out benchmarks/results/h200-startup.json

Writes a pair in the shape of Llama-3.1-8B with its EAGLE-3 drafter, random weights in bfloat16 (17 GB), and starts
`tandem-worker serve --device cuda` on it: first with no compiled kernels, then with those of the first start. The files
were written just before, so they lie in the page cache. The first token is that of a request over HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import torch

from random_checkpoint import write_drafter, write_target

SIZES = {"hidden_size": 4096, "intermediate_size": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128}
VOCABULARY = {"vocab_size": 128256}
LIMIT_SECONDS = 240


def started(folder: Path, kernels: Path) -> dict[str, Any]:
    """Seconds from the start of the process to being ready and to the first token, and what its log says."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tandem_worker", "serve", "--device=cuda", "--model=random", "--draft-length=5"]
    command += [f"--target={folder / 'target'}", f"--drafter={folder / 'drafter'}", f"--port={port}"]
    command += ["--host=127.0.0.1", "--prefill-chunk=2048", "--drain-seconds=0"]
    log = folder / "worker.log"
    start = time.monotonic()
    with log.open("wb") as sink:
        worker = subprocess.Popen(command, stderr=sink, env=os.environ | {"TRITON_CACHE_DIR": str(kernels)})
    try:
        while not _answers(f"http://127.0.0.1:{port}/readyz", None):
            if worker.poll() is not None or time.monotonic() - start > LIMIT_SECONDS:
                raise SystemExit(f"the worker did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
        ready = time.monotonic() - start
        asked = {"model": "random", "prompt": "Q: Which", "max_tokens": 1, "temperature": 0}
        assert _answers(f"http://127.0.0.1:{port}/v1/completions", json.dumps(asked).encode())
        first = time.monotonic() - start
    finally:
        worker.terminate()
        worker.wait()
    lines = [line for line in log.read_text().splitlines() if re.search(r"\d s$", line)]
    return {"ready_seconds": round(ready, 2), "first_token_seconds": round(first, 2), "log": lines}


def _answers(url: str, body: bytes | None) -> bool:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    begun = time.monotonic()
    shape = {**SIZES, **VOCABULARY, "layers": 32, "max_position_embeddings": 8192}
    target = write_target(options.folder / "target", shape, "cuda")
    write_drafter(options.folder / "drafter", target, {**SIZES, **VOCABULARY, "draft_vocab_size": 32000}, "cuda")
    torch.cuda.empty_cache()
    size_bytes = sum(path.stat().st_size for path in options.folder.rglob("*.safetensors"))
    report: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "commit": options.commit,
        "checkpoint_bytes": size_bytes,
        "seconds_to_write": round(time.monotonic() - begun, 1),
    }
    kernels = options.folder / "kernels"
    shutil.rmtree(kernels, ignore_errors=True)
    for name in ("cold_kernels", "warm_kernels"):
        report[name] = started(options.folder, kernels)
        print(json.dumps({name: report[name]}), flush=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
