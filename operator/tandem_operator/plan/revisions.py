"""Revisions: the hash of a recipe, that is, of everything that changes what runs."""

from __future__ import annotations

import hashlib
import json

from tandem_operator.api import Spec
from tandem_operator.api.base import ApiModel
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.spec import EngineType
from tandem_operator.api.status import Fingerprints

DEADLINE_SECONDS = 1800


def recipe(spec: Spec, name: str, fingerprints: Fingerprints | None, weight_bytes: int | None = None) -> Recipe:
    """`fingerprints` of the validated files; None where validation was not needed or not enforced."""
    return Recipe(
        target=spec.target.source,
        drafter=spec.drafter.source if spec.drafter else None,
        speculation=spec.speculation,
        engine=spec.engine,
        resources=spec.resources,
        pod=spec.pod,
        model_name=spec.model_name or name,
        fingerprints=fingerprints,
        weight_bytes=weight_bytes,
        baseline_probe=spec.guard.baseline_probe if spec.speculates and spec.engine.type == EngineType.BUILTIN else 0.0,
    )


def without_speculation(spec: Spec) -> Spec:
    """The target alone."""
    off = spec.speculation.model_copy(update={"enabled": False})
    return spec.model_copy(update={"drafter": None, "speculation": off})


def deadline_seconds(spec: Spec, recipe: Recipe | None) -> int:
    """How long workers have to become ready: what the user says, else enough to load them, and half of that again."""
    if spec.rollout.progress_deadline_seconds is not None:
        return spec.rollout.progress_deadline_seconds
    return max(DEADLINE_SECONDS, recipe.start_up_seconds * 3 // 2 if recipe and recipe.weight_bytes else 0)


def canonical(*parts: object) -> str:
    """Models and plain values as text: the same over processes and versions of pydantic."""

    def plain(part: object) -> object:
        if isinstance(part, tuple):
            return [plain(each) for each in part]
        return part.model_dump(mode="json", exclude_defaults=True) if isinstance(part, ApiModel) else part

    return json.dumps([plain(part) for part in parts], sort_keys=True, separators=(",", ":"))


def short_hash(*parts: object) -> str:
    """10 hex digits over `canonical`."""
    return hashlib.sha256(canonical(*parts).encode()).hexdigest()[:10]


def spec_hash(spec: Spec, retry: str) -> str:
    """What ends a quarantine when it changes. Replicas and the pause are left out: an autoscaler, or a rollout that is
    let go on, must not re-run what collapsed."""
    return short_hash(spec.model_copy(update={"replicas": 1, "paused": False}), retry)
