"""What comes out of Debian's packages: unpacked in the user's cache without root, or, by root, installed.

apt verifies packages by its signed lists; for what is unpacked these are kept in the cache as well, so that neither
the machine's own lists nor the right to write them is needed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.once import ToolError, cache_directory, one_at_a_time


def unpacked(name: str, packages: Sequence[str], about: str) -> Path:
    """A folder `name` of the cache with the files of `packages`, as this machine's Debian has them.

    Their dependencies are left to the machine. `about` is for people. Raises ToolError.
    """
    root = cache_directory() / name / "root"
    with one_at_a_time(root, f"another process is fetching {about}; waiting for it") as missing:
        if missing:
            print(f"fetching Debian's packages {' '.join(packages)}: {about}", file=sys.stderr)
            _unpack(root, packages)
    return root


def install(programs: Mapping[str, str]) -> None:
    """Install the packages (values) of those programs (keys) that are not on PATH, and say so. Raises ToolError."""
    packages = sorted({package for program, package in programs.items() if not shutil.which(program)})
    if not packages:
        return
    print(f"installing Debian's packages {' '.join(packages)}", file=sys.stderr)
    _require_debian()
    _run(["apt-get", "--quiet=2", "update"])
    _run(["apt-get", "--quiet=2", "install", "--yes", "--no-install-recommends", *packages])


def _unpack(root: Path, packages: Sequence[str]) -> None:
    _require_debian()
    apt_home, partial = root.with_name("apt"), root.with_name("partial")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt_home / folder).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    options = {
        "Dir::State": apt_home / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": apt_home / "cache",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "--quiet=2", *(f"--option={key}={value}" for key, value in options.items())]
    _run([*apt, "update"])
    _run([*apt, "download", *packages], cwd=apt_home)
    for package in sorted(apt_home.glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(package), str(partial)])
    shutil.rmtree(apt_home)
    partial.rename(root)


def _require_debian() -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise ToolError("this is no Debian: there is no apt-get or dpkg-deb")


def _run(command: list[str], cwd: Path | None = None) -> None:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ToolError(f"`{' '.join(command[:1] + command[-2:])}` failed: {result.stderr.strip()}")
