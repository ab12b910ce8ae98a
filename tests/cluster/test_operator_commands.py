"""By hand, through annotations, on a real API server: each answered by exactly one event, whatever restarts."""

from __future__ import annotations

import pytest

from cluster.operator_kit import Story, simulated
from cluster.support import eventually

pytestmark = pytest.mark.cluster

HELD = {"steps": [{"weight": 50, "pause": {}}]}


def answers(story: Story) -> list[tuple[str, str]]:
    outcomes = ("Accepted", "Refused", "NotUnderstood")
    return [(event.reason, event.note) for event in story.events() if event.reason.endswith(outcomes)]


def annotate(story: Story, command: str, value: str) -> None:
    story.kubectl("annotate", "specdep/pair", "--overwrite", f"tandem.dev/{command}={value}")


def test_a_canary_is_promoted_and_rolled_back_by_hand_and_each_wish_has_one_answer(story: Story) -> None:
    story.apply(simulated(rollout=HELD))
    first = story.until_stable()
    wanted = story.apply(simulated(rollout=HELD, sim={"seed": 1})).spec
    with story.traffic():
        story.until_condition("Progressing", "True", "Paused")
        canary = story.show().status.canary_revision
        annotate(story, "promote", "please")
        assert "it must be REVISION" in story.event("PromoteNotUnderstood").note
        annotate(story, "promote", canary)
        assert story.until_stable() == canary
        told = [("PromoteNotUnderstood", story.event("PromoteNotUnderstood").note)]
        told.append(("PromoteAccepted", f"Canary {canary} goes from weight 50 to 100"))
        assert eventually(lambda: answers(story) == told)
        story.operator.kill()
        annotate(story, "rollback", first)
        story.until("the first serves", lambda shown: shown.status.stable_revision == first)
    told.append(("RollbackAccepted", f"Revision {first} is to serve instead of {canary}"))
    assert eventually(lambda: answers(story) == told), "the operator that came after did not tell the others again"
    assert story.until_condition("RolledBack", "True", "RolledBackByHand")
    assert story.show().spec == wanted
