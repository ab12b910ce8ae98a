"""How things stand, in words that mean the same in every world: revisions by what they are made of, no times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tandem_operator.api import Status
from tandem_operator.api.recipe import Recipe


def label(recipe: Recipe) -> str:
    source = recipe.drafter.host_path if recipe.drafter else None
    drafter = source.path.rsplit("/", 1)[1] if source else "no drafter"
    return f"{drafter}{'' if recipe.speculates else ', target alone'}{'' if recipe.fingerprints else ', unproven'}"


def told(
    status: Status,
    records: Iterable[tuple[int, str, bool]],
    workers: Iterable[tuple[str, int, int]],
    speculating: Iterable[tuple[str, bool | None]],
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """`records`: number, revision, whether it served. `workers`: revision, how many are wanted, how many are ready.
    `speculating`: revision of each ready worker, and whether it drafts."""

    def named(revision: str) -> str:
        return labels.get(revision, "lost") if revision else ""

    progress = status.progress
    return {
        "stable": named(status.stable_revision),
        "canary": [named(status.canary_revision), status.weight, status.share],
        "step": [progress.step, progress.passed] if progress else [],
        "quarantined": sorted([named(q.revision), q.reason] for q in status.quarantined),
        "conditions": [[c.type, c.status, c.reason] for c in status.conditions],
        "answers": [[answer.command, answer.outcome] for answer in status.answers],
        "validation": status.validation.verdict if status.validation else "",
        "replicas": status.replicas,
        "records": [[named(revision), served] for _, revision, served in sorted(records)],
        "workers": sorted([named(revision), wanted, ready] for revision, wanted, ready in workers if wanted or ready),
        "speculating": sorted(([named(revision), drafts] for revision, drafts in speculating), key=str),
    }
