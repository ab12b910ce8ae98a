"""A judgement as JSON, SARIF 2.1.0 or a page of HTML: one document on standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from tandem_worker.checks.engine_resolution import EngineResolution
from tandem_worker.checks.explanations import explanation
from tandem_worker.checks.judge import Judgement
from tandem_worker.engines import Engine
from tandem_worker.finding import Finding, Severity

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(judged: Judgement, engine: Engine) -> str:
    return json.dumps(document(judged, engine), indent=1)


def document(judged: Judgement, engine: Engine) -> dict[str, Any]:
    """`verdict`, `summary` and `findings` at the top; what the engine will do under `resolution`."""
    pairing = judged.pairing
    top: dict[str, Any] = {
        "verdict": judged.verdict,
        "summary": judged.summary,
        "engine": engine.name,
        "version": engine.version,
        "findings": [_finding(finding) for finding in judged.findings],
    }
    if pairing is not None:
        top["captureIndexes"] = {
            "declared": {path: list(ids) for path, ids in pairing.drafter.ids.items()},
            "engine": _list(pairing.resolution.captured),
            "trainedOn": _list(pairing.trained_on),
        }
        top["resolution"] = resolution_document(pairing.resolution)
    return top


def _finding(finding: Finding) -> dict[str, Any]:
    told = explanation(finding.code)
    entry = {"code": finding.code, "severity": finding.severity, "title": told.title, "message": finding.message}
    for name in ("file", "where", "found", "expected"):
        entry[name] = getattr(finding, name)
    return entry | {"why": told.why, "action": finding.action, "reports": list(told.reports)}


def resolution_document(resolution: EngineResolution) -> dict[str, Any]:
    return {
        "drafterClass": resolution.drafter_class,
        "drafterFamily": resolution.family,
        "targetCanCapture": resolution.hook,
        "layerIds": {"read": _list(resolution.ids), "at": resolution.ids_where, "rule": resolution.ids_rule},
        "captured": _list(resolution.captured),
        "states": resolution.states,
        "statesFrom": resolution.states_where,
        "fcApplied": resolution.fc_applied,
        "fcReason": resolution.fc_reason,
        "flags": {
            name: {"value": flag.value, "from": flag.where or f"default of {flag.default_of}"}
            for name, flag in resolution.flags.items()
        },
        "tensors": {key: {"use": use, "parameter": name} for key, (use, name) in resolution.tensors.items()},
        "parameters": dict(resolution.parameters),
        "unknown": list(resolution.unknown),
    }


def matrix(results: list[tuple[Engine, Judgement]], kind: str) -> str:
    """Engine and version -> verdict. The document's own verdict is the best of them."""
    if kind == "json":
        order = ["Fits", "FitsWithWarnings", "CouldNotCheck", "DoesNotFit"]
        best = min((judged for _, judged in results), key=lambda judged: order.index(judged.verdict))
        documents = [document(judged, engine) for engine, judged in results]
        top = {"verdict": best.verdict, "summary": best.summary, "findings": [_finding(f) for f in best.findings]}
        return json.dumps(top | {"engines": documents}, indent=1)
    if kind == "sarif":
        return json.dumps(_sarif([_run(judged, engine) for engine, judged in results]), indent=1)
    return page("".join(_section(judged, engine) for engine, judged in results))


def as_sarif(judged: Judgement, engine: Engine) -> str:
    return json.dumps(_sarif([_run(judged, engine)]), indent=1)


def _sarif(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"$schema": SARIF, "version": "2.1.0", "runs": runs}


def _run(judged: Judgement, engine: Engine) -> dict[str, Any]:
    codes = sorted({finding.code for finding in judged.findings})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": explanation(code).title},
            "fullDescription": {"text": explanation(code).why},
        }
        for code in codes
    ]
    return {
        "tool": {"driver": {"name": "tandem-worker check", "rules": rules}},
        "properties": {"engine": engine.name, "version": engine.version, "verdict": judged.verdict},
        "results": [_result(finding) for finding in judged.findings],
    }


def _result(finding: Finding) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": finding.where}]} if finding.where else {}
    if finding.file:
        location["physicalLocation"] = {"artifactLocation": {"uri": finding.file}}
    text = " ".join(part for part in (finding.message, finding.action) if part)
    result = {"ruleId": finding.code, "level": LEVELS[finding.severity], "message": {"text": text}}
    return result | ({"locations": [location]} if location else {})


def as_html(judged: Judgement, engine: Engine) -> str:
    return page(_section(judged, engine))


def page(body: str) -> str:
    style = (
        "body{font:15px system-ui;max-width:60em;margin:2em auto;padding:0 1em}td,th{padding:.3em .8em .3em 0;"
        "text-align:left;vertical-align:top}.Error{color:#b00}.Warning{color:#a60}.Note{color:#666}code{font-size:13px}"
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Tandem: does the pair fit?</title>'
        f"<style>{style}</style><body>{body}</body></html>"
    )


def _section(judged: Judgement, engine: Engine) -> str:
    rows = "".join(
        f'<tr><td class="{finding.severity}"><code>{escape(finding.code)}</code></td><td>{escape(finding.message)}'
        f"<br><small>{escape(finding.file)} {escape(finding.where)}</small><br>{escape(explanation(finding.code).why)} "
        f"<b>{escape(finding.action)}</b></td></tr>"
        for finding in judged.findings
    )
    facts = _facts(resolution_document(judged.pairing.resolution)) if judged.pairing else ""
    title = f"{judged.verdict}: {engine.title}"
    return f"<h1>{escape(title)}</h1><p>{escape(judged.summary)}</p><table>{rows}</table>{facts}"


def _facts(resolution: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in resolution.items()
        if not isinstance(value, dict)
    )
    parameters = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(origin)}</td></tr>"
        for name, origin in resolution["parameters"].items()
    )
    return f"<h2>What the engine will do</h2><table>{rows}</table><table>{parameters}</table>"


def _list(values: tuple[int, ...] | None) -> list[int] | None:
    return None if values is None else list(values)
