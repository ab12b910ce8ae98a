"""The SpeculativeDeployments that the acts apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandem_operator.api import GROUP, KIND, VERSION

Manifest = dict[str, Any]

CLAIM = "tiny-pair"
"""Of the volume with the demo's checkpoints."""

TRAINED_ON = (2, 4, 5)
"""Capture indexes that the tiny pair's drafter was trained on; its card says so."""


def pair(name: str, drafter: str, mode: str, trained_on: Sequence[int] = ()) -> Manifest:
    """The tiny target with the drafter in folder `drafter` of the volume. Analysis is quick: a demo is watched."""
    chosen: Manifest = {"source": _source(drafter)}
    if trained_on:
        chosen["trainedOn"] = {"captureIndexes": list(trained_on)}
    return _resource(
        name,
        {
            "drafter": chosen,
            "speculation": {"draftLength": 4},
            "validation": {"mode": mode},
            "rollout": {
                "steps": [{"weight": 50}],
                "progressDeadlineSeconds": 120,
                "analysis": {"intervalSeconds": 2},
            },
            "guard": {"minAcceptLength": 1.5},
        },
    )


def target_only(name: str, folder: str = "target") -> Manifest:
    return _resource(name, {"speculation": {"enabled": False}, "target": {"source": _source(folder)}})


def on_gpu(manifest: Manifest, memory_fraction: float, kernel_cache: str) -> Manifest:
    """The same object, its workers on a share of a GPU. The cache of compiled kernels outlives its pods."""
    spec = manifest["spec"]
    engine = {"gpuMemoryFraction": memory_fraction, **spec.get("engine", {})}
    pod = spec.get("pod", {})
    env = [*pod.get("env", []), {"name": "TRITON_CACHE_DIR", "value": kernel_cache}]
    placed = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "engine": engine, "pod": {**pod, "env": env}}
    return {**manifest, "spec": {**spec, **placed}}


def _resource(name: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"target": {"source": _source("target")}, **spec},
    }


def _source(folder: str) -> Manifest:
    return {"pvc": {"claimName": CLAIM, "path": folder}}
