"""Facts seen in an engine's source against the rows of its table."""

from __future__ import annotations

from typing import Any

from tandem_worker.engines.table import Engine
from verify_tables.facts import Fact

# What an absent row means.
DEFAULTS: dict[str, Any] = {
    "hook": False,
    "default_shift": 0,
    "flag": [],
    "layers_most": 0,
    "d2t_of_full": "harmless",
    "tie": "ignored",
    "fc_skipped": "never",
}


# Classes that inherit the hook while their decoder never looks at what it sets: no state is delivered.
# https://github.com/sgl-project/sglang/issues/25408
INERT_HOOKS = {("sglang", "qwen3_5")}


def row_value(engine: Engine, fact: Fact) -> Any:
    """What the table says, brought to the form of the fact."""
    value = engine.ask(fact.name, DEFAULTS.get(fact.name), **fact.keys).value
    if fact.name == "drafter":
        known = isinstance(value, dict) and value["family"] != "plain"
        if fact.of == "registered":
            return known
        return value["class"] if known else None
    if fact.name == "names":
        return {name: value[name] for name in ("prefixes", "layer0", "unmatched")}
    return value


def difference(engine: Engine, fact: Fact) -> dict[str, Any] | None:
    """None when table and source agree."""
    if fact.name == "hook" and (fact.value is None or fact.of):
        return None  # the class is not in this version, or the table does not speak of it: told in a list of its own
    stated = row_value(engine, fact)
    inert = fact.name == "hook" and stated is False and (engine.name, fact.keys["family"]) in INERT_HOOKS
    if stated == fact.value or inert:
        return None
    return {"name": fact.name, **fact.keys, "table": stated, "source": fact.value}
