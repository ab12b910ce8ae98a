"""An act passes only when the API server and the clients say what the demo tells."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from demo import judge
from demo.install import TINY_PAIR, miswire, operator_manifests, with_host_paths
from demo.judge import Check, Measured
from demo.load import Statistics
from demo.pairs import TRAINED_ON, pair
from demo.watch import View, changed_conditions, told
from demo.world import Shown
from tandem_operator.api import SpeculativeDeployment
from tandem_operator.api.status import Counts

NOW = "2026-01-01T00:00:00Z"
GOOD_LOAD = Statistics(requests=20, tokens=1000, seconds=10.0, median_request_seconds=0.5, failures={})
BAD_LOAD = Statistics(
    requests=20, tokens=900, seconds=10.0, median_request_seconds=0.5, failures={"connection lost": 2}
)
CANARY = Counts(drafts=448, accepted=1, requests=8, user_requests=8, generated=450)
WRITTEN = pair("tiny", "drafter-foreign", "Static")


def shown(status: dict[str, Any], written: dict[str, Any] = WRITTEN, generation: int = 2, **conditions: str) -> Shown:
    listed = [
        {"type": t, "status": s, "reason": "R", "lastTransitionTime": NOW, "observedGeneration": 2}
        for t, s in conditions.items()
    ]
    metadata = {"name": "tiny", "namespace": "default", "uid": "u", "generation": generation}
    manifest = {**written, "metadata": metadata, "status": {**status, "conditions": listed}}
    return Shown({"Name": "tiny"}, SpeculativeDeployment.model_validate(manifest))


def broken(checks: list[Check]) -> list[str]:
    return [check.told for check in checks if not check.holds]


def rolled_back(**changes: Any) -> Shown:
    entry = {"revision": "bad", "reason": "AcceptLengthBelowFloor", "message": "1.00", "at": NOW, "spec": "s"}
    status = {"stableRevision": "good", "quarantined": [entry], **changes}
    return shown(status, Validated="True", RolledBack="True")


def test_a_canary_that_collapsed_under_clients_and_went_is_as_told() -> None:
    assert broken(judge.foreign(rolled_back(), "good", WRITTEN, CANARY, GOOD_LOAD)) == []


@pytest.mark.parametrize(
    ("state", "canary", "load", "not_as_told"),
    [
        (rolled_back(), Counts(drafts=64), GOOD_LOAD, "client requests reached the canary"),
        (rolled_back(), CANARY, BAD_LOAD, "no client request failed"),
        (rolled_back(stableRevision="bad"), CANARY, GOOD_LOAD, "the stable revision stayed"),
        (rolled_back(canaryRevision="bad", weight=50), CANARY, GOOD_LOAD, "no canary is left"),
        (
            rolled_back(quarantined=[{"revision": "bad", "reason": "SelfTestFailed", "at": NOW, "spec": "s"}]),
            CANARY,
            GOOD_LOAD,
            "it collapsed under them",
        ),
    ],
)
def test_a_rollback_that_went_otherwise_is_not_as_told(
    state: Shown, canary: Counts, load: Statistics, not_as_told: str
) -> None:
    assert broken(judge.foreign(state, "good", WRITTEN, canary, load)) == [not_as_told]


def test_a_spec_that_the_operator_changed_is_not_as_told() -> None:
    other = pair("tiny", "drafter", "Static")
    state = Shown({}, rolled_back().resource.model_copy(update={"spec": shown({}, other).resource.spec}))
    checks = judge.foreign(state, "good", WRITTEN, CANARY, GOOD_LOAD)
    assert broken(checks) == ["the spec still says what the user wrote"]


def refused(engine: list[int]) -> Shown:
    indexes = {"engine": engine, "trainedOn": list(TRAINED_ON)}
    validation = {"key": "k", "verdict": "DoesNotFit", "summary": "...", "captureIndexes": indexes, "at": NOW}
    return shown({"stableRevision": "good", "validation": validation}, Validated="False", Ready="True")


def test_a_miswired_pair_is_refused_without_a_worker() -> None:
    assert broken(judge.miswired(refused([1, 3, 4]), "good", {"good"}, GOOD_LOAD)) == []
    assert broken(judge.miswired(refused([1, 3, 4]), "good", {"good", "bad"}, GOOD_LOAD)) == [
        "no worker pod of it ever existed"
    ]
    assert broken(judge.miswired(refused([2, 4, 5]), "good", {"good"}, GOOD_LOAD)) == [
        "the report knows what would be captured"
    ]


def test_a_good_pair_is_proven_serves_and_is_accepted() -> None:
    probe = {"acceptLength": 3.2, "position0": 0.7, "drafts": 300, "prompts": 8, "threshold": 1.5}
    validation = {"key": "k", "verdict": "Fits", "probe": probe, "at": NOW}
    state = shown({"validation": validation}, Validated="True", Ready="True", SpeculationActive="True")
    without = Measured(GOOD_LOAD, Counts())
    assert broken(judge.good_pair(state, Measured(GOOD_LOAD, Counts(drafts=100, accepted=290)), without)) == []
    weak = judge.good_pair(state, Measured(GOOD_LOAD, Counts(drafts=100, accepted=50)), without)
    assert broken(weak) == ["the target accepts the drafts of client requests"]


def test_with_nothing_to_go_back_to_the_target_serves_alone() -> None:
    entry = {"revision": "bad", "reason": "NothingAccepted", "at": NOW, "spec": "s"}
    state = shown({"quarantined": [entry]}, Ready="True", SpeculationActive="False")
    assert broken(judge.nothing_to_go_back_to(state, Measured(GOOD_LOAD, Counts(generated=512)))) == []
    drafting = judge.nothing_to_go_back_to(state, Measured(GOOD_LOAD, Counts(drafts=9)))
    assert broken(drafting) == ["nothing is drafted any more"]


def test_what_was_said_of_an_earlier_spec_is_not_taken_for_an_answer() -> None:
    assert shown({}, generation=2, Validated="False").status_of("Validated") == "False"
    assert shown({}, generation=3, Validated="False").status_of("Validated") == "Unknown"


def test_no_requests_is_no_proof_that_none_failed() -> None:
    silent = Statistics(requests=0, tokens=0, seconds=0.0, median_request_seconds=0.0, failures={})
    assert "no client request failed" in broken(judge.miswired(refused([1, 3, 4]), "good", {"good"}, silent))


def test_the_miswired_copy_lists_the_same_numbers_where_they_mean_something_else() -> None:
    config = json.loads((TINY_PAIR / "drafter" / "config.json").read_text())
    changed = miswire(config)
    assert changed["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert "eagle_config" not in changed
    assert changed["hidden_size"] == config["hidden_size"]


def test_only_the_operators_container_is_told_which_folders_are_allowed() -> None:
    documents = [with_host_paths(document, (Path("/models"),)) for document in operator_manifests()]
    assert documents[0]["kind"] == "Namespace"
    deployments = [document for document in documents if document["kind"] == "Deployment"]
    arguments = [c["args"] for d in deployments for c in d["spec"]["template"]["spec"]["containers"]]
    assert arguments == [["--allowed-host-path=/models"]]
    assert [d for d in documents if d["kind"] != "Deployment"] == [
        d for d in operator_manifests() if d["kind"] != "Deployment"
    ]


def test_a_condition_is_told_once_until_it_changes() -> None:
    first, second = shown({}, Ready="Unknown", Validated="True"), shown({}, Ready="True", Validated="True")
    assert [c.type for c in changed_conditions(None, first)] == ["Validated"]
    assert [c.type for c in changed_conditions(first, second)] == ["Ready"]
    assert changed_conditions(second, second) == []


def test_the_story_shows_sentences_as_they_are() -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    View(console).checks([Check("it serves", False, "captured [embedding, 3, 4]")])
    View(console).say("DoesNotFit: captured [embedding, 3, 4]")
    text = console.export_text()
    assert "NOT AS TOLD  it serves  captured [embedding, 3, 4]" in text
    assert "DoesNotFit: captured [embedding, 3, 4]" in text
    assert told({"accept_length": 3.9, "speedup": None, "drafts": 12}) == "accept length 3.9, drafts 12"
