"""Builds the images with buildah: `python -m images.build operator worker`.

Images lie in buildah's own store, where layers that did not change are found again. A base can be made here, of this
machine's Debian, where no registry is at hand.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.once import ToolError

ROOT = Path(__file__).resolve().parents[2]
LOCAL_BASE = "localhost/tandem-base"
_TRUSTED = Path("/etc/ssl/certs/ca-certificates.crt")
_IN_BASE = "ca-certificates,python3,python3-venv"


def recipe(half: str) -> Path:
    return ROOT / f"Containerfile.{half}"


def build(file: Path, base: str = "", revision: str = "", tag: str = "", **arguments: str) -> str:
    """Build a Containerfile, on `base` if one is given; -> the image's id. Raises ToolError."""
    given = arguments | ({"BASE": base} if base else {}) | ({"REVISION": revision} if revision else {})
    with tempfile.NamedTemporaryFile("r") as identity:
        _run(
            # A container in a container, as CI often is, has no rights to make more than a chroot.
            *("buildah", "build", "--isolation=chroot", "--layers", f"--iidfile={identity.name}"),
            *(f"--build-arg={name}={value}" for name, value in given.items()),
            # Whom this machine trusts, the build trusts: a mirror may have a certificate of the house.
            *([f"--volume={_TRUSTED}:{_TRUSTED}:ro"] if _TRUSTED.exists() else []),
            *([f"--tag={tag}"] if tag else []),
            *(f"--file={file}", str(ROOT)),
        )
        return identity.read().strip().removeprefix("sha256:")


def local_base() -> str:
    """Name of a base made of this machine's Debian release, made if it is missing (a minute). Raises ToolError."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    name = f"{LOCAL_BASE}:{release}"
    if not _output("buildah", "images", "--quiet", "--filter", f"reference={name}"):
        print(f"making {name} with debootstrap (usually a minute, only once)", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            _run("debootstrap", "--variant=minbase", f"--include={_IN_BASE}", release, folder)
            for cache in ("var/cache/apt", "var/lib/apt/lists"):
                _run("find", f"{folder}/{cache}", "-type", "f", "-delete")
            with _container("scratch") as container:
                _run("buildah", "add", "--quiet", container, folder, "/")
                _run("buildah", "commit", "--quiet", container, name)
    return name


def python_of(image: str) -> str:
    """`3.11`. Raises ToolError."""
    script = "import sys; print(*sys.version_info[:2], sep='.')"
    with _container(image) as container:
        return _output("buildah", "run", "--isolation=chroot", container, "python3", "-c", script)


def archive(identity: str, name: str, file: Path) -> None:
    """Write an image to a docker archive, as `name`. Raises ToolError."""
    partial = file.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    _run("buildah", "push", "--quiet", identity, f"docker-archive:{partial}:{name}")
    partial.replace(file)


@contextmanager
def _container(base: str) -> Iterator[str]:
    container = _output("buildah", "from", base)
    try:
        yield container
    finally:
        _run("buildah", "rm", container)


def _run(*command: str) -> None:
    _output(*command)


def _output(*command: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ToolError(f"there is no {command[0]} here: sudo apt-get install buildah debootstrap") from error
    if result.returncode:
        said = (result.stdout + result.stderr).strip().splitlines()[-20:]
        raise ToolError("\n  ".join([f"`{' '.join(command[:2])}` failed:", *said]))
    return result.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("halves", nargs="+", choices=("operator", "worker"))
    parser.add_argument("--base", default="", help="another base; `local` makes one of this machine's Debian")
    given = parser.parse_args(arguments)
    base = local_base() if given.base == "local" else given.base
    revision = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    for half in given.halves:
        print(build(recipe(half), base, revision, tag=f"localhost/tandem-{half}:dev"), f"localhost/tandem-{half}:dev")


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(f"error: {error}")
