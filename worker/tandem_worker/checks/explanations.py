"""What every finding's code means: title, why it matters, an example, public reports.

`python -m tandem_worker.checks.explanations` writes docs/findings.md from it (make findings).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

FILE = Path(__file__).parent / "findings.toml"
HEAD = """# Findings

Every finding of `tandem-worker check` and `validate` has a stable code. The severity given here is the usual one; some
depend on the engine and its version, and say so. An error means that the pair does not fit, or that it could not be
checked (files, engines that are not known); a warning does not block. `--format json` holds file, place, what was
found, what was expected and what to do for each.

This page is written from the catalogue by `make findings`.
"""


@dataclass(frozen=True)
class Explanation:
    code: str
    section: str
    severity: str  # the usual one; some depend on the engine and its version
    title: str
    why: str
    example: str
    reports: tuple[str, ...] = ()


def explanation(code: str) -> Explanation:
    return explanations().get(code) or Explanation(code, "", "", code, "", "")


@cache
def explanations() -> Mapping[str, Explanation]:
    data = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {
        code: Explanation(code, **{**entry, "reports": tuple(entry.get("reports", ()))}) for code, entry in data.items()
    }


def page() -> str:
    """docs/findings.md."""
    parts = [HEAD]
    for section, entries in groupby(explanations().values(), key=lambda entry: entry.section):
        parts.append(f"\n## {section}\n")
        parts += [_entry(entry) for entry in entries]
    return "".join(parts)


def _entry(entry: Explanation) -> str:
    reports = ", ".join(f"<{report}>" for report in entry.reports)
    return f"\n### {entry.code}\n\n**{entry.title}.** {entry.severity}. {entry.why}\n\n> {entry.example}\n" + (
        f"\nReported: {reports}\n" if reports else ""
    )


if __name__ == "__main__":
    print(page(), end="")
