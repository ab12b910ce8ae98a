"""Makes the virtual environment, once.

A marker file, written last, says that an environment is whole. One without it is what an interrupted set-up left: it
is made anew, and pip's own cache gives back what was fetched before. A lock keeps two set-ups apart.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setup.bundle import chosen_bundle, unpack
from setup.progress import PipProgress
from setup.requirements import CONSTRAINTS, Requirements, cache_dir, environment_dir
from setup.steps import SetupError, elapsed, run_step, say

MARKER = "tandem-complete"
NEEDED_BYTES = 9_000_000_000  # 5.9 GB environment, 2.5 GB of packages in pip's cache, and some air
UNUSED_SECONDS = 14 * 86400


def ensure_environment(root: Path) -> Path:
    """The environment of the checkout at `root`, made if need be. Raises SetupError."""
    directory = environment_dir(root)
    marker = directory / MARKER
    if marker.exists():
        marker.touch()
        return directory
    bundle = chosen_bundle()
    if not bundle:
        check_machine()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.with_suffix(".lock")):
        if not marker.exists():
            remove_unused(directory.parent)
            unpack(bundle, directory) if bundle else make_environment(root, directory)
            marker.touch()
    return directory


def remove_unused(cache: Path) -> None:
    """Environments that no checkout asked for in a long time: every change of a dependency makes another one."""
    for marker in cache.glob(f"venv-*/{MARKER}"):
        if time.time() - marker.stat().st_mtime > UNUSED_SECONDS:
            say(f"removing {marker.parent}, unused for {UNUSED_SECONDS // 86400} days")
            marker.unlink()  # first: a folder that is half gone must not count as whole
            shutil.rmtree(marker.parent)


def check_machine() -> None:
    """Raises SetupError that names what only root can install and the command that installs it."""
    if importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            f"{sys.executable} cannot make virtual environments (no ensurepip): sudo apt-get install python3-venv"
        )
    existing = next(path for path in (cache_dir(), *cache_dir().parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < NEEDED_BYTES:
        raise SetupError(
            f"{existing} has {free_bytes / 1e9:.1f} GB free, {NEEDED_BYTES / 1e9:.0f} GB are needed: "
            "make room or set XDG_CACHE_HOME to a larger disk"
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an advisory lock on `path`; the kernel lets go of it when the holder dies."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            say(f"waiting for the set-up that process {file.read() or '?'} is doing")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def make_environment(root: Path, directory: Path) -> None:
    requirements = Requirements.read(root)
    start = time.monotonic()
    if directory.exists():
        say("an earlier set-up was interrupted; starting again")
        shutil.rmtree(directory)
    log = directory.with_suffix(".log")
    log.unlink(missing_ok=True)
    say(f"virtual environment in {directory} (Python {sys.version.split()[0]}, some 10 s)")
    run_step([sys.executable, "-m", "venv", str(directory)], log, lambda _: None, lambda: "python -m venv")
    say(f"{len(requirements.constraints)} packages, torch and CUDA among them: 2.5 GB to fetch, 6 GB on disk;")
    say("usually 2 to 5 minutes, and only once")
    progress = PipProgress(expected=len(requirements.constraints))
    site_packages = next((directory / "lib").glob("python*/site-packages"))
    installed_before = _count_installed(site_packages)
    try:
        run_step(
            pip_install(directory, root / CONSTRAINTS, requirements),
            log,
            progress.feed,
            lambda: progress.describe(lambda: _count_installed(site_packages) - installed_before),
        )
    except SetupError as error:
        if shutil.which("cc") is None:
            raise SetupError(
                f"{error}\n  If a package had to be compiled, a C compiler is missing: "
                "sudo apt-get install build-essential"
            ) from None
        raise
    say(f"environment ready after {elapsed(start)}")


def pip_install(directory: Path, constraints: Path, requirements: Requirements) -> list[str]:
    """`--no-compile`: byte code is written when a module is first used; most of these files never are."""
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--no-compile", "--no-input"]
    quiet = ["--disable-pip-version-check", "--progress-bar", "off"]
    return [*pip, *quiet, "--constraint", str(constraints), *requirements.direct]


def _count_installed(site_packages: Path) -> int:
    return sum(1 for _ in site_packages.glob("*.dist-info"))
