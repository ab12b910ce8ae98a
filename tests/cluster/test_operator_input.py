"""Bad input: each ends in a condition and an event that say what, where and what to do, and disturbs nothing else.

Every validation here is the real worker's, in a Job, on a broken copy of the tiny pair.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.operator_kit import Story, condition, provide, pvc, real, simulated
from tandem_operator.api import SpeculativeDeployment

pytestmark = pytest.mark.cluster

WEIGHTS = "model.safetensors"


def edit(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def truncate(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])


def lengthen(folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as file:
        file.write(b"\0" * 512)


def lfs_pointer(folder: Path) -> None:
    oid = "0" * 64
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 123456789\n"
    (folder / WEIGHTS).write_text(text)


def pickle_only(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


BROKEN: dict[str, tuple[str, Callable[[Path], object], str, tuple[str, ...]]] = {
    # what: (part, how, verdict, words that the user must find in condition and event)
    "a malformed config": (
        "drafter", lambda f: (f / "config.json").write_text('{"hidden_size": 96,'), "CouldNotCheck", ("config.json",)),
    "a missing config": ("target", lambda f: (f / "config.json").unlink(), "CouldNotCheck", ("config.json",)),
    "a missing shard": ("target", lambda f: (f / WEIGHTS).unlink(), "CouldNotCheck", ("safetensors",)),
    "a truncated shard": ("target", truncate, "CouldNotCheck", (WEIGHTS, "truncated")),
    "a shard longer than declared": ("drafter", lengthen, "CouldNotCheck", (WEIGHTS, "longer")),
    "an LFS pointer": ("drafter", lfs_pointer, "CouldNotCheck", (WEIGHTS, "LFS")),
    "an HTML page": (
        "drafter", lambda f: (f / WEIGHTS).write_text("<!DOCTYPE html><html>Sign in</html>"), "CouldNotCheck",
        (WEIGHTS, "HTML")),
    "an empty directory": ("drafter", empty, "CouldNotCheck", ("drafter",)),
    "a missing directory": ("drafter", shutil.rmtree, "CouldNotCheck", ("drafter",)),
    "a pickle": ("drafter", pickle_only, "CouldNotCheck", ("pytorch_model.bin", "safetensors")),
    "an unknown architecture": (
        "target", lambda f: edit(f, architectures=["MambaForCausalLM"]), "CouldNotCheck", ("MambaForCausalLM",)),
    "layer ids out of range": (
        "drafter", lambda f: edit(f, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 40]}), "DoesNotFit",
        ("40",)),
}  # fmt: skip


def words_of(shown: SpeculativeDeployment) -> str:
    """All that the user reads of a verdict: the condition, then the findings with their remedies."""
    validation = shown.status.validation
    findings = [finding.model_dump_json() for finding in validation.findings] if validation else []
    return " ".join([condition(shown, "Validated").message, *findings])


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_checkpoint_is_named_and_no_worker_is_started(story: Story, what: str) -> None:
    part, break_it, verdict, words = BROKEN[what]
    folder = story.checkpoint(part, like=part)
    break_it(folder)
    sources: dict[str, Any] = {part: {"source": {"hostPath": {"path": str(folder)}}}}
    story.apply(simulated(**sources))
    said = story.until_condition("Validated", "False", verdict)
    for word in words:
        assert word.lower() in words_of(story.show()).lower()
    assert "Traceback" not in said.message
    event = story.event(f"Validated{verdict}")
    assert (event.type, event.note) == ("Warning", said.message[:1024])
    validation = story.show().status.validation
    assert validation
    for finding in validation.findings:
        told = [event.type for event in story.events() if event.note.startswith(finding.message[:1000])]
        assert "Warning" in told or finding.severity != "Error"
    assert story.until_condition("Ready", "False", "NotValidated").message == f"nothing serves yet: {said.message}"
    (job,) = story.items("jobs", "pair")
    assert job["status"].get("failed", 0) <= 1, "a verdict is an answer, not a failure to be tried again"
    assert story.items("deployments", "pair") == []
    assert story.show().status.validation.findings  # type: ignore[union-attr]
    assert any(finding.action for finding in story.show().status.validation.findings)  # type: ignore[union-attr]


def test_a_pair_that_is_broken_later_does_not_disturb_the_one_that_serves(story: Story) -> None:
    story.apply(simulated())
    stable = story.until_stable()
    before = {pod.uid for pod in story.pods()}
    truncate(story.checkpoint("broken"))
    story.apply(simulated("broken"))
    story.until_condition("Validated", "False", "CouldNotCheck")
    shown = story.until_condition("Progressing", "False", "CouldNotCheck")
    assert "truncated" in shown.message
    assert condition(story.show(), "Ready").status == "True"
    assert story.serving() == {stable: 1}
    assert {pod.uid for pod in story.pods()} == before


def test_a_weight_that_is_not_a_number_is_found_by_the_probe(story: Story) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = story.checkpoint("nan")
    tensors = load_file(folder / WEIGHTS)
    tensors["fc.weight"][0, 0] = torch.nan
    save_file(tensors, folder / WEIGHTS)
    story.apply(simulated("nan", validation={"mode": "Probe"}))
    said = story.until("a verdict", lambda shown: condition(shown, "Validated").status == "False", limit_seconds=90)
    assert "fc.weight" in words_of(said)
    assert "nan" in words_of(said).lower()
    assert story.items("deployments", "pair") == []


def test_the_target_as_its_own_drafter_is_refused_even_under_another_path(story: Story) -> None:
    story.checkpoint("copy", like="target")
    story.apply(simulated("copy"))
    said = story.until("a verdict", lambda shown: condition(shown, "Validated").status == "False")
    assert "target" in words_of(said)
    assert story.items("deployments", "pair") == []


def test_a_path_outside_the_allowed_prefixes_starts_nothing(story: Story) -> None:
    story.apply(simulated(target={"source": {"hostPath": {"path": "/etc"}}}))
    said = story.until_condition("Validated", "False", "HostPathNotAllowed")
    assert said.message.startswith("spec.target.source.hostPath.path /etc is outside what the operator allows (")
    assert "use a pvc source, or start the operator with --allowed-host-path" in said.message
    assert story.event("ValidatedHostPathNotAllowed").type == "Warning"
    assert story.items("jobs", "pair") == []


def test_a_pair_that_does_not_fit_is_rolled_out_all_the_same_when_enforcement_is_warn(story: Story) -> None:
    folder = story.checkpoint("odd")
    edit(folder, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 40]})
    story.apply(simulated("odd", validation={"enforcement": "Warn"}))
    said = story.until_condition("Validated", "False", "DoesNotFit")
    assert said.message.endswith("(validation.enforcement is Warn: rolled out all the same)")
    story.until_condition("Ready", "True", "Serving")


def test_a_claim_that_does_not_exist_is_waited_for_by_name(story: Story) -> None:
    spec = simulated()
    spec |= {"target": pvc("models", "target"), "drafter": pvc("models", "drafter")}
    story.apply(spec)
    said = story.until_condition("Validated", "Unknown", "Waiting")
    assert 'persistentvolumeclaim "models" not found' in said.message
    assert story.event("ValidatedWaiting").note == said.message
    folder = story.checkpoint("drafter").parent
    story.checkpoint("target", like="target")
    provide(story, "models", folder)
    story.until_stable()


def test_a_child_that_the_api_server_refuses_is_told_in_its_words(story: Story) -> None:
    nonsense = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": "all"}}}
    story.apply(simulated(pod={"affinity": nonsense}))
    said = story.until_condition("Progressing", "False", "ChildRefused")
    assert said.message.startswith("Job pair-validate-")
    assert "nodeSelectorTerms" in said.message
    assert story.event("ChildRefused").type == "Warning"
    story.apply(simulated())
    story.until_stable()


def test_a_quota_that_leaves_no_room_is_told_in_its_words(story: Story) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-deployments"},
        "spec": {"hard": {"count/deployments.apps": "0"}},
    }
    story.kubectl("apply", "-f", "-", stdin=json.dumps(quota))
    story.kubectl("wait", "resourcequota/no-deployments", "--for=jsonpath={.status.hard}", "--timeout=30s")
    story.apply(simulated())
    said = story.until_condition("Progressing", "False", "ChildRefused")
    assert "exceeded quota: no-deployments" in said.message
    story.kubectl("delete", "resourcequota", "no-deployments")
    story.apply(simulated(replicas=2))  # any change is looked at at once
    story.until_stable()


def test_files_that_change_under_a_validated_volume_are_validated_anew(story: Story) -> None:
    folder = story.checkpoint("changing")
    story.apply(real("changing", rollout={"steps": []}))
    first = story.until_stable(limit_seconds=120)
    edit(folder, note="the same pair, other files")
    (pod,) = story.ready_pods()
    story.kubectl("delete", "pod", pod.name, "--wait=false")
    shown = story.until(
        "another revision serves", lambda shown: shown.status.stable_revision not in ("", first), limit_seconds=120
    )
    assert shown.status.validation is not None
    assert shown.status.validation.attempt == 1
    assert len(story.items("jobs", "pair")) == 2
    event = story.event("ValidatedCheckpointChanged")
    assert event.note.startswith("a worker found other files than were validated, so it did not start; validating")
    story.until("one worker serves", lambda _: story.serving() == {shown.status.stable_revision: 1}, limit_seconds=120)
