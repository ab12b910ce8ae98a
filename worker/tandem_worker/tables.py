"""Judgements and resolutions as tables for people at a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem_worker.checks.judge import Judgement
from tandem_worker.checks.layer_rules import SAID
from tandem_worker.checks.pairing import Pairing
from tandem_worker.engines import Engine
from tandem_worker.finding import Finding, Severity, Verdict

VERDICTS = {
    Verdict.FITS: ("FITS", "bold green"),
    Verdict.FITS_WITH_WARNINGS: ("FITS, WITH WARNINGS", "bold green"),
    Verdict.DOES_NOT_FIT: ("DOES NOT FIT", "bold red"),
    Verdict.COULD_NOT_CHECK: ("COULD NOT CHECK", "bold yellow"),
}
STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def print_judgement(judged: Judgement, engine: Engine) -> None:
    console = Console()
    title, style = VERDICTS[judged.verdict]
    console.print(Text.assemble((title, style), "  ", (engine.title, "dim"), "  ", judged.summary))
    if judged.findings:
        console.print(findings_table(judged.findings))


def findings_table(findings: tuple[Finding, ...]) -> Table:
    """From the most severe down."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("finding", no_wrap=True)
    table.add_column("what, where, what to do", overflow="fold")
    order = list(Severity)
    for finding in sorted(findings, key=lambda finding: order.index(finding.severity)):
        place = " ".join(part for part in (finding.file, finding.where) if part)
        lines = [finding.message, place, finding.action]
        table.add_row(Text(finding.code, STYLES[finding.severity]), Text("\n".join(line for line in lines if line)))
    return table


def print_matrix(results: list[tuple[Engine, Judgement]]) -> None:
    table = Table("engine", "version", "verdict", "why", show_edge=False, pad_edge=False)
    for engine, judged in results:
        title, style = VERDICTS[judged.verdict]
        table.add_row(engine.name, engine.version, Text(title, style), Text(judged.summary))
    Console().print(table)


def print_resolution(pairing: Pairing) -> None:
    """What `explain` shows: what is read where, and what becomes of every tensor and parameter."""
    console, resolution = Console(), pairing.resolution
    console.print(Text(f"What {pairing.engine.title} will do with {pairing.drafter.checkpoint.path}", "bold"))
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(pairing):
        facts.add_row(Text(name, "dim"), Text(value))
    console.print(facts)
    tensors = Table("tensor in the files", "becomes", show_edge=False, pad_edge=False)
    for key, (use, parameter) in resolution.tensors.items():
        renamed = f" as {parameter}" if parameter and parameter != key else ""
        tensors.add_row(Text(key), Text(f"{use}{renamed}"))
    console.print(tensors)
    parameters = Table("parameter of the class", "gets its values", "shape", show_edge=False, pad_edge=False)
    for name, origin in resolution.parameters.items():
        shape = ", ".join("?" if dim.size is None else str(dim.size) for dim in resolution.shapes[name])
        style = "red" if origin.value == "left at random" else ""
        parameters.add_row(Text(name), Text(origin, style), Text(f"[{shape}]"))
    console.print(parameters)


def _facts(pairing: Pairing) -> list[tuple[str, str]]:
    resolution, drafter, target = pairing.resolution, pairing.drafter, pairing.target
    rule = SAID.get(resolution.ids_rule, "the engine's default")
    captured = "unknown" if resolution.captured is None else str(list(resolution.captured))
    facts = [
        ("dialect", drafter.dialect),
        ("class", resolution.drafter_class or "none"),
        ("target can capture", {True: "yes", False: "no", None: "unknown"}[resolution.hook]),
        ("layer ids", f"{list(resolution.ids)} at {resolution.ids_where}" if resolution.ids else "none that is read"),
        ("captures", f"{captured} ({rule})"),
        (
            "ids that are not read",
            ", ".join(f"{list(ids)} at {at}" for at, ids in resolution.ignored_ids.items()) or "-",
        ),
        ("states of fc", f"{resolution.states} ({resolution.states_where})"),
        ("fc", f"{'applied' if resolution.fc_applied else 'not applied'}: {resolution.fc_reason}"),
        ("draft vocabulary", f"{drafter.vocabulary} of {drafter.vocab_size}, target {target.vocab_size}"),
        (
            "d2t",
            "offsets: target id = draft id + d2t" if "d2t" in pairing.parameters else "none: draft ids are target ids",
        ),
        ("rope theta", f"drafter {drafter.rope.theta}, target {target.rope.theta}"),
        ("positions", f"drafter {drafter.max_positions}, target {target.max_positions}"),
        ("dtype", f"drafter {drafter.dtype}, target {target.dtype}"),
        (
            "quantisation",
            f"drafter {drafter.quantization.value or 'none'}, target {target.quantization.value or 'none'}",
        ),
    ]
    facts += [
        (name, f"{str(flag.value).lower()} ({flag.where or 'default of ' + flag.default_of})")
        for name, flag in resolution.flags.items()
    ]
    if resolution.unknown:
        facts.append(("not told by the table", ", ".join(resolution.unknown)))
    return facts
