"""A probe's report as one JSON document, as a page of HTML that fetches nothing, and for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from rich.console import Console

from tandem_worker.contract import ValidationReport
from tandem_worker.engines import Engine
from tandem_worker.finding import Severity, Verdict
from tandem_worker.formats import page
from tandem_worker.probe.evidence import share
from tandem_worker.probe.picture import heat_blocks, heat_map, heat_svg, position_blocks, positions_svg
from tandem_worker.probe.run import Probed
from tandem_worker.probe.search import Row, Table
from tandem_worker.probe.wiring import Aspect, Wiring, differences
from tandem_worker.report import print_report

SHOWN_WIRINGS = 12
VERDICTS = {
    Verdict.FITS: "Fits",
    Verdict.FITS_WITH_WARNINGS: "Fits, with warnings",
    Verdict.DOES_NOT_FIT: "Does not fit",
    Verdict.COULD_NOT_CHECK: "Could not be checked",
}


def document(report: ValidationReport, probed: Probed | None, engine: Engine) -> dict[str, Any]:
    """`verdict`, `position0`, `accept_length` and `causes` first. Without a run the causes are what the files prove."""
    probe = report.probe
    top: dict[str, Any] = {
        "verdict": report.verdict,
        "position0": round(probe.position0, 4) if probe else None,
        "accept_length": round(probe.accept_length, 4) if probe else None,
        "causes": causes(report),
        "summary": report.summary,
        "engine": engine.name,
        "version": engine.version,
    }
    if probe:
        top["probe"] = probe.model_dump(mode="json", exclude={"causes", "diagnosis"})
    top["findings"] = [vars(finding) for finding in report.findings]
    if report.capture_indexes:
        top["capture_indexes"] = report.capture_indexes.model_dump(mode="json")
    if probed:
        heat = heat_map(probed.table, _mended(probed))
        top["slots"] = [[round(value, 4) for value in row] for row in heat.values] if heat else None
        top["wirings"] = [_wiring(probed.table, wiring) for wiring in _ranked(probed.table)]
    return top


def causes(report: ValidationReport) -> list[dict[str, Any]]:
    if report.probe and report.probe.causes:
        return [
            {
                "code": cause.code,
                "sentence": cause.sentence,
                "figures": {"position0": cause.position0, "mended": cause.mended},
            }
            for cause in report.probe.causes
        ]
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    return [{"code": finding.code, "sentence": finding.message, "figures": {}} for finding in errors]


def as_json(report: ValidationReport, probed: Probed | None, engine: Engine) -> str:
    return json.dumps(document(report, probed, engine), indent=1)


def as_html(report: ValidationReport, probed: Probed | None, engine: Engine) -> str:
    verdict = VERDICTS[report.verdict]
    parts = [f"<h1>{verdict}: {escape(engine.title)}</h1>", f"<p>{escape(report.summary)}</p>"]
    told = causes(report)
    if told:
        items = "".join(f"<li><code>{c['code']}</code> {escape(c['sentence'])}</li>" for c in told)
        parts.append(f"<h2>Causes</h2><ol>{items}</ol>")
    if probed and report.probe:
        probe, heat = report.probe, heat_map(probed.table, _mended(probed))
        text = "the target's own continuations" if probe.text == "continuation" else "the texts themselves"
        parts.append(
            f"<p>Accept length <b>{probe.accept_length:.2f}</b> at draft length {probe.draft_length} (threshold "
            f"{probe.threshold:.2f}); position-0 acceptance <b>{probe.position0:.2f}</b> "
            f"({probe.position0_lower:.2f} to {probe.position0_upper:.2f}), sampling overlap {probe.overlap:.2f}. "
            f"{probe.drafts} drafts on {probe.prompts} texts, judged on {text}.</p>"
        )
        parts.append("<h2>Acceptance by position</h2>" + positions_svg(list(_curves(probed))))
        if heat:
            parts.append("<h2>Slots by streams</h2>" + heat_svg(heat))
        rows = "".join(_html_row(probed.table, wiring) for wiring in _ranked(probed.table)[:SHOWN_WIRINGS])
        head = "<tr><th>wiring</th><th>overlap</th><th>position 0</th><th>drafts</th></tr>"
        tried = len(probed.table.looked)
        parts.append(f"<h2>The best of {tried} wirings that were tried</h2><table>{head}{rows}</table>")
    if report.findings:
        rows = "".join(
            f'<tr><td class="{f.severity}"><code>{escape(f.code)}</code></td><td>{escape(f.message)}<br>'
            f"<small>{escape(f.file)} {escape(f.where)}</small></td></tr>"
            for f in report.findings
        )
        parts.append(f"<h2>Findings</h2><table>{rows}</table>")
    return page("".join(parts))


def as_table(report: ValidationReport, probed: Probed | None) -> None:
    console = Console()
    print_report(report, console)
    if probed is None:
        return
    console.print()
    for name, shares in _curves(probed):
        console.print(position_blocks(name, shares))
    heat = heat_map(probed.table, _mended(probed))
    if heat:
        console.print(heat_blocks(heat), soft_wrap=True)


def _curves(probed: Probed) -> Iterator[tuple[str, tuple[float, ...]]]:
    engine, best = probed.table.engine, probed.causes[0].after if probed.causes else None
    for name, row in (("as wired", engine), ("mended", _with_chain(probed.table, best))):
        if row is not None and row.chain is not None:
            yield name, row.chain.shares


def _mended(probed: Probed) -> Wiring | None:
    after = probed.causes[0].after if probed.causes else None
    return after.wiring if after else None


def _with_chain(table: Table, row: Row | None) -> Row | None:
    return None if row is None else row if row.chain else table.row(row.wiring)


def _ranked(table: Table) -> list[Wiring]:
    looked = table.looked
    return sorted(looked, key=lambda wiring: -share(looked[wiring].overlap, looked[wiring].counts).value)


def _wiring(table: Table, wiring: Wiring) -> dict[str, Any]:
    """Of the whole text where it was measured on it, else of the first look."""
    row = table.row(wiring)
    score = row.score if row else table.looked[wiring]
    return {
        "differs": described(table.engine.wiring, wiring),
        "capture": list(wiring.capture),
        "overlap": round(share(score.overlap, score.counts).value, 4),
        "position0": round(share(score.matches, score.counts).value, 4),
        "drafts": sum(score.counts),
    }


def described(engine: Wiring, wiring: Wiring) -> dict[str, Any]:
    """What is other than the engine has it; empty for the engine's own."""
    told: dict[str, Any] = {}
    for aspect in differences(engine, wiring):
        if aspect is Aspect.FUSION:
            told["fc"] = "applied" if wiring.fused else f"skipped, {wiring.view}"
        else:
            value = getattr(wiring, aspect.value)
            told[aspect.value] = sorted(value) if isinstance(value, frozenset) else value
    return told


def _html_row(table: Table, wiring: Wiring) -> str:
    told = _wiring(table, wiring)
    differs = "; ".join(f"{key.replace('_', ' ')}: {_in_words(value)}" for key, value in told["differs"].items())
    shown = escape(differs) or "<b>as the engine has it</b>"
    figures = f"<td>{told['overlap']:.3f}</td><td>{told['position0']:.3f}</td><td>{told['drafts']}</td>"
    return f"<tr><td>{shown}</td>{figures}</tr>"


def _in_words(value: Any) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:,.0f}" if isinstance(value, float) else str(value)
    )
