"""`tandem-worker check` and `tandem-worker explain`: the static verdict at a terminal and in scripts.

argparse, and nothing of the rest of the command line: a verdict takes less time than importing what that needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tandem_worker.checkpoint import CheckpointError
from tandem_worker.checks.deployment import (
    Deployment,
    read_deployment,
    split_arguments,
    split_environment,
    split_indexes,
)
from tandem_worker.checks.judge import Judgement, judge, judge_all, open_pairing, refused, unexpected
from tandem_worker.engines import ENGINES, NEUTRAL, Engine, UnknownEngine, all_engines, load
from tandem_worker.finding import EXIT_CODES, ExitCode, Verdict

FORMATS = ("table", "json", "sarif", "html")


def check(arguments: Sequence[str]) -> int:
    """The exit code: 0 fits (with warnings or without), 1 does not fit, 2 could not be checked."""
    options = _parser("check", "Does this drafter fit this target, for an engine? Looks at configs and headers alone.")
    options.add_argument("--format", choices=FORMATS, default="table", help="default: %(default)s")
    options.add_argument("--all-engines", action="store_true", help="every engine at every version that was read")
    parsed = options.parse_args(joined_arguments(arguments))
    engine, deployment = chosen_engine(parsed, options)
    if parsed.all_engines:
        results = _all(parsed, engine)
        _print_matrix(results, parsed.format)
        return _best(results)
    judged = _judge(parsed, engine, deployment)
    _print(judged, engine, parsed.format)
    return EXIT_CODES[judged.verdict]


def explain(arguments: Sequence[str]) -> int:
    """Prints what the engine will do with every id, tensor and parameter. 0, or 2 when that could not be told."""
    options = _parser("explain", "What will this engine do with this pair: layers, tensors, parameters, flags.")
    options.add_argument("--format", choices=("table", "json"), default="table", help="default: %(default)s")
    parsed = options.parse_args(joined_arguments(arguments))
    engine, deployment = chosen_engine(parsed, options)
    judged = _judge(parsed, engine, deployment)
    if judged.pairing is None:
        _print(judged, engine, parsed.format)
        return ExitCode.COULD_NOT_CHECK
    if parsed.format == "json":
        from tandem_worker.formats import as_json

        print(as_json(judged, engine))
    else:
        from tandem_worker.tables import print_resolution

        print_resolution(judged.pairing)
    return ExitCode.FITS


def joined_arguments(arguments: Sequence[str]) -> list[str]:
    """`--engine-args "--tp 8"` as one word: argparse would take the value for an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--engine-args":
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(f"tandem-worker {command}", description=description)
    add_pair_arguments(parser, NEUTRAL)
    return parser


def add_pair_arguments(parser: argparse.ArgumentParser, engine: str) -> None:
    """Which pair, for which engine, started how: `engine` is the default."""
    parser.add_argument("target", type=Path, metavar="TARGET", help="folder of the target checkpoint")
    parser.add_argument("drafter", type=Path, metavar="DRAFTER", help="folder of the drafter checkpoint")
    parser.add_argument(
        "--engine",
        default=engine,
        help=f"{', '.join(ENGINES)}, each with a version: sglang@0.5.23; without: "
        + ("what holds for all of them" if engine == NEUTRAL else engine),
    )
    parser.add_argument("--trained-on", metavar="INDEXES", help="capture indexes of the training run: 2,30,58")
    parser.add_argument("--context-length", type=int, metavar="TOKENS", help="the length that will be served")
    parser.add_argument(
        "--engine-args", default="", metavar="ARGUMENTS", help="the engine's own arguments, in one string"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="of the engine's pod; repeatable"
    )


def chosen_engine(parsed: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[Engine, Deployment]:
    try:
        engine = load(parsed.engine)
    except UnknownEngine as failure:
        parser.error(str(failure))
    try:
        arguments = split_arguments(parsed.engine_args)
    except ValueError as failure:
        parser.error(f"--engine-args: {failure}")
    try:
        parsed.trained_on = split_indexes(parsed.trained_on) if parsed.trained_on is not None else None
    except ValueError as failure:
        parser.error(f"--trained-on {failure}")
    return engine, read_deployment(engine, arguments, split_environment(parsed.env), parsed.context_length)


def _judge(parsed: argparse.Namespace, engine: Engine, deployment: Deployment) -> Judgement:
    try:
        paths = (parsed.target, parsed.drafter)
        return judge(open_pairing(*paths, engine, parsed.trained_on, deployment, weights_expected=False))
    except CheckpointError as failure:
        return refused(failure)
    except Exception as failure:
        return refused(CheckpointError(unexpected(failure)))


def _all(parsed: argparse.Namespace, engine: Engine) -> list[tuple[Engine, Judgement]]:
    engines = [each for each in all_engines() if parsed.engine == NEUTRAL or each.name == engine.name]
    try:
        pairing = open_pairing(parsed.target, parsed.drafter, engine, parsed.trained_on, weights_expected=False)
    except CheckpointError as failure:
        return [(each, refused(failure)) for each in engines]
    arguments = split_arguments(parsed.engine_args)
    environment = split_environment(parsed.env)
    results = []
    for each in engines:
        deployed = read_deployment(each, arguments, environment, parsed.context_length)
        results += judge_all(replace(pairing, deployment=deployed), [each])
    return results


def _best(results: list[tuple[Engine, Judgement]]) -> int:
    """0 when any engine serves the pair: that is what one asks of all of them."""
    verdicts = [judged.verdict for _, judged in results]
    for verdict in (Verdict.FITS, Verdict.FITS_WITH_WARNINGS, Verdict.COULD_NOT_CHECK):
        if verdict in verdicts:
            return EXIT_CODES[verdict]
    return ExitCode.DOES_NOT_FIT


def _print(judged: Judgement, engine: Engine, kind: str) -> None:
    if kind == "table":
        from tandem_worker.tables import print_judgement

        print_judgement(judged, engine)
    else:
        from tandem_worker import formats

        print({"json": formats.as_json, "sarif": formats.as_sarif, "html": formats.as_html}[kind](judged, engine))


def _print_matrix(results: list[tuple[Engine, Judgement]], kind: str) -> None:
    if kind == "table":
        from tandem_worker.tables import print_matrix

        print_matrix(results)
    else:
        from tandem_worker import formats

        print(formats.matrix(results, kind))
    sys.stdout.flush()
