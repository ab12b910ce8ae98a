"""The tables of engines: how a version finds its rows, and that the rows are sound."""

from __future__ import annotations

import re

import pytest

from tandem_worker.checks.layer_rules import RULES, ids_for
from tandem_worker.engines import ENGINES, NEUTRAL, UnknownEngine, all_engines, load
from tandem_worker.engines.table import version_key

DEEPSEEK = {"family": "deepseek_v2"}


@pytest.mark.parametrize(
    ("version", "rule"),
    [
        ("0.5.12", "plus_one"),
        ("0.5.13", "plus_one_if_first_is_1"),
        ("v0.5.23", "plus_one_if_first_is_1"),
        ("0.5.23+cu129", "plus_one_if_first_is_1"),
        ("0.5.15", "plus_one_if_first_is_1"),  # not read, and its neighbours agree
        ("0.5.12.post1", None),  # not read, and its neighbours do not agree
        ("0.5.24", None),
        ("0.4.9", None),
        ("0.5.13rc1", None),
        ("0.5.13+patched", None),
        ("main", None),
    ],
)
def test_a_version_has_a_fact_only_where_it_was_read_or_lies_between_versions_that_agree(
    version: str, rule: str | None
) -> None:
    answer = load(f"sglang@{version}").ask("ids_rule", **DEEPSEEK)
    assert (answer.value if answer.known else None) == rule


def test_an_answer_names_its_source() -> None:
    assert "25454" in load("sglang@0.5.13").ask("ids_rule", **DEEPSEEK).source


def test_without_a_version_the_newest_that_was_read() -> None:
    assert load("sglang").version == load("sglang").table.versions[-1]
    assert load("SGLang==0.5.12").version == "0.5.12"


@pytest.mark.parametrize("spec", ["tensorrt@1.0", "", "@0.5"])
def test_an_engine_without_a_table(spec: str) -> None:
    with pytest.raises(UnknownEngine, match="builtin, sglang, vllm"):
        load(spec)


@pytest.mark.parametrize("name", [*ENGINES, NEUTRAL])
def test_every_row_cites_its_source_and_begins_at_a_version_that_was_read(name: str) -> None:
    table = load(name).table
    versions = [version_key(version) for version in table.versions]
    assert None not in versions
    assert versions == sorted(version for version in versions if version is not None)
    families = set(table.targets.values())
    for row in table.rows:
        assert row.source, row.name
        assert row.since is None or row.since in versions, row
        if row.name in ("hook", "ids_rule", "last", "embedding", "pipeline"):
            assert row.keys.get("family", frozenset()) <= families, row


def test_every_rule_that_a_table_names_is_there() -> None:
    for engine in all_engines():
        named = {rule for _, rule in engine.ask("ids_read", []).value} - {"by_target"}
        named |= {row.value for row in engine.table.rows if row.name == "ids_rule"}
        assert named <= RULES.keys()


@pytest.mark.parametrize("layers", [28, 36, 61])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wanted", [(2, 14, 25), (1, 5, 9), (24, 25, 28)])
def test_the_ids_that_are_told_to_be_written_give_the_indexes_that_are_wanted(
    layers: int, rule: str, wanted: tuple[int, ...]
) -> None:
    ids = ids_for(wanted, layers, rule)
    assert ids is None or RULES[rule](ids, layers) == wanted
    if layers > max(wanted) and wanted[0] > 1:
        assert ids is not None


def test_versions_are_named_in_a_form_that_is_compared() -> None:
    assert all(
        re.fullmatch(r"[\d.]+(?:post\d+)?", version) for name in ENGINES for version in load(name).table.versions
    )
