"""The command line: `validate` here; `serve`, `check`, `explain`, `probe` and `convert` hand their arguments on."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tandem_worker.check import check, explain
from tandem_worker.checks.deployment import read_deployment, split_arguments, split_environment, split_indexes
from tandem_worker.contract import ValidationReport
from tandem_worker.engines import load
from tandem_worker.finding import EXIT_CODES
from tandem_worker.probe.progress import shown_progress
from tandem_worker.report import print_report
from tandem_worker.validate import Mode, Request, validate
from tandem_worker.verify import verify

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _tandem_worker() -> None:
    """Check a pair of target and drafter, validate it, or serve it."""


@app.command("validate")
def validate_command(
    target: Annotated[Path, typer.Option(help="Folder of the target checkpoint.")],
    drafter: Annotated[Path, typer.Option(help="Folder of the drafter checkpoint.")],
    mode: Annotated[Mode, typer.Option(help="Static looks at the files; Probe also runs the pair.")] = Mode.STATIC,
    draft_length: Annotated[int, typer.Option(min=1, max=16, help="Tokens proposed per round (probe).")] = 4,
    min_accept_length: Annotated[float, typer.Option(min=1, help="Tokens per round that the probe asks for.")] = 1.3,
    trained_on: Annotated[str | None, typer.Option(help="Capture indexes of the training run, such as 2,4,5.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help='JSON lines with "prompt" or "messages", in place of the calibration texts that ship.'),
    ] = None,
    continuation: Annotated[
        int, typer.Option(min=0, max=1024, help="Judge so many tokens that the target itself goes on with (probe).")
    ] = 0,
    resume: Annotated[
        Path | None, typer.Option(help="Folder that keeps what the probe has reached; a killed one goes on from it.")
    ] = None,
    termination_message: Annotated[
        Path | None, typer.Option(help="File that takes the report, shortened to 4 KiB.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Only the report as JSON.")] = False,
    engine: Annotated[str, typer.Option(help="Engine that will run, with its version: sglang@0.5.23.")] = "builtin",
    context_length: Annotated[int | None, typer.Option(min=1, help="Tokens that will be served.")] = None,
    engine_args: Annotated[str, typer.Option(help="The engine's own arguments, in one string.")] = "",
    engine_env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of the engine's pod; repeatable.")] = None,
) -> None:
    """Does this drafter fit this target? Exit code 0: it fits; 1: it does not; 2: that could not be checked."""
    try:
        chosen = load(engine)
        arguments = split_arguments(engine_args)
    except ValueError as failure:
        raise typer.BadParameter(f"--engine {engine}, --engine-args: {failure}") from None
    try:
        indexes = split_indexes(trained_on) if trained_on is not None else None
    except ValueError as failure:
        raise typer.BadParameter(f"--trained-on {failure}") from None
    deployment = read_deployment(chosen, arguments, split_environment(engine_env or ()), context_length)
    request = Request(
        target,
        drafter,
        mode,
        draft_length,
        min_accept_length,
        trained_on=indexes,
        prompts=prompts,
        continuation=continuation,
        engine=chosen,
        deployment=deployment,
        resume=resume,
    )
    with shown_progress() as on_progress:
        report = validate(replace(request, on_progress=on_progress))
    if not json:
        print_report(report, Console(stderr=True))
    if json or not sys.stdout.isatty():
        print(report.model_dump_json(exclude_defaults=True), flush=True)
    if termination_message is not None:
        _write_termination_message(report, termination_message)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _write_termination_message(report: ValidationReport, file: Path) -> None:
    """The log holds the same report, so a failure to write is told and does not change the verdict."""
    try:
        file.write_text(report.termination_message(), encoding="utf-8")
    except OSError as failure:
        print(f"The termination message {file} could not be written: {failure.strerror}.", file=sys.stderr)


app.command("verify")(verify)

HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command("check", add_help_option=False, context_settings=HANDED_ON)
def check_command(context: typer.Context) -> None:
    """Say from configs and headers alone what an engine will do with this pair, and whether it fits."""
    raise typer.Exit(check(context.args))


@app.command("explain", add_help_option=False, context_settings=HANDED_ON)
def explain_command(context: typer.Context) -> None:
    """Print what an engine will do with every layer id, tensor and parameter."""
    raise typer.Exit(explain(context.args))


@app.command("probe", add_help_option=False, context_settings=HANDED_ON)
def probe_command(context: typer.Context) -> None:
    """Run the pair on calibration texts as an engine would, and name what is wrong when little is accepted."""
    from tandem_worker.probe.command import main as probe

    raise typer.Exit(probe(context.args))


@app.command("convert", add_help_option=False, context_settings=HANDED_ON)
def convert_command(context: typer.Context) -> None:
    """Write a corrected copy of a drafter for an engine, or say why that would be a guess."""
    from tandem_worker.convert.command import main as convert

    raise typer.Exit(convert(context.args))


@app.command("serve", add_help_option=False, context_settings=HANDED_ON)
def serve_command(context: typer.Context) -> None:
    """Serve the pair over an OpenAI-compatible API."""
    from tandem_worker.server.command import serve  # brings torch, which validation starts without

    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(serve)
    command(args=context.args, prog_name="tandem-worker serve")
