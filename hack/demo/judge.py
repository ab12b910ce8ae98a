"""Is what an act ended in what the demo tells? Pure: from the state of the object and figures to a list of checks."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from demo.load import Statistics
from demo.pairs import Manifest
from demo.world import Shown
from tandem_operator.api.status import Counts
from tandem_operator.plan.analysis.evidence import accept_length

LEAST_ACCEPT_LENGTH = 2.0  # of the good pair; it is measured at 3.9 on held-out prompts
LEAST_CANARY_REQUESTS = 3
COLLAPSES = frozenset({"NothingAccepted", "AcceptLengthBelowFloor", "AcceptanceBelowBaseline"})


class Check(NamedTuple):
    told: str  # as the demo tells it
    holds: bool
    found: str  # what was there


class Measured(NamedTuple):
    """One load, and what the workers counted meanwhile."""

    load: Statistics
    counts: Counts


def good_pair(shown: Shown, with_speculation: Measured, without: Measured) -> list[Check]:
    status = shown.resource.status
    probe = status.validation.probe if status.validation else None
    length = _length(with_speculation.counts)
    return [
        condition(shown, "Validated", "True", "the pair was proven by running it before it served"),
        Check("the proof has figures", probe is not None, f"accept length {probe.accept_length}" if probe else "none"),
        condition(shown, "Ready", "True", "it serves"),
        condition(shown, "SpeculationActive", "True", "it speculates"),
        Check("the target accepts the drafts of client requests", length >= LEAST_ACCEPT_LENGTH, f"{length:.2f}"),
        Check("without speculation nothing is drafted", not without.counts.drafts, f"{without.counts.drafts} drafts"),
        no_failure(with_speculation.load),
        no_failure(without.load),
    ]


def miswired(shown: Shown, stable: str, revisions: Set[str], load: Statistics) -> list[Check]:
    """`stable`: the revision that served before; `revisions`: of all worker pods that ever existed."""
    validation = shown.resource.status.validation
    indexes = validation.capture_indexes if validation else None
    wired, trained = (indexes.engine, indexes.trained_on) if indexes else ([], None)
    return [
        condition(shown, "Validated", "False", "the pair was refused"),
        Check(
            "because it does not fit", validation is not None and validation.verdict == "DoesNotFit", _verdict(shown)
        ),
        Check("the report knows what would be captured", wired == [1, 3, 4], f"captured {wired}"),
        Check("and what the drafter was trained on", trained == [2, 4, 5], f"trained on {trained}"),
        Check("no worker pod of it ever existed", revisions == {stable}, f"pods of {_listed(revisions)}"),
        _stable(shown, stable),
        condition(shown, "Ready", "True", "and it is ready"),
        no_failure(load),
    ]


def foreign(shown: Shown, stable: str, written: Manifest, canary: Counts, load: Statistics) -> list[Check]:
    """`written`: the object as the user wrote it; `canary`: what the canary's workers counted."""
    status = shown.resource.status
    entry = status.quarantined[-1] if status.quarantined else None
    return [
        condition(shown, "Validated", "True", "on paper the pair fits"),
        Check(
            "client requests reached the canary",
            canary.user_requests >= LEAST_CANARY_REQUESTS,
            f"{canary.user_requests} requests, {canary.drafts} drafts",
        ),
        Check(
            "it collapsed under them", entry is not None and entry.reason in COLLAPSES, entry.message if entry else ""
        ),
        condition(shown, "RolledBack", "True", "it was rolled back"),
        Check("its revision is quarantined", entry is not None and entry.revision != stable, _quarantine(shown)),
        Check(
            "no canary is left", not status.canary_revision and not status.weight, f"{status.canary_revision or '-'}"
        ),
        _stable(shown, stable),
        Check("the spec still says what the user wrote", _says(shown, written), "compared field by field"),
        no_failure(load),
    ]


def nothing_to_go_back_to(shown: Shown, after: Measured) -> list[Check]:
    """`after`: client requests once speculation was off."""
    return [
        condition(shown, "Ready", "True", "the target serves"),
        condition(shown, "SpeculationActive", "False", "with speculation off"),
        Check("the revision is quarantined", bool(shown.resource.status.quarantined), _quarantine(shown)),
        Check("nothing is drafted any more", not after.counts.drafts, f"{after.counts.drafts} drafts"),
        no_failure(after.load),
    ]


def condition(shown: Shown, kind: str, wanted: str, told: str) -> Check:
    found = shown.status_of(kind)
    return Check(told, found == wanted, f"{kind}={found}")


def no_failure(load: Statistics) -> Check:
    kinds = ", ".join(f"{count} x {kind}" for kind, count in load.failures.items())
    found = f"{load.failed} of {load.requests} requests failed" + (f": {kinds}" if kinds else "")
    return Check("no client request failed", load.requests > 0 and load.failed == 0, found)


def _stable(shown: Shown, stable: str) -> Check:
    found = shown.resource.status.stable_revision
    return Check("the stable revision stayed", found == stable, f"{stable} -> {found}")


def _says(shown: Shown, written: Manifest) -> bool:
    """Every field that the user wrote is there with its value; defaults may have been added beside it."""
    return _contains(shown.resource.spec.model_dump(mode="json", by_alias=True), written["spec"])


def _contains(whole: object, part: object) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        return all(_contains(*both) for both in zip(whole, part, strict=True))
    return whole == part


def _length(counts: Counts) -> float:
    return accept_length(counts) if counts.drafts else 1.0


def _verdict(shown: Shown) -> str:
    validation = shown.resource.status.validation
    return f"{validation.verdict}: {validation.summary}" if validation else "no report"


def _quarantine(shown: Shown) -> str:
    entries = shown.resource.status.quarantined
    return "; ".join(f"{entry.revision}: {entry.reason}" for entry in entries) or "none"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
