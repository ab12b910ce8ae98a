"""Whatever is killed, deleted or edited by hand: the object ends as its spec says."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cluster.operator_kit import MERGE, Story, condition, simulated
from cluster.support import eventually
from tandem_operator.api import PLURAL

pytestmark = pytest.mark.cluster


def installed(story: Story, **fields: Any) -> str:
    story.apply(simulated(**fields))
    return story.until_stable()


def test_an_operator_that_is_killed_in_mid_rollout_goes_on(story: Story) -> None:
    stable = installed(story, replicas=2)
    story.apply(simulated(replicas=2, sim={"seed": 1}))
    story.until("the canary has its share", lambda shown: shown.status.canary_revision in story.serving())
    story.operator.kill()
    with story.traffic():
        after = story.until_stable()
        story.until("only the new revision serves", lambda _: story.serving() == {after: 2})
    assert after != stable
    assert [event.reason for event in story.events()].count("CanaryStarted") == 2, "one for each revision"


def test_a_spec_that_was_edited_while_the_operator_was_down_is_rolled_out(story: Story) -> None:
    stable = installed(story)
    with story.operator.down():
        story.apply(simulated(sim={"seed": 1}))
        assert story.serving() == {stable: 1}, "what serves goes on serving"
    with story.traffic():
        assert story.until_stable() != stable


def test_a_status_that_was_deleted_by_hand_is_found_again_without_a_restart(story: Story) -> None:
    stable = installed(story)
    before = {pod.uid for pod in story.pods()}
    story.api.request("PATCH", story.path(PLURAL, "pair/status"), {"status": None}, MERGE)
    story.until("status is back", lambda shown: shown.status.stable_revision == stable)
    story.until_condition("Ready", "True", "Serving")
    assert {pod.uid for pod in story.pods()} == before
    assert len(story.items("jobs", "pair")) == 1


def test_a_deployment_that_was_deleted_by_hand_comes_back(story: Story) -> None:
    stable = installed(story)
    (deployment,) = story.items("deployments", "pair")
    story.kubectl("delete", "deployment", deployment["metadata"]["name"], "--wait=false")
    story.until(
        "another serves",
        lambda _: (
            [
                d["status"].get("readyReplicas")
                for d in story.items("deployments", "pair")
                if d["metadata"]["uid"] != deployment["metadata"]["uid"]
            ]
            == [1]
        ),
    )
    assert story.until_stable() == stable


def test_a_deployment_that_was_edited_by_hand_is_put_right(story: Story) -> None:
    stable = installed(story)
    name = f"deployment/pair-{stable}"
    story.kubectl("scale", name, "--replicas=3")
    story.kubectl("set", "image", name, "worker=localhost/no-such-engine:1")
    story.until("image and count are as they were", lambda _: as_wanted(story))
    story.until_condition("Ready", "True", "Serving")
    story.until("one worker serves", lambda _: story.serving() == {stable: 1} and len(story.pods()) == 1)


def as_wanted(story: Story) -> bool:
    (deployment,) = story.items("deployments", "pair")
    spec = deployment["spec"]
    image = spec["template"]["spec"]["containers"][0]["image"]
    return (spec["replicas"], image) == (1, "localhost/engine-simulator:dev")


def test_service_key_record_and_the_like_that_were_deleted_by_hand_come_back(story: Story) -> None:
    stable = installed(story)
    before = {child for child in story.children() if not child.startswith(("pods", "jobs", "deployments"))}
    assert len(before) == 5
    story.kubectl("delete", "service/pair", f"controllerrevision/pair-{stable}")
    story.until("what is watched is back", lambda _: before <= set(story.children()))
    story.kubectl("delete", "configmap/pair-operator-key", "serviceaccount/pair-worker", "poddisruptionbudget/pair")
    (pod,) = story.pods()
    story.kubectl("delete", "pod", pod.name, "--wait=false")
    story.until("what a new pod needs is back with it", lambda _: before <= set(story.children()))
    assert story.until_stable() == stable


def test_a_validation_job_that_was_deleted_by_hand_is_not_run_again(story: Story) -> None:
    stable = installed(story)
    (job,) = story.items("jobs", "pair")
    story.kubectl("delete", "job", job["metadata"]["name"])
    story.apply(simulated(replicas=2))
    story.until("it was reconciled", lambda _: story.serving() == {stable: 2})
    assert story.items("jobs", "pair") == []
    assert condition(story.show(), "Validated").status == "True"


def test_two_objects_of_one_name_in_two_namespaces_do_not_meet(story: Story, another_story: Story) -> None:
    good = installed(story)
    another_story.apply(simulated(sim={"acceptance": 0}))
    with another_story.traffic():
        another_story.until_condition("SpeculationActive", "False", "NothingAccepted")
    shown = story.show()
    assert shown.status.stable_revision == good
    assert condition(shown, "SpeculationActive").status == "True"
    assert condition(shown, "RolledBack").status == "False"
    assert [event for event in story.events() if event.type == "Warning"] == []


def test_an_object_made_anew_under_its_name_starts_from_nothing(story: Story) -> None:
    installed(story, sim={"acceptance": 0})
    with story.traffic():
        story.until("it is quarantined", lambda shown: shown.status.quarantined)
    before = story.show().metadata.uid
    story.delete()
    story.apply(simulated(sim={"acceptance": 0.8}))
    story.until_stable()
    shown = story.show()
    assert shown.metadata.uid != before
    assert shown.status.quarantined == []
    for plural in ("deployments", "services", "configmaps", "controllerrevisions"):
        story.until(
            f"{plural} are the new object's",
            lambda _, plural=plural: (
                {  # type: ignore[misc]
                    owner["uid"]
                    for item in story.items(plural, "pair")
                    for owner in item["metadata"]["ownerReferences"]
                }
                == {shown.metadata.uid}
            ),
        )


def test_children_that_were_orphaned_go_on_serving_for_an_object_made_anew(story: Story) -> None:
    first = installed(story)
    with story.traffic():
        story.apply(simulated(sim={"seed": 1}))
        story.until("the second serves", lambda shown: shown.status.stable_revision not in ("", first))
    second = story.until_stable()
    story.until("the old workers are gone", lambda _: story.serving() == {second: 1})
    before = {pod.uid for pod in story.ready_pods()}
    story.kubectl("delete", "specdep", "pair", "--cascade=orphan")
    story.apply(simulated(sim={"seed": 1}))
    assert story.until_stable() == second
    assert {pod.uid for pod in story.ready_pods()} == before
    uid = story.show().metadata.uid

    def owners() -> set[str]:
        found = [
            item for kind in ("deployments", "controllerrevisions", "services") for item in story.items(kind, "pair")
        ]
        return {owner["uid"] for item in found for owner in item["metadata"].get("ownerReferences", [{"uid": ""}])}

    assert eventually(lambda: owners() == {uid})
    story.delete()
    assert eventually(lambda: story.children() == [])


def test_another_writer_who_never_rests_costs_no_step(story: Story) -> None:
    steps = {"steps": [{"weight": 25}, {"weight": 50}]}
    installed(story, replicas=2, rollout=steps)
    over = threading.Event()

    def write() -> None:
        count = 0
        while not over.wait(0.1):
            count += 1
            body = {"metadata": {"annotations": {"someone": str(count)}}}
            for kind, name in [
                (PLURAL, "pair"),
                *(("deployments", d["metadata"]["name"]) for d in story.items("deployments")),
            ]:
                story.api.request("PATCH", story.path(kind, name), body, MERGE)

    other = threading.Thread(target=write)
    other.start()
    try:
        with story.traffic():
            story.apply(simulated(replicas=2, rollout=steps, sim={"seed": 1}))
            after = story.until_stable()
            story.until("only the new revision serves", lambda _: story.serving() == {after: 2})
    finally:
        over.set()
        other.join()
    told = [event.reason for event in story.events()]
    assert (told.count("CanaryStarted"), told.count("CanaryAdvanced"), told.count("Promoted")) == (2, 2, 2)
