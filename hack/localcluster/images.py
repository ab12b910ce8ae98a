"""The image table: which command of this checkout stands for which image.

An image is known by the last part of its name: `localhost/tandem-worker:dev` and
`ghcr.io/someone/tandem-worker@sha256:...` are both `tandem-worker`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from localcluster.paths import CHECKOUT

IMAGES: dict[str, list[str]] = {
    "tandem-worker": [sys.executable, "-m", "tandem_worker"],
    "tandem-operator": [sys.executable, "-m", "tandem_operator"],
    "engine-simulator": [sys.executable, "-m", "simulator"],
    "shell": ["/bin/sh"],
}

COMMANDS: dict[str, list[tuple[list[str], list[str]]]] = {
    "engine-simulator": [
        (["python3", "-m", "sglang.launch_server"], [*IMAGES["engine-simulator"], "sglang"]),
        (["vllm", "serve"], [*IMAGES["engine-simulator"], "vllm"]),
    ],
}
"""By image: what a container's `command` would find in it, and the command of this checkout that stands for it."""

PYTHON_PATH = [str(CHECKOUT / folder) for folder in ("hack", "operator", "worker")]


def image_name(reference: str) -> str:
    """`tandem-worker` of `localhost:5000/x/tandem-worker:dev@sha256:...`."""
    return reference.rpartition("/")[2].partition("@")[0].partition(":")[0]


def inside(reference: str, command: Sequence[str]) -> list[str] | None:
    """What stands for a command that the image holds; None: nothing, so it is one of this machine."""
    known = COMMANDS.get(image_name(reference), [])
    return next((ours for theirs, ours in known if theirs == list(command)), None)


def entry_point(reference: str, more_images: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The command that the image starts, or None if nobody knows the image."""
    name = image_name(reference)
    command = more_images.get(name) or IMAGES.get(name)
    return list(command) if command else None
