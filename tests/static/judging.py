"""Runs `tandem-worker check` as a script would, and reads the one document that it prints."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

from static.build import Change, Model
from tandem_worker.check import check

EXIT = {"Fits": 0, "FitsWithWarnings": 0, "DoesNotFit": 1, "CouldNotCheck": 2}


class Seen(NamedTuple):
    document: dict[str, Any]

    @property
    def verdict(self) -> str:
        return str(self.document["verdict"])

    @property
    def codes(self) -> set[str]:
        """Of errors and warnings."""
        return {finding["code"] for finding in self.document["findings"] if finding["severity"] != "Note"}

    @property
    def errors(self) -> list[str]:
        return [finding["code"] for finding in self.document["findings"] if finding["severity"] == "Error"]

    @property
    def text(self) -> str:
        return json.dumps(self.document["findings"])


def run(target: Path, drafter: Path, *options: str) -> Seen:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = check([str(target), str(drafter), "--format", "json", *options])
    document = json.loads(out.getvalue())
    assert code == EXIT[document["verdict"]]
    return Seen(document)


def judged(folder: Path, target: Model, drafter: Model, *options: str, change: Change | None = None) -> Seen:
    if change is not None:
        change(target, drafter)
    return run(target.write(folder / "target"), drafter.write(folder / "drafter"), *options)
