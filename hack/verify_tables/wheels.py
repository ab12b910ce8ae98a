"""Wheels of the engines and of speculators, fetched once; only their Python sources are kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from setup.requirements import cache_dir

PARTS = {
    "sglang": ("sglang/srt/",),
    "speculators": ("speculators/", "speculators-"),
    "vllm": (
        "vllm/config/",
        "vllm/model_executor/model_loader/",
        "vllm/model_executor/models/",
        "vllm/models/",
        "vllm/transformers_utils/",
        "vllm/v1/spec_decode/",
        "vllm/v1/worker/",
    ),
}


class NotServed(Exception):
    """The package index has no wheel of this version for this machine."""


def sources(engine: str, version: str) -> Path:
    """Folder with the sources of one version. Raises NotServed."""
    folder = cache_dir() / "verify-tables" / f"{engine}-{version}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        print(f"  fetching {engine} {version}", file=sys.stderr, flush=True)
        wheel = _download(engine, version, Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if name.startswith(PARTS[engine])]
            names = [name for name in wanted if name.endswith((".py", ".dist-info/METADATA"))]
            archive.extractall(unpacked, names)
        shutil.move(unpacked, folder)
    return folder


def _download(engine: str, version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", str(folder), f"{engine}=={version}"], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise NotServed((done.stderr.strip().splitlines() or ["no wheel"])[-1])
    return wheels[0]
