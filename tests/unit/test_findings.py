"""The catalogue of findings: every code that is raised is explained, and the page is up to date."""

from __future__ import annotations

import re
from pathlib import Path

from tandem_worker.checks.explanations import explanations, page
from tandem_worker.finding import Finding, Severity

ROOT = Path(__file__).resolve().parents[2]
BUILT = {f"TDM-{name}-{what}" for name in ("D2T", "T2D") for what in ("DTYPE", "RANK", "LENGTH")}


def raised() -> set[str]:
    sources = (ROOT / "worker").rglob("*.py")
    return {code for file in sources for code in re.findall(r'"(TDM-[A-Z0-9-]+[A-Z0-9])"', file.read_text())} | BUILT


def test_every_code_that_is_raised_is_explained_and_no_other() -> None:
    assert raised() == set(explanations())


def test_every_explanation_says_why_and_shows_an_example() -> None:
    for entry in explanations().values():
        assert entry.title, entry.code
        assert entry.why.endswith("."), entry.code
        assert entry.example, entry.code
        assert entry.severity in list(Severity)


def test_the_page_is_what_the_catalogue_says() -> None:
    assert (ROOT / "docs" / "findings.md").read_text() == page(), "run make findings"


def test_a_code_has_a_word_for_events() -> None:
    finding = Finding("TDM-D2T-HOLDS-IDS", Severity.ERROR, "")
    assert finding.reason == "D2tHoldsIds"
