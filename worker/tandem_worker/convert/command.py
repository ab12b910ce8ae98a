"""`tandem-worker convert`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tandem_worker.checkpoint import CheckpointError
from tandem_worker.convert.convert import Refused, convert
from tandem_worker.engines import UnknownEngine, load
from tandem_worker.finding import EXIT_CODES, ExitCode, Verdict


def main(arguments: Sequence[str]) -> int:
    """0: the copy is there and fits; 1: refused, nothing is left behind; 2: a checkpoint could not be read."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        engine, origin = load(parsed.engine), load(parsed.origin) if parsed.origin else None
    except UnknownEngine as failure:
        parser.error(str(failure))
    trained_on = _indexes(parsed.trained_on, parser)
    try:
        done = convert(parsed.drafter, parsed.out, parsed.target, engine, trained_on, origin, parsed.force)
    except Refused as reason:
        print(f"Not converted. {reason}", file=sys.stderr)
        return EXIT_CODES[Verdict.DOES_NOT_FIT]
    except CheckpointError as failure:
        print(f"Not converted. {failure}", file=sys.stderr)
        return EXIT_CODES[failure.verdict]
    except OSError as failure:
        print(f"Not converted. {failure.filename or parsed.out}: {failure.strerror}.", file=sys.stderr)
        return ExitCode.COULD_NOT_CHECK
    for change in done.changes:
        print(f"{change.what}: {_shown(change.before)} -> {_shown(change.after)} ({change.why})")
    count = len(done.changes)
    changed = f"{count} change{'s' * (count > 1)}" if count else "nothing to change"
    print(f"{done.out}: {changed}. {done.judgement.summary}")
    return ExitCode.FITS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "tandem-worker convert", description="Writes a corrected copy of a drafter for an engine, or says why not."
    )
    parser.add_argument("drafter", type=Path, metavar="DRAFTER", help="folder of the drafter checkpoint")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder that takes the copy")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target checkpoint")
    parser.add_argument("--engine", required=True, help="with its version: sglang@0.5.23")
    parser.add_argument("--trained-on", metavar="INDEXES", help="capture indexes of the training run: 2,30,58")
    parser.add_argument("--from", dest="origin", metavar="ENGINE", help="an engine that reads the layer ids rightly")
    parser.add_argument("--force", action="store_true", help="replace OUT where it holds a checkpoint")
    return parser


def _indexes(text: str | None, parser: argparse.ArgumentParser) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in text.strip("[] ").split(",")) if text else None
    except ValueError:
        parser.error(f"--trained-on {text!r} is not a list of capture indexes such as 2,30,58")


def _shown(value: object) -> str:
    return "absent" if value is None else str(value)
