"""A HorizontalPodAutoscaler on the object: the real controller of kube-controller-manager, reading a real metrics API.

KEDA makes such an autoscaler from a ScaledObject and serves its metric, so this is its path, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.external_metrics import METRIC, ExternalMetrics
from cluster.operator_kit import API_VERSION, Story, simulated
from tandem_operator.api import KIND, SpeculativeDeployment

pytestmark = pytest.mark.cluster

HELD = {"steps": [{"weight": 50, "pause": {}}]}
AT_ONCE = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 100, "periodSeconds": 1}]}
AUTOSCALER = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "pair"},
    "spec": {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": "pair"},
        "minReplicas": 1,
        "maxReplicas": 6,
        "metrics": [
            {
                "type": "External",
                "external": {"metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": "1"}},
            }
        ],
        "behavior": {"scaleUp": AT_ONCE, "scaleDown": AT_ONCE},  # by default a window of five minutes
    },
}


def test_an_autoscaler_scales_the_object_and_its_revisions_follow_in_every_phase(story: Story, tmp_path: Path) -> None:
    def until_serving(what: str, expected: dict[str, int]) -> SpeculativeDeployment:
        return story.until(what, lambda _: story.serving() == expected, limit_seconds=180)

    with ExternalMetrics.served(story, tmp_path) as metrics:
        story.apply(simulated(rollout=HELD))  # names no replicas: they are the autoscaler's
        first = story.until_stable()
        metrics.value = 2
        story.apply_manifests(AUTOSCALER)
        until_serving("the stable revision follows", {first: 2})
        assert story.show().spec.replicas == 2

        story.apply(simulated(rollout=HELD, sim={"seed": 1}))
        canary = story.until("a canary begins", lambda s: s.status.canary_revision).status.canary_revision
        until_serving("a canary takes its half", {first: 1, canary: 1})
        metrics.value = 6
        until_serving("both grow", {first: 3, canary: 3})
        shown = story.until("its share is still a half", lambda s: s.status.share == 50)
        assert (shown.spec.replicas, shown.status.weight, shown.status.canary_revision) == (6, 50, canary)
        metrics.value = 2
        until_serving("both shrink", {first: 1, canary: 1})

        story.kubectl("annotate", "specdep/pair", f"tandem.dev/promote={canary} full")
        until_serving("the promoted revision has what both had", {canary: 2})
        metrics.value = 0
        until_serving("it shrinks to the least", {canary: 1})
        assert story.until_stable() == canary
