"""`python -m bundle OUT`: the Kubernetes binary, compressed, and wheels of what the GPU machine lacks."""

from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from bundle.needed import needed, read_names
from localcluster.build import KUBE
from setup.bundle import KUBE_FILE, WHEELS
from setup.requirements import Requirements
from tools.once import ToolError

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 60 << 20
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 26, 27, 28, 31, 34)] + ["manylinux2014_x86_64"]
"""pip matches each name exactly, so they are all named."""


class BundleError(ToolError):
    pass


def bundle(
    out: Annotated[Path, typer.Argument(help="Folder to write; what is in it is replaced.")],
    has: Annotated[Path, typer.Option(help="Names of packages that the machine has.")] = ROOT / "hack/bundle/has.txt",
    python: Annotated[str, typer.Option(help="Version of the machine's Python.")] = "3.12",
) -> None:
    """Write a bundle for an x86-64 machine."""
    out.mkdir(parents=True, exist_ok=True)
    _compress(KUBE.build(), out / KUBE_FILE)
    requirements = Requirements.read(ROOT)
    wanted = needed(requirements.constraints, python, read_names(has.read_text()))
    pins = [pin for pin in requirements.constraints if read_names(pin.partition("==")[0]) <= wanted]
    _download(pins, python, out / WHEELS)
    size_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size_bytes / 2**20:.1f} MiB, the Kubernetes binary and {len(pins)} wheels")
    if size_bytes > LIMIT_BYTES:
        raise BundleError(f"that is more than {LIMIT_BYTES >> 20} MiB: name in {has} what the machine has")


def _compress(binary: Path, packed: Path) -> None:
    if packed.exists() and packed.stat().st_mtime > binary.stat().st_mtime:
        return
    print("compressing the Kubernetes binary (a minute or two)", flush=True)
    partial = packed.with_suffix(".partial")
    with binary.open("rb") as source, lzma.open(partial, "wb", preset=6) as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    partial.replace(packed)


def _download(pins: list[str], python: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    machine = [f"--python-version={python}", "--implementation=cp", *(f"--platform={name}" for name in PLATFORMS)]
    if subprocess.run([*pip, *machine, *pins], check=False).returncode:
        raise BundleError("pip could not fetch the wheels (see above)")


if __name__ == "__main__":
    try:
        typer.run(bundle)
    except ToolError as error:
        sys.exit(f"error: {error}")
