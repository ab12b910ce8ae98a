"""prometheus and promtool: those on PATH, else out of Debian's package, unpacked in the user's cache without root.

apt verifies the package by its signed lists; these are kept in the cache as well, so that neither the machine's own
lists nor the right to write them is needed. Building Prometheus from its module would take a hundred times as long.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.once import ToolError, cache_directory, one_at_a_time

_INSTEAD = "install Prometheus 2.42 or newer so that prometheus and promtool are on PATH"


def prometheus() -> Path:
    """Raises ToolError."""
    return _program("prometheus")


def promtool() -> Path:
    """Raises ToolError."""
    return _program("promtool")


def _program(name: str) -> Path:
    if on_path := shutil.which(name):
        return Path(on_path)
    root = cache_directory() / "prometheus" / "root"
    with one_at_a_time(root, "another process is fetching Prometheus; waiting for it") as missing:
        if missing:
            _unpack(root)
    return root / "usr" / "bin" / name


def _unpack(root: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise ToolError(f"Prometheus comes from Debian's package, and this is no Debian: {_INSTEAD}")
    print("fetching Debian's package of Prometheus (20 MB, usually half a minute, only once)", file=sys.stderr)
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
    _run([*apt, "download", "prometheus"], cwd=apt_home)
    (package,) = apt_home.glob("prometheus_*.deb")
    _run(["dpkg-deb", "--extract", str(package), str(partial)])
    shutil.rmtree(apt_home)
    partial.rename(root)


def _run(command: list[str], cwd: Path | None = None) -> None:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ToolError(f"`{' '.join(command[:1] + command[-2:])}` failed: {result.stderr.strip()}; or {_INSTEAD}")
