"""What the hollow node is told of a drafter reaches the pods that run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hollow.fates import Fates, tell
from localcluster.agent.model import Pod
from tandem_operator.plan.observed import Manifest
from unit.world import World, spec


def pod_of(manifest: Manifest) -> Pod:
    template: dict[str, Any] = manifest["spec"]["template"]
    where = {"namespace": "some", "name": "pair-1", "uid": "1"}
    return Pod.model_validate({**template, "metadata": {**template["metadata"], **where}})


@pytest.mark.parametrize("kind", ["Job", "Deployment"])
def test_workers_and_validations_are_known_by_their_drafter(kind: str, tmp_path: Path) -> None:
    told = tmp_path / "fates.json"
    tell(told, "some", {"c": {"rate": 0.05}, "drafter": {"rate": 0.5}})
    world = World(spec("c"))
    decided = world.plan()
    world.step()
    manifests = [*decided.apply, *world.plan().apply]
    pod = pod_of(next(manifest for manifest in manifests if manifest["kind"] == kind))
    assert Fates(told).of(pod) == {"rate": 0.05}
