"""What a worker is made from: everything that changes what runs, and nothing else.

Replicas, thresholds and the rollout's pace are left out, so they change without a rollout. The recipe is stored in a
ControllerRevision, and a worker Deployment is built from its recipe alone: an old revision can be run again long after
the spec has moved on.
"""

from __future__ import annotations

from tandem_operator.api.base import ApiModel
from tandem_operator.api.spec import Engine, Pod, Resources, Source, Speculation
from tandem_operator.api.status import Fingerprints


class Recipe(ApiModel):
    target: Source
    drafter: Source | None = None
    speculation: Speculation
    engine: Engine
    resources: Resources
    pod: Pod
    model_name: str
    fingerprints: Fingerprints | None = None

    @property
    def speculates(self) -> bool:
        return self.drafter is not None and self.speculation.enabled
