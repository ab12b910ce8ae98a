"""What a real node needs, made before the tests that use one: `python -m images.node` prints it for TANDEM_E2E.

The worker's image comes from its own recipe, but without torch: pods of the runtime class `environment` get the
packages of this machine's environment instead of 5 GB to build, import and unpack.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from images.build import archive, build, local_base, python_of, recipe
from localcluster.kubelet.configs import PAUSE_IMAGE
from localcluster.settings import KubeletNode
from tools.debian import install, unpacked
from tools.once import ToolError, cache_directory

PROGRAMS = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "mount": "mount",
    "unshare": "util-linux",
}
_UNPACKED = ("containerd", "runc", "containernetworking-plugins")
_KEPT_SECONDS = 3600  # longer than any other checkout takes to import its own

# Each line is something that the node does, in namespaces of its own.
_TRIAL = """
set -e
ip link add trial type bridge
iptables --table nat --list-rules >/dev/null
mkdir "$0/lower" "$0/upper" "$0/work" "$0/merged"
mount -t overlay "-olowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work" overlay "$0/merged"
test -d /sys/fs/cgroup/memory || test -f /sys/fs/cgroup/cgroup.controllers
"""


def node() -> KubeletNode:
    """Builds and fetches what is missing. Raises ToolError, which says why there can be no real node here."""
    if os.geteuid():
        raise ToolError("a real node needs root")
    install(PROGRAMS)
    _try_kernel()
    programs = unpacked("node", _UNPACKED, "containerd, runc and CNI's plugins (60 MB, only once)")
    base = local_base()
    mine, its = ".".join(map(str, sys.version_info[:2])), python_of(base)
    if mine != its:
        raise ToolError(f"the packages of this environment are for Python {mine}, and Debian's here is {its}")
    images = {
        "localhost/tandem-operator:dev": build(recipe("operator"), base),
        "localhost/tandem-worker:dev": build(recipe("worker"), base, EXTRA=""),
        PAUSE_IMAGE: build(Path(__file__).with_name("Containerfile.pause"), base),
    }
    archives = tuple(_kept(name, identity) for name, identity in images.items())
    return KubeletNode(archives=archives, programs=programs, environment=Path(sysconfig.get_path("purelib")))


def _try_kernel() -> None:
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    folder = subprocess.run(["mktemp", "-d", f"--tmpdir={cache}"], check=True, capture_output=True, text=True).stdout
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    tried = subprocess.run([*unshare, "sh", "-c", _TRIAL, folder.strip()], capture_output=True, text=True, check=False)
    subprocess.run(["rm", "-rf", folder.strip()], check=True)
    if tried.returncode:
        raise ToolError(f"this machine's kernel, or what root may do here, is not enough: {tried.stderr.strip()}")


def _kept(name: str, identity: str) -> Path:
    """The image's archive in the cache; those that nobody asked for in an hour go."""
    folder = cache_directory() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    word = name.rpartition("/")[2].partition(":")[0]
    file = folder / f"{word}-{identity[:12]}.tar"
    if not file.exists():
        archive(identity, name, file)
    file.touch()
    for other in folder.glob(f"{word}-*"):
        if time.time() - other.stat().st_mtime > _KEPT_SECONDS:
            other.unlink()
    return file


def main() -> None:
    """Prints nothing where no real node can be, and says why to people."""
    try:
        print(node().model_dump_json())
    except ToolError as error:
        print(f"end-to-end tests on a real node do NOT run here: {error}", file=sys.stderr)
        sys.exit("--required" in sys.argv)


if __name__ == "__main__":
    main()
