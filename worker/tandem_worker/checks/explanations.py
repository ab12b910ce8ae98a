"""What every finding's code means: title, why it matters, an example, public reports. The source of docs/findings.md."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "findings.toml"


@dataclass(frozen=True)
class Explanation:
    code: str
    title: str
    severity: str  # the usual one; some depend on the engine and its version
    why: str
    example: str
    reports: tuple[str, ...] = ()


def explanation(code: str) -> Explanation:
    return explanations().get(code) or Explanation(code, code, "", "", "")


@cache
def explanations() -> Mapping[str, Explanation]:
    data = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {
        code: Explanation(code, **{**entry, "reports": tuple(entry.get("reports", ()))}) for code, entry in data.items()
    }
