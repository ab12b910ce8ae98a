"""A probe whose node is drained: its next pod goes on where the pass was, and comes to the same verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster.operator_kit import LIMIT_SECONDS, TINY_PAIR, Story, provide, simulated
from cluster.support import Manifest, eventually
from tandem_operator import names
from tandem_worker.validate import Mode, Request, validate

pytestmark = pytest.mark.cluster

LAYERS = 8
WIDER = 16  # a layer then takes a quarter of a second, and the eviction's order a tenth of that


def widen(target: Path) -> None:
    """Every MLP so many times as wide, by neurons that say nothing: slower layers, the same streams."""
    tensors = load_file(target / "model.safetensors")
    for name, weight in tensors.items():
        if ".mlp." in name:
            along = 1 if "down_proj" in name else 0
            silent = [torch.zeros_like(weight)] * (WIDER - 1)
            tensors[name] = torch.cat([weight, *silent], along)
    save_file(tensors, target / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    config["intermediate_size"] *= WIDER
    (target / "config.json").write_text(json.dumps(config))


def validating(story: Story) -> list[Manifest]:
    """Pods of the Job that still run."""
    query = {"labelSelector": f"{names.ROLE}={names.VALIDATION}"}
    pods: list[Manifest] = story.api.request("GET", story.path("pods"), **query)["items"]
    return [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]


def evict(story: Story, pod: str) -> None:
    """As `kubectl drain` does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": story.namespace}}
    story.api.request("POST", story.path("pods", f"{pod}/eviction"), body)


def newest(reached: Path) -> int:
    """The layer behind which the pass is, by what is kept of it."""
    return max(int(file.stem.removeprefix("stream-")) for file in reached.glob("stream-*.safetensors"))


def test_an_evicted_probe_goes_on_at_the_layer_that_it_had_reached(story: Story) -> None:
    widen(story.checkpoint("target", like="target"))
    scratch = story.operator.checkpoints / story.namespace / "scratch"
    scratch.mkdir()
    provide(story, "scratch", scratch, "ReadWriteOnce")
    story.apply(simulated(validation={"mode": "Probe", "probe": {"resume": {"claimName": "scratch"}}}))
    reached = scratch / "pair"
    eventually((reached / "stream-0001.safetensors").exists, LIMIT_SECONDS)
    (first,) = validating(story)
    evict(story, first["metadata"]["name"])
    eventually(lambda: not validating(story), LIMIT_SECONDS)
    layer = newest(reached)
    assert 1 <= layer < LAYERS, "it was evicted in the middle"
    undisturbed = validate(Request(TINY_PAIR / "target", TINY_PAIR / "drafter", Mode.PROBE, 5, 1.3))
    (second,) = eventually(lambda: validating(story), LIMIT_SECONDS)  # the Job controller waits for ten seconds
    said = story.until_condition("Validated", "True", "Fits")
    log = story.kubectl("logs", second["metadata"]["name"])
    assert f"goes on behind layer {layer} of {LAYERS}" in log
    assert sorted(file.name for file in reached.iterdir()) == [
        f"stream-{index:04d}.safetensors" for index in range(LAYERS + 1)
    ]
    assert said.message == undisturbed.summary
