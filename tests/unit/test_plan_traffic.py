"""Weights of an HTTPRoute: set while a canary runs, only where they are Tandem's, and never on what does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from tandem_operator.api.route import HttpRoute
from unit.world import DEAD, Life, World, spec

STEPS = [{"weight": 5, "pause": {}}, {"weight": 50, "pause": {}}]
FIELDS: dict[str, Any] = {
    "replicas": 2,
    "traffic": {"httpRoute": {"name": "front"}},
    "rollout": {"steps": STEPS, "analysis": {"intervalSeconds": 10}},
}
FILTER = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x", "value": "y"}]}}


def backend(name: str, **fields: Any) -> dict[str, Any]:
    return {"group": "", "kind": "Service", "name": name, "port": 80, "weight": 1, **fields}


def route(*rules: dict[str, Any]) -> HttpRoute:
    spec = {"parentRefs": [{"name": "gateway"}], "rules": list(rules or [{"backendRefs": [backend("pair")]}])}
    metadata = {"name": "front", "resourceVersion": "7", "labels": {"team": "a"}}
    return HttpRoute.model_validate({"metadata": metadata, "spec": spec})


def weights(world: World, rule: int = 0) -> dict[str, int]:
    """By role of the backend."""
    assert world.route is not None
    roles = {
        "pair": "all",
        f"pair-{world.status.stable_revision}": "stable",
        f"pair-{world.status.canary_revision}": "canary",
    }
    return {roles.get(ref.name, ref.name): ref.weight for ref in world.route.spec.rules[rule].backend_refs}


def served(**fields: Any) -> World:
    return World(spec("a", **{**FIELDS, **fields}), route=route()).run(6)


def test_a_weight_is_what_it_says_whatever_the_number_of_workers() -> None:
    world = served()
    assert weights(world) == {"all": 1}
    world.edit(spec("b", **FIELDS))
    world.run(8)
    assert world.condition("Progressing")[1] == "Paused"
    assert weights(world) == {"stable": 95, "canary": 5}
    assert (world.status.weight, world.status.share) == (5, 5)
    assert "(set in HTTPRoute front)" in world.condition("Progressing")[2]
    world.annotations["tandem.dev/promote"] = world.status.canary_revision
    world.run(6)
    assert weights(world) == {"stable": 50, "canary": 50}
    world.annotations["tandem.dev/promote"] = f"{world.status.canary_revision} #2"
    world.run(5)
    assert world.serving() == {"b": 2}
    assert weights(world) == {"all": 1}


def test_a_canary_gets_nothing_before_it_answers() -> None:
    world = served()
    world.lives["b"] = Life(starts=False)
    world.edit(spec("b", **FIELDS))
    world.run(4)
    assert weights(world) == {"stable": 100, "canary": 0}
    assert world.status.share == 0
    world.lives["b"] = Life()
    world.run(2)
    assert weights(world) == {"stable": 95, "canary": 5}


def test_a_canary_that_loses_its_workers_loses_its_requests() -> None:
    world = served()
    world.edit(spec("b", **FIELDS))
    world.run(8)
    canary = world.status.canary_revision
    world.lives["b"] = Life(starts=False)
    for uid in [uid for uid, pod in world.pods.items() if pod.revision == canary]:
        del world.pods[uid]
        world.workers.pop(uid)
    world.run(1)
    assert weights(world) == {"stable": 100, "canary": 0}


def test_a_canary_that_is_taken_back_gets_nothing_and_the_route_is_as_the_user_wrote_it() -> None:
    world = served()
    before = world.route
    world.edit(spec("b", **FIELDS))
    world.run(8)
    world.lives["b"] = Life(rate=DEAD)
    world.run(6)
    assert world.serving() == {"a": 2}
    assert world.route == before


def test_what_else_the_route_holds_is_left_as_it_is() -> None:
    world = served()
    world.route = route(
        {"matches": [{"path": {"value": "/v1"}}], "backendRefs": [backend("pair", filters=[FILTER], port=8080)]},
        {"backendRefs": [backend("other", weight=3)], "timeouts": {"request": "5s"}},
        {"backendRefs": [backend("pair-metrics"), backend("pair", namespace="elsewhere"), backend("pair", kind="X")]},
    )
    before = world.route.model_dump(by_alias=True, exclude_unset=True)
    world.edit(spec("b", **FIELDS))
    world.run(8)
    assert weights(world) == {"stable": 95, "canary": 5}
    after = world.route.model_dump(by_alias=True, exclude_unset=True)
    assert after["spec"]["rules"][1:] == before["spec"]["rules"][1:]
    assert after["spec"]["parentRefs"] == before["spec"]["parentRefs"]
    first = after["spec"]["rules"][0]
    assert first["matches"] == before["spec"]["rules"][0]["matches"]
    assert [(ref["port"], ref["filters"]) for ref in first["backendRefs"]] == [(8080, [FILTER])] * 2


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "HTTPRoute front does not exist in this namespace; create it, or take out spec.traffic.httpRoute"),
        (route({"backendRefs": [backend("other")]}), "no rule of HTTPRoute front sends requests to Service pair;"),
        (
            route({"backendRefs": [backend("pair"), backend("other")]}),
            "HTTPRoute front sends requests of one rule to Service pair and to other: give the others a rule",
        ),
    ],
)
def test_a_route_that_cannot_be_used_is_named_and_the_canary_waits_for_it(found: HttpRoute | None, why: str) -> None:
    world = served()
    world.route = found
    world.edit(spec("b", **FIELDS))
    world.run(8)
    assert world.condition("TrafficRouted")[:2] == ("False", "RouteUnusable")
    assert world.condition("TrafficRouted")[2].startswith(why)
    assert world.condition("Progressing")[1] == "WaitingForWorkers"
    assert why in world.condition("Progressing")[2]
    assert world.status.progress is not None
    assert world.status.progress.in_force_at is None
    world.route = route()
    world.run(4)
    assert weights(world) == {"stable": 95, "canary": 5}
    assert world.condition("TrafficRouted")[1] == "RouteWeights"


def test_a_route_that_somebody_sets_back_is_put_right() -> None:
    world = served()
    world.edit(spec("b", **FIELDS))
    world.run(8)
    world.route = route()
    world.run(1)
    assert weights(world) == {"stable": 95, "canary": 5}


def test_services_of_revisions_exist_where_a_route_weighs_them_and_only_there() -> None:
    world = served()
    world.edit(spec("b", **FIELDS))
    world.run(8)
    services = {m["metadata"]["name"]: m["spec"]["selector"] for m in world.plan().apply if m["kind"] == "Service"}
    names = {"pair", f"pair-{world.status.stable_revision}", f"pair-{world.status.canary_revision}"}
    assert set(services) == names
    assert {selector.get("tandem.dev/revision", "") for selector in services.values()} == {
        name.removeprefix("pair").removeprefix("-") for name in names
    }
    world.edit(spec("b", **{**FIELDS, "traffic": {}}))
    assert [m["metadata"]["name"] for m in world.plan().apply if m["kind"] == "Service"] == ["pair"]
    assert world.run(1).condition("TrafficRouted")[:2] == ("True", "ReplicaShares")
