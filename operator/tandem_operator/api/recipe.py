"""What a worker is made from: everything that changes what runs, and nothing else.

Replicas, thresholds and the rollout's pace are left out, so they change without a rollout. The recipe is stored in a
ControllerRevision, and a worker Deployment is built from its recipe alone: an old revision can be run again long after
the spec has moved on.
"""

from __future__ import annotations

from tandem_operator.api.base import ApiModel
from tandem_operator.api.pod import Pod
from tandem_operator.api.spec import Engine, Resources, Source, Speculation
from tandem_operator.api.status import Fingerprints

START_UP_SECONDS, UNKNOWN_START_UP_SECONDS = 600, 3600  # to compile and capture graphs; without known sizes
SLOWEST_BYTES_PER_SECOND = 50_000_000  # of a network volume that many workers read at once


class Recipe(ApiModel):
    target: Source
    drafter: Source | None = None
    speculation: Speculation
    engine: Engine
    resources: Resources
    pod: Pod
    model_name: str
    fingerprints: Fingerprints | None = None
    baseline_probe: float = 0.0
    weight_bytes: int | None = None  # None: never validated
    worker_image: str = ""
    """The operator's own when the revision was made. It is no part of what names the revision: an upgrade of the
    operator neither restarts workers nor rolls anything out, and what runs again runs as it ran."""

    @property
    def identity(self) -> Recipe:
        """What the revision is named after."""
        return self.model_copy(update={"worker_image": ""})

    @property
    def start_up_seconds(self) -> int:
        """How long a worker may load before it is taken for hung. By what it has to load: a budget that suits one model
        kills another for ever (kserve #5062), and a target with a drafter loads for longer than without."""
        if self.weight_bytes is None:
            return UNKNOWN_START_UP_SECONDS
        return START_UP_SECONDS + self.weight_bytes // SLOWEST_BYTES_PER_SECOND

    @property
    def speculates(self) -> bool:
        return self.drafter is not None and self.speculation.enabled
