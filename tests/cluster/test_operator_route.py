"""The weights of a real HTTPRoute on a real API server, which holds what is written to its schema."""

from __future__ import annotations

import pytest

from cluster.operator_kit import MERGE, Story, simulated
from cluster.support import eventually

pytestmark = pytest.mark.cluster

HELD = {"steps": [{"weight": 5, "pause": {}}]}
ROUTED = {"httpRoute": {"name": "front"}}


def test_a_canary_gets_its_weight_from_the_route_and_the_route_is_given_back(story: Story) -> None:
    story.install_gateway_api()
    story.apply(simulated(rollout=HELD, traffic=ROUTED))
    story.until_condition("TrafficRouted", "False", "RouteUnusable")
    stable = story.until_stable()
    story.route("front", backends={"pair": 1})
    with story.traffic():
        story.apply(simulated(rollout=HELD, traffic=ROUTED, sim={"seed": 1}))
        story.until_condition("Progressing", "True", "Paused")
        canary = story.show().status.canary_revision
        assert eventually(lambda: story.weights("front") == {f"pair-{stable}": 95, f"pair-{canary}": 5})
        said = story.until_condition("TrafficRouted", "True", "RouteWeights")
        assert said.message == f"requests go to pair-{stable} 95, pair-{canary} 5"
        assert story.show().status.share == 5
        behind = {item["metadata"]["name"]: item["spec"]["selector"] for item in story.items("services", "pair")}
        assert behind[f"pair-{canary}"] == {**behind["pair"], "tandem.dev/revision": canary}
        rules = [{"backendRefs": [{"name": "pair", "port": 80}]}]  # somebody sets it back
        story.api.request("PATCH", story.path("httproutes", "front"), {"spec": {"rules": rules}}, MERGE)
        assert eventually(lambda: story.weights("front") == {f"pair-{stable}": 95, f"pair-{canary}": 5})
        story.kubectl("annotate", "specdep/pair", f"tandem.dev/promote={canary}")
        assert story.until_stable() == canary
    assert eventually(lambda: story.weights("front") == {"pair": 1})
