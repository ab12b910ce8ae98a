"""What the operator asks of an engine. One implementation an engine: builtin.py, sglang.py, vllm.py. Pure.

Tandem's own worker *cooperates*: it compares the files with the validated fingerprints, tests itself before it is
ready, says what it did (`/status`) and switches speculation when it is told to. Other engines do none of that. In its
place an init container compares the files, calibration prompts follow readiness and the analysis judges what came of
them, the engine is asked for its version, and speculation ends with a restart without the drafter.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tandem_operator import names
from tandem_operator.api.recipe import Recipe
from tandem_operator.engines.reading import Metrics

TARGET_MOUNT, DRAFTER_MOUNT, KEY_MOUNT = "/models/target", "/models/drafter", "/etc/tandem"
TERMINATION_LOG = "/dev/termination-log"
UNPRIVILEGED = 65532
"""User of engines whose public images run as root; the restricted Pod Security standard forbids that."""

ENVIRONMENT = {"HOME": "/tmp", "USER": "tandem", "HF_HUB_OFFLINE": "1"}
"""Of such an engine: a user without an entry in /etc/passwd has no home to keep caches in, and nothing is fetched."""

WITHDRAWN_SECONDS = 5
"""Between a pod's deletion and SIGTERM to such an engine. Its address is withdrawn meanwhile: what comes later is
refused (vLLM), or meets a server that may end at any moment (SGLang). Part of the grace period."""


class Launch(NamedTuple):
    recipe: Recipe
    revision: str
    target_folder: str
    drafter_folder: str  # empty: the target runs alone


class Paths(NamedTuple):
    """HTTP paths of the probes, and how long an answer may take."""

    alive: str
    ready: str
    alive_timeout_seconds: int = 5


class Adapter(Protocol):
    @property
    def cooperates(self) -> bool: ...

    @property
    def image(self) -> str:
        """Used when the spec names none; empty: the operator's worker image."""

    @property
    def command(self) -> list[str]:
        """Empty: the image's own entry point."""

    @property
    def paths(self) -> Paths: ...

    @property
    def version_path(self) -> str:
        """Answers with JSON that has `version` at its top; empty: not asked."""

    def arguments(self, launch: Launch) -> list[str]:
        """$(…) is expanded by the kubelet from the container's environment."""

    def read(self, text: str) -> Metrics:
        """What `/metrics` says. Raises ValueError, in words, when it says nothing that can be relied on."""


def probes(paths: Paths, start_up_seconds: int) -> dict[str, object]:
    """A start-up probe that leaves a large model the time to load (kserve #5062).

    Liveness forgives a slow answer: a restart would lose every running request (dynamo #2124).
    """
    alive = {"httpGet": {"path": paths.alive, "port": names.PORT_NAME}, "timeoutSeconds": paths.alive_timeout_seconds}
    ready = {"httpGet": {"path": paths.ready, "port": names.PORT_NAME}}
    period_seconds = 2
    return {
        "startupProbe": {
            **alive,
            "periodSeconds": period_seconds,
            "failureThreshold": max(1, start_up_seconds // period_seconds),
        },
        "readinessProbe": {**ready, "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2},
        "livenessProbe": {**alive, "periodSeconds": 10, "failureThreshold": 6},
    }
