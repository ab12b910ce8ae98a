"""The one exception that reading a checkpoint raises, and short makers of findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict, Unpack

from tandem_worker.finding import Finding, Severity, Verdict


class CheckpointError(Exception):
    """A checkpoint that can not be used as it stands. Carries findings for the user instead of a traceback.

    `verdict` tells damage (CouldNotCheck: restore the file and ask again) from a statement of the checkpoint that can
    not work with this target or engine (DoesNotFit).
    """

    def __init__(self, *findings: Finding, verdict: Verdict = Verdict.COULD_NOT_CHECK) -> None:
        super().__init__(" ".join(finding.message for finding in findings))
        self.findings = findings
        self.verdict = verdict

    @property
    def finding(self) -> Finding:
        return self.findings[0]


class Place(TypedDict, total=False):
    file: object
    where: object
    found: object


class Details(Place, total=False):
    expected: object
    action: str


def error(code: str, message: str, **details: Unpack[Details]) -> Finding:
    return _finding(Severity.ERROR, code, message, details)


def warning(code: str, message: str, **details: Unpack[Details]) -> Finding:
    return _finding(Severity.WARNING, code, message, details)


def note(code: str, message: str, **details: Unpack[Details]) -> Finding:
    return _finding(Severity.NOTE, code, message, details)


def _finding(severity: Severity, code: str, message: str, details: Details) -> Finding:
    texts = {name: printable(value) for name, value in details.items()}
    return Finding(code=code, severity=severity, message=printable(message, 600), **texts)


def printable(value: object, limit: int = 300) -> str:
    """Text that any terminal and JSON encoder takes: names in damaged files hold control bytes and half characters."""
    text = str(value).encode("utf-8", "backslashreplace").decode()
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(names: Iterable[object], most: int = 4) -> str:
    """`a, b, c, d and 7 more`"""
    items = [str(name) for name in names]
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")
