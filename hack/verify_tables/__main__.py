"""`make verify-tables`: every version that a table lists, against its wheel. Writes result.json beside this file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tandem_worker.engines.table import load
from verify_tables.compare import difference
from verify_tables.facts import Fact
from verify_tables.wheels import NotServed, sources

RESULT = Path(__file__).parent / "result.json"
ENGINES = ("sglang", "vllm")


def main(chosen: list[str]) -> int:
    """Exit status 1 when a table and a source differ."""
    result: dict[str, Any] = {engine: _engine(engine) for engine in chosen or ENGINES}
    if not chosen:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    differences = sum(
        len(version["differences"]) for engine in result.values() for version in engine["versions"].values()
    )
    print(f"{differences} differences between the tables and the sources")
    return 1 if differences else 0


def _engine(engine: str) -> dict[str, Any]:
    versions: dict[str, Any] = {}
    unlisted: dict[str, list[str]] = {}
    seen: set[str] = set()
    table = load(engine).table
    for version in table.versions:
        try:
            facts = _observe(engine, sources(engine, version))
        except NotServed as reason:
            versions[version] = {"not served": str(reason), "differences": []}
            continue
        for fact in facts:
            if fact.name == "hook" and fact.of:
                unlisted.setdefault(fact.keys["architecture"], []).append(version)
            elif fact.name == "hook" and fact.value is not None:
                seen.add(fact.keys["architecture"])
        differences = [found for fact in facts if (found := difference(load(f"{engine}@{version}"), fact))]
        versions[version] = {"facts": len(facts), "differences": differences}
        print(f"{engine} {version}: {len(facts)} facts, {len(differences)} differ")
        for found in differences:
            print(f"    {json.dumps(found)}")
    return {
        "versions": versions,
        "targets with the hook that the table does not name": unlisted,
        "targets of the table that no version has": sorted(table.targets.keys() - seen),
    }


def _observe(engine: str, folder: Path) -> list[Fact]:
    """In a process of its own: the stand-ins for an engine's modules are never taken down."""
    command = [sys.executable, "-m", "verify_tables.observe", engine, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    return [Fact(**fact) for fact in json.loads(done.stdout)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
