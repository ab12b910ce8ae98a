"""What makes another revision and what does not: content of ConfigMaps does, replicas and thresholds do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem_operator.plan.revisions import short_hash
from unit.world import DEAD, Life, World, spec


def variable(name: str, key: str, kind: str = "configMapKeyRef") -> dict[str, object]:
    return {"name": name, "valueFrom": {kind: {"name": "settings", "key": key}}}


def configured(value: str, drafter: str = "a") -> World:
    world = World(spec(drafter, replicas=2, pod={"env": [variable("LEVEL", "level")]}))
    world.config["settings", "level"] = value
    return world


def environment(world: World) -> list[dict[str, object]]:
    """Of the workers that serve."""
    recipe = world.recipes[world.status.stable_revision]
    return [each.model_dump(exclude_none=True) for each in recipe.pod.env]


def test_the_content_of_a_config_map_is_part_of_the_revision() -> None:
    world = configured("low").run(6)
    first = world.status.stable_revision
    assert environment(world) == [{"name": "LEVEL", "value": "low"}]
    world.config["settings", "level"] = "high"
    world.run(3)
    assert world.status.canary_revision not in ("", first), "the edit walks the steps"
    world.run(12)
    assert environment(world) == [{"name": "LEVEL", "value": "high"}]
    world.config["settings", "level"] = "low"
    world.run(8)
    assert world.status.stable_revision == first


def test_an_edit_of_a_config_map_that_makes_workers_bad_is_taken_back_with_its_content() -> None:
    world = configured("low").run(6)
    world.config["settings", "level"] = "high"
    world.run(14)
    world.lives["a"] = Life(rate=DEAD)
    world.run(2)
    world.lives["a"] = Life()
    world.run(8)
    assert environment(world) == [{"name": "LEVEL", "value": "low"}]


NAMED: dict[str, dict[str, Any]] = {
    "variables of the pods": {"pod": {"env": [variable("LEVEL", "level")]}},
    "variables of the engine": {"engine": {"env": [variable("LEVEL", "level")]}},
    "a route": {"traffic": {"httpRoute": {"name": "front"}}},
}


@pytest.mark.parametrize("what", NAMED)
@pytest.mark.parametrize("drafts", [True, False])
def test_what_an_object_names_and_nobody_watches_is_looked_at_every_half_a_minute(what: str, drafts: bool) -> None:
    """However seldom the pair is judged, or if it never is."""
    rollout = {"analysis": {"intervalSeconds": 3600}, "steps": []}
    world = World(spec("a", speculation={"enabled": drafts}, rollout=rollout, **NAMED[what]))
    world.config["settings", "level"] = "low"
    world.run(6)
    assert world.status.stable_revision
    assert world.plan().wake_after_seconds == 30


def test_an_object_that_names_nothing_of_the_kind_is_left_in_peace() -> None:
    world = World(spec("a", speculation={"enabled": False})).run(6)
    assert world.plan().wake_after_seconds is None


def test_keys_that_are_not_referred_to_change_nothing() -> None:
    world = configured("low").run(6)
    made = world.made
    world.config["settings", "other"] = "x"
    world.config["unknown", "level"] = "x"
    assert world.run(6).made == made


def test_what_looks_like_a_variable_in_a_config_map_is_not_expanded() -> None:
    world = configured("$(HOME) costs 5$").run(6)
    assert environment(world) == [{"name": "LEVEL", "value": "$$(HOME) costs 5$$"}], "the kubelet makes $ of $$"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "spec.pod.env LEVEL: key level of ConfigMap settings does not exist; create it"),
        ("x" * 8193, "spec.pod.env LEVEL: key level of ConfigMap settings is longer than 8192 characters"),
        ("$" * 4097, "spec.pod.env LEVEL: key level of ConfigMap settings is longer than 8192 characters"),
    ],
)
def test_a_config_map_that_cannot_be_used_is_named_and_what_serves_goes_on(value: str | None, why: str) -> None:
    world = World(spec("a", replicas=2)).run(6)
    if value is not None:
        world.config["settings", "level"] = value
    world.edit(configured("", "b").spec)
    world.run(6)
    assert world.serving() == {"a": 2}
    assert world.condition("Progressing")[:2] == ("False", "ConfigMissing")
    assert world.condition("Progressing")[2].startswith(why)
    assert world.condition("Stalled")[0] == "True"
    world.config["settings", "level"] = "low"
    world.run(16)
    assert world.serving() == {"b": 2}


def test_secrets_stay_references() -> None:
    world = World(spec("a", pod={"env": [variable("TOKEN", "token", "secretKeyRef")]})).run(6)
    reference = {"secret_key_ref": {"name": "settings", "key": "token"}}
    assert environment(world) == [{"name": "TOKEN", "value_from": reference}]


def test_an_annotation_of_the_pods_rolls_what_a_secret_does_not() -> None:
    world = World(spec("a", pod={"annotations": {"secret-version": "1"}})).run(6)
    first = world.status.stable_revision
    world.edit(spec("a", pod={"annotations": {"secret-version": "2"}}))
    world.run(16)
    assert world.status.stable_revision != first


@pytest.mark.parametrize(
    "field",
    [
        {"replicas": 3},
        {"guard": {"minAcceptLength": 1.2, "onCollapse": "Alert"}},
        {"rollout": {"steps": [{"weight": 5}], "maxSurge": 2}},
        {"revisionHistoryLimit": 2},
        {"validation": {"onInvalid": "ServeTargetOnly"}},
    ],
    ids=str,
)
def test_what_does_not_change_the_workers_is_no_revision(field: dict[str, object]) -> None:
    world = World(spec("a")).run(6)
    first, made = world.status.stable_revision, world.made
    world.edit(spec("a", **field))
    world.run(6)
    assert world.status.stable_revision == first
    assert world.made - made == world.spec.replicas - 1
    assert len(world.history) == 1


@pytest.mark.parametrize("engine", [{}, {"type": "vllm", "version": "0.26.0"}], ids=["builtin", "vllm"])
def test_an_operator_with_another_worker_image_restarts_no_worker_and_rolls_nothing_out(
    engine: dict[str, object],
) -> None:
    world = World(spec("a", replicas=2, engine=engine)).run(6)
    first, before = world.status.stable_revision, images(world)
    world.settings = replace(world.settings, worker_image="worker:2")
    world.run(6)
    assert (world.status.stable_revision, world.status.canary_revision) == (first, "")
    assert images(world) == before
    assert any("worker:1" in of for of in before)


def test_the_next_revision_runs_the_new_worker_image_and_a_return_the_old_one() -> None:
    world = World(spec("a", replicas=2)).run(6)
    world.settings = replace(world.settings, worker_image="worker:2")
    world.edit(spec("b", replicas=2))
    world.run(16)
    assert world.serving() == {"b": 2}
    assert images(world) == {("worker:2",)}
    world.edit(spec("a", replicas=2))
    world.run(10)
    assert world.serving() == {"a": 2}
    assert images(world) == {("worker:1",)}


def test_a_record_from_before_worker_images_were_kept_runs_the_operators_own() -> None:
    world = World(spec("a", replicas=2)).run(6)
    bare = {
        name: replace(known, recipe=known.recipe.model_copy(update={"worker_image": ""}))
        for name, known in world.history.items()
    }
    world.history = bare
    assert images(world) == {("worker:1",)}


def images(world: World) -> set[tuple[str, ...]]:
    """Of each Deployment that has workers, as the last pass applied it: its containers', in their order."""
    manifests = [m for m in world.plan().apply if m["kind"] == "Deployment" and m["spec"]["replicas"]]
    pods = [manifest["spec"]["template"]["spec"] for manifest in manifests]
    return {tuple(c["image"] for c in (*pod.get("initContainers", ()), *pod["containers"])) for pod in pods}


