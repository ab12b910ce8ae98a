"""`tandem-worker verify`: are the files still those that were validated?

Tandem's own worker asks that at start. Before another engine it runs as an init container, so that no engine starts on
files that nobody validated. Brings no torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tandem_worker.checkpoint import Checkpoint, CheckpointError, fingerprint, open_checkpoint
from tandem_worker.contract import ExitCode, Fingerprints, WorkerFailure


def found_in(target: Checkpoint, drafter: Checkpoint | None) -> Fingerprints:
    """Raises CheckpointError when a file can not be read."""
    return Fingerprints(target=fingerprint(target), drafter=fingerprint(drafter) if drafter else "")


def difference(found: Fingerprints, expected: Fingerprints, target: Path, drafter: Path | None) -> str:
    """A sentence, empty when nothing differs. What is not expected (empty) is not compared."""
    for part, path in (("target", target), ("drafter", drafter)):
        wanted, now = getattr(expected, part), getattr(found, part)
        if wanted and wanted != now:
            return (
                f"The {part} at {path} is not what was validated: its fingerprint is {now}, expected {wanted}. "
                "Restore the files, or let the pair be validated anew."
            )
    return ""


def verify(
    target: Annotated[Path, typer.Option(help="Folder of the target checkpoint.")],
    drafter: Annotated[Path | None, typer.Option(help="Folder of the drafter checkpoint.")] = None,
    target_fingerprint: Annotated[str, typer.Option(help="As validated.")] = "",
    drafter_fingerprint: Annotated[str, typer.Option(help="As validated.")] = "",
    termination_message: Annotated[Path | None, typer.Option(help="File that takes the reason.")] = None,
) -> None:
    """Compare the files with the fingerprints of a validation. Exit code 0: the same; 3: others; 5: not readable."""
    expected = Fingerprints(target=target_fingerprint, drafter=drafter_fingerprint)
    found = None
    try:
        found = found_in(open_checkpoint(target), open_checkpoint(drafter) if drafter else None)
        message, code = difference(found, expected, target, drafter), ExitCode.CHECKPOINT_CHANGED
    except CheckpointError as failure:
        message, code = str(failure), ExitCode.CANNOT_LOAD
    if not message:
        return
    reason = "CheckpointChanged" if found else "CannotLoad"
    print(message, file=sys.stderr)
    if termination_message is not None:
        said = WorkerFailure(reason=reason, message=message[:800], found=found)
        try:
            termination_message.write_text(said.model_dump_json(), encoding="utf-8")
        except OSError as failure:
            print(f"The termination message {termination_message} could not be written: {failure.strerror}.")
    raise typer.Exit(int(code))
