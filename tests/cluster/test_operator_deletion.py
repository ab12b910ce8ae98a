"""Deletion always finishes: in every state, with the operator up or down, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.operator_kit import LIMIT_SECONDS, Refused, Story, simulated
from cluster.support import eventually
from tandem_operator.api import PLURAL

pytestmark = pytest.mark.cluster


def validating(story: Story) -> None:
    story.apply(simulated(resources={"limits": {"nvidia.com/gpu": 99}}, validation={"mode": "Probe"}))
    story.until_condition("Validated", "Unknown", "Waiting")  # its Job wants GPUs that are not there


def refused(story: Story) -> None:
    (story.checkpoint("broken") / "config.json").unlink()
    story.apply(simulated("broken"))
    story.until_condition("Validated", "False", "CouldNotCheck")


def starting(story: Story) -> None:
    story.apply(simulated(sim={"never_ready": True}))
    story.until_condition("Progressing", "True", "WaitingForWorkers")


def stable(story: Story) -> None:
    story.apply(simulated())
    story.until_stable()


def canary(story: Story) -> None:
    stable(story)
    story.apply(simulated(sim={"seed": 1, "stall_requests": True}))
    story.until_condition("CanaryHealthy", "Unknown", "TooFewDrafts")


def rolled_back(story: Story) -> None:
    stable(story)
    story.apply(simulated(sim={"self_test": "NoLife"}))
    story.until_condition("RolledBack", "True", "SelfTestFailed")


STATES: list[Callable[[Story], None]] = [validating, refused, starting, stable, canary, rolled_back]


def assert_gone(story: Story, names: list[str]) -> None:
    for name in names:
        with pytest.raises(Refused) as answer:
            story.show(name)
        assert answer.value.code == 404, "no finalizer holds it"
    eventually(lambda: story.children() == [], LIMIT_SECONDS)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_an_object_is_deleted_with_all_its_children(story: Story, state: Callable[[Story], None]) -> None:
    state(story)
    assert story.children()
    story.delete()
    assert_gone(story, ["pair"])
    assert story.items(PLURAL) == []


def test_objects_are_deleted_while_the_operator_is_down(story: Story, another_story: Story) -> None:
    canary(story)
    rolled_back(another_story)
    with story.operator.down():
        for each in (story, another_story):
            each.delete()
            assert_gone(each, ["pair"])


def test_a_namespace_is_deleted_with_an_object_in_mid_rollout(story: Story) -> None:
    canary(story)
    path = f"/api/v1/namespaces/{story.namespace}"
    story.api.request("DELETE", path)

    def gone() -> bool:
        try:
            story.api.request("GET", path)
        except Refused as answer:
            return answer.code == 404
        return False

    eventually(gone, LIMIT_SECONDS)
    story.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": story.namespace}})
