"""`tandem-worker probe`: acceptance measured before a GPU is spent, and the cause named when it is low."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tandem_worker.check import add_pair_arguments, chosen_engine, joined_arguments
from tandem_worker.contract import Resolution, WorkerStatus
from tandem_worker.finding import EXIT_CODES
from tandem_worker.probe.progress import shown_progress
from tandem_worker.validate import Mode, Request, examine

FORMATS = ("table", "json", "html")


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 fits (with warnings or without), 1 does not fit, 2 could not be checked."""
    parser = _parser()
    parsed = parser.parse_args(joined_arguments(arguments))
    engine, deployment = chosen_engine(parsed, parser)
    request = Request(
        parsed.target,
        parsed.drafter,
        Mode.PROBE,
        parsed.draft_length,
        parsed.min_accept_length,
        trained_on=parsed.trained_on,
        prompts=parsed.prompts,
        continuation=parsed.continuation,
        stated=_stated(parsed.worker_status, parser),
        other_drafter=parsed.other_drafter,
        engine=engine,
        deployment=deployment,
        resume=parsed.resume,
    )
    with shown_progress() as on_progress:
        report, probed = examine(replace(request, on_progress=on_progress))
    from tandem_worker.probe import present

    if parsed.format == "table":
        present.as_table(report, probed)
    else:
        print({"json": present.as_json, "html": present.as_html}[parsed.format](report, probed, engine))
    return EXIT_CODES[report.verdict]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "tandem-worker probe",
        description="Runs the pair on calibration texts, layer by layer, as an engine would, and says what is wrong.",
    )
    add_pair_arguments(parser, "builtin")
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: %(default)s")
    parser.add_argument("--draft-length", type=int, default=4, choices=range(1, 17), metavar="K", help="default: 4")
    parser.add_argument("--min-accept-length", type=float, default=1.3, metavar="TOKENS", help="default: %(default)s")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help='JSON lines with "prompt" or "messages"')
    parser.add_argument(
        "--continuation",
        type=int,
        default=0,
        metavar="TOKENS",
        help="judge so many tokens that the target itself goes on with (it must fit in memory); 0: the texts",
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="keep there what the pass has reached; go on from it if killed"
    )
    parser.add_argument(
        "--worker-status", type=Path, metavar="FILE", help="what GET /status of a worker says it did with the pair"
    )
    parser.add_argument(
        "--other-drafter", type=Path, metavar="FOLDER", help="another drafter that fails on this target and engine"
    )
    return parser


def _stated(file: Path | None, parser: argparse.ArgumentParser) -> Resolution | None:
    if file is None:
        return None
    try:
        return WorkerStatus.model_validate_json(file.read_bytes()).resolution
    except (OSError, ValueError) as failure:
        parser.error(f"--worker-status {file}: {str(failure).splitlines()[0]}")
