"""An environment without network: wheels and the Kubernetes binary from a bundle (`make bundle`), the rest, torch
above all, from the Python that runs this.

The environment is a virtual one whose path ends with the outer Python's packages, so everything that uses an
environment works with it as it stands.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import sys
import sysconfig
import time
from pathlib import Path

from setup.steps import SetupError, elapsed, run_step, say

VARIABLE = "TANDEM_BUNDLE"
KUBE_FILE, WHEELS = "localkube.xz", "wheels"


def chosen_bundle() -> Path | None:
    """The folder that the environment variable names."""
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None


def bundle_key(bundle: Path, python: str) -> str:
    """Twelve hex digits that change with what is in the bundle."""
    files = sorted((path.name, path.stat().st_size) for path in bundle.rglob("*") if path.is_file())
    return hashlib.sha256(repr((python, sys.prefix, files)).encode()).hexdigest()[:12]


def unpack(bundle: Path, directory: Path) -> None:
    """Makes the environment in `directory`. Raises SetupError."""
    start = time.monotonic()
    wheels = sorted((bundle / WHEELS).glob("*.whl"))
    if not wheels or not (bundle / KUBE_FILE).is_file():
        raise SetupError(f"{bundle} is no bundle: it lacks {KUBE_FILE} or {WHEELS}/*.whl; `make bundle` makes one")
    shutil.rmtree(directory, ignore_errors=True)
    log = directory.with_suffix(".log")
    say(f"environment in {directory} from {bundle} and {sys.prefix} (some 20 s)")
    venv = [sys.executable, "-m", "venv", "--without-pip", str(directory)]
    run_step(venv, log, lambda _: None, lambda: "python -m venv")
    site_packages = next((directory / "lib").glob("python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "--no-input"]
    names = [str(wheel) for wheel in wheels]
    run_step([*pip, "--target", str(site_packages), *names], log, lambda _: None, lambda: "pip install")
    outer = dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib"))
    lines = [f"import site; site.addsitedir({folder!r})" for folder in outer]
    (site_packages / "outer.pth").write_text("\n".join(lines) + "\n")
    kube = directory / "localkube"
    with lzma.open(bundle / KUBE_FILE) as source, kube.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    kube.chmod(0o755)
    say(f"environment ready after {elapsed(start)}")
