"""Verdicts and findings. Part of `contract`, kept apart from it and free of pydantic: a static check starts in the time
that importing pydantic alone would take.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import ClassVar


class Verdict(StrEnum):
    FITS = "Fits"
    FITS_WITH_WARNINGS = "FitsWithWarnings"
    DOES_NOT_FIT = "DoesNotFit"
    COULD_NOT_CHECK = "CouldNotCheck"


class ExitCode(IntEnum):
    """Of `tandem-worker check` and `validate` (0 to 2) and `tandem-worker serve` (3 and up)."""

    FITS = 0
    DOES_NOT_FIT = 1
    COULD_NOT_CHECK = 2
    CHECKPOINT_CHANGED = 3
    RESOLUTION_DIFFERS = 4
    CANNOT_LOAD = 5


EXIT_CODES = {
    Verdict.FITS: ExitCode.FITS,
    Verdict.FITS_WITH_WARNINGS: ExitCode.FITS,
    Verdict.DOES_NOT_FIT: ExitCode.DOES_NOT_FIT,
    Verdict.COULD_NOT_CHECK: ExitCode.COULD_NOT_CHECK,
}


class Severity(StrEnum):
    ERROR = "Error"
    WARNING = "Warning"
    NOTE = "Note"


@dataclass(frozen=True)
class Finding:
    """One thing seen in a checkpoint. `code` is stable (TDM-D2T-HOLDS-IDS, see docs/findings.md); `message` is the
    sentence a person reads first.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    code: str
    severity: Severity
    message: str
    file: str = ""
    where: str = ""  # tensor name or config field, as a path in the JSON
    found: str = ""
    expected: str = ""
    action: str = ""

    @property
    def reason(self) -> str:
        """The code as a CamelCase word, as events and conditions of Kubernetes want it: D2tHoldsIds."""
        return "".join(word.capitalize() for word in self.code.split("-")[1:])
