"""A HorizontalPodAutoscaler on the object: the real controller of kube-controller-manager, reading a real metrics API.

KEDA makes such an autoscaler from a ScaledObject and serves its metric, so this is its path, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.external_metrics import METRIC, ExternalMetrics
from cluster.operator_kit import API_VERSION, Story, simulated
from tandem_operator.api import KIND

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
    with ExternalMetrics.served(story, tmp_path) as metrics:
        story.apply(simulated(rollout=HELD))  # names no replicas: they are the autoscaler's
        first = story.until_stable()
        metrics.value = 2
        story.apply_manifests(AUTOSCALER)
        story.until("the stable revision follows", lambda _: story.serving() == {first: 2}, limit_seconds=120)
        assert story.show().spec.replicas == 2

        story.apply(simulated(rollout=HELD, sim={"seed": 1}))
        shown = story.until("a canary takes its half", lambda s: s.status.share == 50)
        canary = shown.status.canary_revision
        assert story.serving() == {first: 1, canary: 1}
        metrics.value = 6
        both = {first: 3, canary: 3}
        shown = story.until("both grow", lambda s: story.serving() == both and s.status.share == 50)
        assert (shown.spec.replicas, shown.status.weight, shown.status.canary_revision) == (6, 50, canary)
        metrics.value = 2
        story.until("both shrink", lambda _: story.serving() == {first: 1, canary: 1})

        story.kubectl("annotate", "specdep/pair", f"tandem.dev/promote={canary} full")
        story.until("the promoted revision has what both had", lambda _: story.serving() == {canary: 2})
        metrics.value = 0
        story.until("it shrinks to the least", lambda _: story.serving() == {canary: 1})
        assert story.until_stable() == canary