# --- names -----------------------------------------------------------------------------------------------------------


def test_two_recipes_of_one_hash_are_told_apart_by_a_count() -> None:
    world = World(spec("a", replicas=2)).run(6)
    stable = world.status.stable_revision
    fresh = World(spec("b", replicas=2)).run(6).status.stable_revision
    # As if the recipe of `a` had the hash that `b` will have.
    world.deployments = {fresh: replace(world.deployments[stable], revision=fresh)}
    world.history = {fresh: replace(world.history[stable], revision=fresh)}
    world.recipes, world.retries = {fresh: world.recipes[stable]}, {fresh: ""}
    world.pods = {uid: replace(pod, revision=fresh) for uid, pod in world.pods.items()}
    world.status = world.status.model_copy(update={"stable_revision": fresh})
    made = world.made
    world.run(4)
    assert (world.status.stable_revision, world.made) == (fresh, made), "known by its recipe, whatever its name"
    world.edit(spec("b", replicas=2))
    world.run(20)
    assert world.serving() == {"b": 2}
    assert world.status.stable_revision != fresh
    assert world.status.collision_count == 1
    assert len(world.history) == 2
    world.edit(spec("c", replicas=2))
    world.run(16)
    recipe = world.recipes[world.status.stable_revision]
    assert world.status.stable_revision == short_hash(recipe.identity, 1)
