"""The validation report as a table for people. Machines read `contract.ValidationReport` as JSON."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem_worker.contract import CaptureIndexes, ProbeResult, ValidationReport
from tandem_worker.tables import VERDICTS, findings_table


def print_report(report: ValidationReport, console: Console) -> None:
    """Verdict, what was measured, findings from the most severe down."""
    title, style = VERDICTS[report.verdict]
    console.print(Text.assemble((title, style), "  ", report.summary))
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(report.capture_indexes, report.probe):
        facts.add_row(Text(name, "dim"), Text(value))
    if facts.row_count:
        console.print(facts)
    if report.findings:
        console.print(findings_table(report.findings))


def _facts(captured: CaptureIndexes | None, probe: ProbeResult | None) -> list[tuple[str, str]]:
    facts = []
    if captured:
        declared = "nothing" if captured.declared is None else f"{list(captured.declared)} in {captured.declared_at}"
        facts.append(("config declares", declared))
        facts.append(("engine captures", str(list(captured.engine))))
        if captured.trained_on is not None:
            facts.append(("trained on", str(list(captured.trained_on))))
    if probe:
        facts.append(("accept length", f"{probe.accept_length:.2f}, threshold {probe.threshold:.2f}"))
        rates = " ".join(f"{share:.2f}" for share in probe.acceptance)
        facts.append(("acceptance", f"{rates} at positions 0 to {probe.draft_length - 1}"))
        where = "their continuations by the target" if probe.text == "continuation" else "their own tokens"
        facts.append(("measured on", f"{probe.drafts} drafts, {probe.prompts} texts, {where}"))
        facts += [(f"cause {place}", cause.sentence) for place, cause in enumerate(probe.causes, 1)]
    return facts
