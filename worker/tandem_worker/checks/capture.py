"""Captured states: what the engine will capture against what the drafter was trained on."""

from __future__ import annotations

from collections.abc import Iterable

from tandem_worker.checkpoint.errors import Details, error, note, warning
from tandem_worker.checkpoint.layer_ids import FIELD, NESTED, as_outputs
from tandem_worker.checks.pair import Pair
from tandem_worker.finding import Finding


def trained_on(pair: Pair) -> Iterable[Finding]:
    engine, trained = list(pair.drafter.capture_indexes), pair.trained_on
    if trained is None or list(trained) == engine:
        return
    yield error(
        "TDM-CAPTURE-INDEX-MISMATCH",
        f"The builtin engine will capture {engine}; this drafter was trained on {list(trained)}: {remedy(trained)}.",
        file=pair.drafter_checkpoint.config.file,
        where=FIELD if pair.drafter.declared_layer_ids is None else pair.drafter.declared_at,
        found=engine,
        expected=list(trained),
        action=remedy(trained).capitalize() + ".",
    )


def capture_order(pair: Pair) -> Iterable[Finding]:
    """Unusual lists are kept as they stand; the user hears of them."""
    indexes = pair.drafter.capture_indexes
    details: Details = {
        "file": pair.drafter_checkpoint.config.file,
        "where": pair.drafter.declared_at,
        "found": list(indexes),
    }
    if len(set(indexes)) < len(indexes):
        message = f"The same state is captured more than once: {list(indexes)}."
        yield warning("TDM-CAPTURE-INDEXES-REPEATED", message, **details)
    elif list(indexes) != sorted(indexes):
        message = (
            f"The capture indexes do not rise, {list(indexes)}; they are kept in this order, the order of fc's slots."
        )
        yield warning("TDM-CAPTURE-INDEXES-UNSORTED", message, **details)


def defaults_told(pair: Pair) -> Iterable[Finding]:
    """What the config leaves open, engines fill in differently."""
    drafter, config = pair.drafter, pair.drafter_checkpoint.config
    if drafter.declared_layer_ids is None:
        message = f"The config names no layer ids; the builtin engine captures {list(drafter.capture_indexes)}."
        yield note("TDM-LAYER-IDS-DEFAULT", message, file=config.file, where=FIELD, expected="[2, n // 2, n - 3]")
    if not config.has("norm_before_residual"):
        message = (
            "The config does not state norm_before_residual; the builtin engine takes false, some engines take true."
        )
        yield note("TDM-NORM-BEFORE-RESIDUAL-DEFAULT", message, file=config.file, where="norm_before_residual")


def remedy(trained: tuple[int, ...]) -> str:
    """How to write capture indexes so that the builtin engine captures them."""
    return f"write {list(trained)} at top level, or {as_outputs(trained)} inside {NESTED}"
