"""What a person asks for by annotation: done once, answered once, and never to the wrong revision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.api import Status
from tandem_operator.api.status import Command
from tandem_operator.plan.commands import LONGEST, Order, parse
from unit.world import WEAK, Life, World, spec

REVISION = "0123456789"
HELD = {"steps": [{"weight": 25, "pause": {}}, {"weight": 50, "pause": {}}], "analysis": {"intervalSeconds": 10}}


def held(replicas: int = 4) -> World:
    """A canary of drafter `b` that is healthy and waits at its first step."""
    world = World(spec("a", replicas=replicas)).run(6)
    world.edit(spec("b", replicas=replicas, rollout=HELD))
    world.run(8)
    assert world.condition("Progressing")[1] == "Paused"
    return world


def ask(world: World, command: str, value: str, steps: int = 1) -> tuple[str, str]:
    """-> outcome and message of the answer."""
    world.annotations[f"tandem.dev/{command}"] = value
    world.run(steps)
    return answer(world, command)


def answer(world: World, command: str) -> tuple[str, str]:
    found = next(answer for answer in world.status.answers if answer.command == command)
    return found.outcome, found.message


# --- grammar ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "value", "order"),
    [
        (Command.PROMOTE, REVISION, Order(REVISION)),
        (Command.PROMOTE, f" {REVISION}  full ", Order(REVISION, full=True)),
        (Command.PROMOTE, f"{REVISION} full # after lunch", Order(REVISION, full=True)),
        (Command.PROMOTE, f"{REVISION} #2", Order(REVISION)),
        (Command.ABORT, f"{REVISION} # it is slow", Order(REVISION)),
        (Command.ROLLBACK, REVISION, Order(REVISION)),
        (Command.ABORT, f"{REVISION} full", None),
        (Command.ROLLBACK, f"{REVISION} full", None),
        (Command.PROMOTE, "true", None),
        (Command.PROMOTE, "", None),
        (Command.PROMOTE, REVISION[:9], None),
        (Command.PROMOTE, REVISION + "0", None),
        (Command.PROMOTE, "0123456ABC", None),
        (Command.PROMOTE, f"pair-{REVISION}", None),
        (Command.PROMOTE, f"{REVISION}full", None),
        (Command.PROMOTE, f"{REVISION} FULL", None),
        (Command.PROMOTE, f"{REVISION}#2", None),
        (Command.PROMOTE, f"{REVISION} {REVISION}", None),
        (Command.PROMOTE, f"{REVISION} #" + "x" * 200, None),
    ],
)
def test_an_order_names_a_revision_and_nothing_else_is_one(command: Command, value: str, order: Order | None) -> None:
    assert parse(command, value) == order


@given(st.sampled_from(list(Command)), st.text(max_size=300))
def test_whatever_an_annotation_holds_is_read_or_refused(command: Command, value: str) -> None:
    order = parse(command, value)
    assert order is None or len(order.revision) == 10


@pytest.mark.parametrize("command", ["promote", "abort", "rollback"])
def test_what_is_not_understood_is_answered_with_the_grammar_once(command: str) -> None:
    world = held()
    outcome, message = ask(world, command, "yes please")
    assert outcome == "NotUnderstood"
    assert "'yes please'; it must be REVISION" in message
    first = world.status.answers
    world.run(3)
    assert world.status.answers == first, "the same answer: no other event"
    assert world.serving() == {"a": 3, "b": 1}, "and nothing was done"


# --- promote ---------------------------------------------------------------------------------------------------------


def test_promote_ends_a_pause_and_goes_one_step() -> None:
    world = held()
    canary = world.status.canary_revision
    assert ask(world, "promote", canary) == ("Accepted", f"canary {canary} goes from weight 25 to 50")
    world.run(10)
    assert world.serving() == {"a": 2, "b": 2}, "and not two, though the annotation stays"
    assert ask(world, "promote", f"{canary} #2")[0] == "Accepted"
    world.run(4)
    assert world.serving() == {"b": 4}


def test_promote_full_goes_to_the_end() -> None:
    world = held()
    canary = world.status.canary_revision
    assert ask(world, "promote", f"{canary} full", 5)[1] == f"canary {canary} goes from weight 25 to 100"
    assert world.serving() == {"b": 4}


def test_an_order_is_carried_out_once_whatever_restarts() -> None:
    world = held()
    world.annotations["tandem.dev/promote"] = world.status.canary_revision
    world.step(crash_after=2)  # the operator dies before the status is written
    assert world.status.answers == []
    assert world.status.weight == 25
    world.run(8)
    assert (world.status.weight, len(world.status.answers)) == (50, 1)


def test_an_annotation_that_is_taken_away_and_set_again_counts_again() -> None:
    world = held()
    canary = world.status.canary_revision
    ask(world, "promote", canary, 8)
    del world.annotations["tandem.dev/promote"]
    world.step()
    assert world.status.answers == []
    ask(world, "promote", canary, 4)
    assert world.serving() == {"b": 4}


def test_an_order_that_is_left_behind_means_nothing_to_the_next_canary() -> None:
    world = held()
    ask(world, "promote", f"{world.status.canary_revision} full", 5)
    world.edit(spec("c", replicas=4, rollout=HELD))
    world.run(10)
    assert world.serving() == {"b": 3, "c": 1}


def test_promote_does_without_evidence_but_not_without_workers() -> None:
    world = World(spec("a", replicas=2)).run(6)
    world.requests_per_step = 0
    world.lives["b"] = Life(starts=False)
    world.edit(spec("b", replicas=2))
    world.run(4)
    canary = world.status.canary_revision
    assert ask(world, "promote", canary)[0] == "Refused"
    assert "are not ready yet" in answer(world, "promote")[1]
    world.lives["b"] = Life()
    world.run(4)
    ask(world, "promote", f"{canary} #again", 4)
    assert world.serving() == {"b": 2}


@pytest.mark.parametrize(
    ("command", "value", "why"),
    [
        ("promote", REVISION, "revision 0123456789 is not the canary: the canary is CANARY"),
        ("abort", REVISION, "revision 0123456789 is not the canary: the canary is CANARY"),
        ("promote", "STABLE", "revision STABLE is stable already"),
        ("abort", "STABLE", "revision STABLE is stable already"),
        ("rollback", REVISION, "revision 0123456789 is not in the history; there is: STABLE"),
        ("rollback", "CANARY", "revision CANARY is what the spec asks for; tandem.dev/retry lets it run again"),
    ],
)
def test_an_order_that_does_not_fit_the_state_is_refused_with_the_reason(command: str, value: str, why: str) -> None:
    world = held()
    canary, stable = world.status.canary_revision, world.status.stable_revision
    outcome, message = ask(world, command, value.replace("CANARY", canary).replace("STABLE", stable))
    assert (outcome, message) == ("Refused", why.replace("CANARY", canary).replace("STABLE", stable))
    assert world.run(3).serving() == {"a": 3, "b": 1}


def test_nothing_is_promoted_while_paused() -> None:
    world = held()
    world.edit(spec("b", replicas=4, rollout=HELD, paused=True))
    world.step()
    assert ask(world, "promote", world.status.canary_revision) == ("Refused", "spec.paused is true")


# --- abort, rollback, retry ------------------------------------------------------------------------------------------


def test_abort_takes_the_canary_back_for_good() -> None:
    world = held()
    canary = world.status.canary_revision
    assert ask(world, "abort", canary, 4) == ("Accepted", f"canary {canary} is taken back")
    assert world.serving() == {"a": 4}
    assert world.condition("RolledBack")[:2] == ("True", "Aborted")
    made = world.made
    assert world.run(10).made == made
    assert ask(world, "retry", "1", 12)[0] == "Accepted"
    assert world.status.canary_revision == canary, "unless it is asked for"


def test_abort_of_a_first_install_leaves_nothing() -> None:
    world = World(spec("a"), lives={"a": Life(starts=False)}).run(4)
    ask(world, "abort", world.status.canary_revision, 4)
    assert world.pods == {}
    assert world.condition("RolledBack")[:2] == ("True", "Aborted")


def three_lives() -> tuple[World, dict[str, str]]:
    """`a`, `b` and `c` served one after the other -> revisions by drafter."""
    world = World(spec("a", replicas=2)).run(6)
    revisions = {"a": world.status.stable_revision}
    for drafter in "bc":
        world.edit(spec(drafter, replicas=2))
        world.run(14)
        revisions[drafter] = world.status.stable_revision
    return world, revisions


def test_rollback_brings_a_revision_back_without_steps_and_leaves_the_spec_alone() -> None:
    world, revisions = three_lives()
    wanted = world.spec
    world.requests_per_step = 0
    assert ask(world, "rollback", revisions["a"])[0] == "Accepted"
    world.run(4)
    assert world.serving() == {"a": 2}
    assert world.spec == wanted
    assert world.condition("RolledBack")[:2] == ("True", "RolledBackByHand")
    assert f"in favour of revision {revisions['a']}" in world.condition("RolledBack")[2]
    world.run(10)
    assert world.serving() == {"a": 2}, "for good"


def test_a_rollback_ends_with_the_next_spec() -> None:
    world, revisions = three_lives()
    ask(world, "rollback", revisions["a"], 6)
    world.edit(spec("b", replicas=2))
    world.run(16)
    assert world.serving() == {"b": 2}


def test_a_rollback_ends_with_a_retry() -> None:
    world, revisions = three_lives()
    ask(world, "rollback", revisions["a"], 6)
    ask(world, "retry", "1", 16)
    assert world.serving() == {"c": 2}


def test_two_retries_that_differ_only_behind_what_status_keeps_are_two() -> None:
    world, long = held(), "x" * 200
    assert ask(world, "retry", f"{long}1")[0] == "Accepted"
    first = world.status.answers
    world.run(3)
    assert world.status.answers == first, "answered once"
    ask(world, "retry", f"{long}2")
    assert world.status.answers != first
    assert len(world.status.answers[0].value) == LONGEST


def test_a_rollback_to_the_stable_revision_takes_the_canary_back() -> None:
    world = held()
    ask(world, "rollback", world.status.stable_revision, 6)
    assert world.serving() == {"a": 4}
    assert world.status.canary_revision == ""


def test_what_was_brought_back_by_hand_and_collapses_gives_way_to_the_last_healthy_one() -> None:
    world, revisions = three_lives()
    ask(world, "rollback", revisions["a"], 6)
    world.lives["a"] = Life(rate=WEAK)
    world.run(12)
    assert world.serving() == {"b": 2}


def test_a_quarantined_revision_is_not_brought_back() -> None:
    world, revisions = three_lives()
    ask(world, "rollback", revisions["b"], 6)
    ask(world, "rollback", f"{revisions['a']} #1", 6)
    world.lives["a"] = Life(rate=WEAK)
    world.run(12)
    assert world.serving() == {"b": 2}
    outcome, why = ask(world, "rollback", f"{revisions['a']} #2")
    assert outcome == "Refused"
    assert "is in quarantine (AcceptLengthBelowFloor)" in why


def test_status_that_was_lost_does_not_turn_an_old_order_against_the_present() -> None:
    world = held()
    ask(world, "promote", f"{world.status.canary_revision} full", 5)
    world.status = Status()
    world.run(6)
    assert world.serving() == {"b": 4}
    assert answer(world, "promote")[0] == "Refused"
