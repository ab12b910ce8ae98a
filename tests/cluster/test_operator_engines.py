"""SGLang and vLLM as engines: validated for their version, judged by their own counters, switched off by a restart.

The engines are simulators that take the command line, answer on the paths and count under the names of the real ones.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from cluster.operator_kit import Story, condition, simulated
from cluster.support import Manifest, eventually
from cluster.test_operator_rollout import FIGURES

pytestmark = pytest.mark.cluster

ENGINES = {"sglang": "0.5.23", "vllm": "0.33.0"}


def engine(kind: str, **fields: Any) -> Manifest:
    return {"type": kind, "version": ENGINES[kind], "image": "localhost/engine-simulator:dev", **fields}


def alone(story: Story) -> bool:
    """Every worker that is ready runs without its drafter, as its command line says."""
    found = [item for item in story.items("pods", "pair") if item["status"].get("podIP")]
    lines = [" ".join(item["spec"]["containers"][0]["args"]) for item in found if "validate" not in str(item)]
    return bool(story.ready_pods()) and not any("speculative" in line for line in lines)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_pair_rolls_out_and_is_taken_back_by_the_engines_own_counters(story: Story, kind: str) -> None:
    story.apply(simulated(engine=engine(kind)))
    first = story.until_stable()
    assert condition(story.show(), "SpeculationActive").status == "True"
    with story.traffic():
        story.apply(simulated(engine=engine(kind), sim={"seed": 1}))
        second = story.until_stable()
        assert second != first
        advanced = story.event("CanaryAdvanced").note
        assert re.search(rf"Canary {second} goes to weight 100: {FIGURES}", advanced)
        for pod in story.ready_pods(revision=second):
            pod.tell(acceptance=[0.0])
        said = story.until_condition("RolledBack", "True", "NothingAccepted")
        story.until("the first revision serves", lambda _: story.serving() == {first: 1})
    assert said.message.startswith(f"Revision {second}: accept length 1.00")
    shown = story.show()
    assert shown.status.validation is not None
    assert shown.status.validation.summary.startswith("The drafter fits the target on paper")
    assert {"sglang": "SGLang 0.5.23", "vllm": "vLLM 0.33.0"}[kind] in shown.status.validation.summary


@pytest.mark.parametrize("kind", ENGINES)
def test_without_traffic_or_an_earlier_revision_prompts_find_a_dead_drafter_and_it_restarts_without(
    story: Story, kind: str
) -> None:
    story.apply(simulated(engine=engine(kind), sim={"acceptance": 0}))
    story.until_condition("RolledBack", "True", "NothingAccepted")
    story.until("its workers run the target alone", lambda _: alone(story))
    said = story.until_condition("SpeculationActive", "False", "NothingAccepted")
    assert said.message.startswith("switched off, the target keeps serving")
    (revision,) = story.serving()
    assert story.show().status.stable_revision == revision
    with story.traffic() as traffic:
        eventually(lambda: traffic.answered >= 3)


def test_an_engine_of_another_version_than_was_validated_is_taken_back(story: Story) -> None:
    story.apply(simulated(engine=engine("sglang")))
    stable = story.until_stable()
    story.apply(simulated(engine=engine("sglang"), sim={"engine_version": "0.5.12"}))
    said = story.until_condition("RolledBack", "True", "EngineVersionDiffers")
    story.until("only the stable revision serves", lambda _: story.serving() == {stable: 1})
    assert "runs sglang 0.5.12, and the pair was validated for 0.5.23" in said.message


def test_an_engine_does_not_start_on_files_that_nobody_validated(story: Story) -> None:
    folder = story.checkpoint("moving")
    story.apply(simulated("moving", engine=engine("vllm")))
    first = story.until_stable()
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 20000.0'))
    story.kubectl("delete", "pod", "--selector", "tandem.dev/role=worker", "--wait=false")
    anew = story.until(
        "it is validated anew", lambda shown: shown.status.validation and shown.status.validation.attempt
    )
    assert anew.status.stable_revision == first
    assert story.until_stable() != first


REFUSED: dict[str, tuple[str, Manifest, str, str]] = {
    # what: (engine, its fields, code, words)
    "an algorithm that skips fc": (
        "sglang", {"args": ["--speculative-algorithm", "EAGLE"]}, "TDM-ALGORITHM", "EAGLE"),
    "the same in JSON": (
        "vllm", {"args": ["--speculative-config", '{"method": "eagle"}']}, "TDM-ALGORITHM", "eagle"),
    "a faked accept length": (
        "sglang", {"env": [{"name": "SGLANG_SIMULATE_ACC_LEN", "value": "3"}]}, "TDM-ACCEPTANCE-FAKED",
        "SGLANG_SIMULATE_ACC_LEN"),
    "a context beyond the drafter's": ("sglang", {"contextLength": 4096}, "TDM-MAX-POSITION-SHORTER", "512"),
}  # fmt: skip


def test_arguments_that_defeat_a_pair_are_refused_before_anything_starts(story: Story) -> None:
    for number, (kind, fields, _, _) in enumerate(REFUSED.values()):
        story.apply(simulated(engine=engine(kind, **fields)), name=f"pair-{number}")
    for number, (what, (_, _, code, words)) in enumerate(REFUSED.items()):
        story.until_condition("Validated", "False", "DoesNotFit", name=f"pair-{number}")
        validation = story.show(f"pair-{number}").status.validation
        assert validation is not None
        found = {finding.code: finding.message for finding in validation.findings}
        assert words in found.get(code, ""), f"{what}: {found}"
        assert story.serving(f"pair-{number}") == {}


def test_a_version_that_nobody_looked_at_could_not_be_checked(story: Story) -> None:
    story.apply(simulated(engine=engine("vllm") | {"version": "0.99.0"}))
    said = story.until_condition("Validated", "False", "CouldNotCheck")
    assert "0.99.0" in said.message
