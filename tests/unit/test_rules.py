"""Recording rules and alerts: promtool's verdict, a page for each alert, and no metric that does not exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_worker.contract import Metric, OperatorMetric
from tools.prometheus import promtool

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "helm" / "tandem" / "rules" / "tandem.yaml"
TESTS = ROOT / "tests" / "rules" / "tandem.test.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {r["alert"]: r for group in GROUPS for r in group["rules"] if "alert" in r}
RECORDS = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}


def run(*arguments: str) -> str:
    result = subprocess.run([str(promtool()), *arguments], capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def test_promtool_finds_nothing_amiss_and_every_alert_does_as_its_cases_say() -> None:
    assert run("check", "rules", "--lint-fatal", str(RULES)) == ""
    assert run("test", "rules", str(TESTS)) == ""


def test_an_alert_for_everything_that_somebody_must_look_at() -> None:
    assert set(ALERTS) == {
        *("TandemAcceptanceCollapsing", "TandemSpeculationInactive", "TandemSlowerThanOff", "TandemRolledBack"),
        *("TandemValidationFailing", "TandemOperatorNotProgressing", "TandemMetricsMissing", "TandemCanaryStuck"),
    }


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_page_and_cases_for_and_against(name: str) -> None:
    page = ROOT / ALERTS[name]["annotations"]["runbook"]
    assert page.read_text().startswith(f"# {name}\n")
    assert {"## Find the cause", "## Mend it"} <= set(page.read_text().splitlines())
    cases = [case for test in yaml.safe_load(TESTS.read_text())["tests"] for case in test.get("alert_rule_test", [])]
    mine = [case for case in cases if case["alertname"] == name]
    raised = [alert for case in mine for alert in case["exp_alerts"]]
    assert raised, "no series that raise it"
    shown = {labels.get("specdep") for alert in raised if (labels := alert["exp_labels"])}
    # Silent at some time, or raised for one object of several.
    assert [case for case in mine if not case["exp_alerts"]] or shown == {"x"}


def test_pages_are_of_alerts() -> None:
    assert {page.stem for page in (ROOT / "docs" / "runbooks").iterdir()} == set(ALERTS)


def test_rules_read_metrics_that_exist() -> None:
    text = " ".join(rule["expr"] for group in GROUPS for rule in group["rules"])
    read = set(re.findall(r"\btandem_\w+", re.sub(r"\w+:tandem_\w+:\w+", "", text)))
    known = {str(metric) for metric in (*Metric, *OperatorMetric)}
    assert {name.removesuffix("_count").removesuffix("_sum").removesuffix("_bucket") for name in read} <= known
    assert set(re.findall(r"\w+:tandem_\w+:\w+", text)) <= RECORDS
