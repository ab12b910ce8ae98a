"""A real Prometheus scrapes what the chart's PodMonitors name: alerts fire where they should, every panel has data.

One object for each way in which things go wrong, all beside each other, so that an alert that fires for the wrong one
shows. The rules are the chart's, with minutes made seconds.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chart.dashboards import BOARDS
from cluster.operator_kit import LIMIT_SECONDS, Story, simulated
from cluster.support import eventually
from tools.scrape import RULES, Prometheus, changes, filled_in, scraped

pytestmark = pytest.mark.cluster

# An object's acceptance is looked at each second; no rollout here ends by itself.
GOOD, SLOW, MUTE, REFUSED, TAKEN_BACK, OFF, STUCK, LOW = (
    *("good", "slow", "mute", "refused", "taken-back", "off", "stuck", "low"),
)
WATCHED: dict[str, Any] = {"guard": {"onCollapse": "Alert", "minSpeedup": 0}}


def hurried(folder: Path) -> Path:
    """The rules, with windows of 15 s, no waiting, and less evidence."""
    text = RULES.read_text()
    for slow, quick in ((r"\[5m\]", "[15s]"), (r"for: \d+m", "for: 2s"), (r"> 3600", "> 8"), (r">= 100", ">= 20")):
        text, count = re.subn(slow, quick, text)
        assert count, f"no {slow} in the rules"
    file = folder / "rules.yaml"
    file.write_text(text)
    return file


def firing(prometheus: Prometheus, story: Story) -> set[tuple[str, str]]:
    """(alert, object) of this namespace."""
    alerts = [labels for labels in prometheus.firing() if labels.get("namespace") == story.namespace]
    return {(labels["alertname"], labels["specdep"]) for labels in alerts}


def test_alerts_fire_for_what_they_are_for_and_every_panel_has_data(story: Story, tmp_path: Path) -> None:
    began = time.time()
    with scraped(story.operator.cluster, tmp_path, hurried(tmp_path)) as prometheus:
        (story.checkpoint("broken") / "config.json").unlink()
        story.apply(simulated(), GOOD)
        story.apply(simulated(sim={"round_cost": 9}, **WATCHED), SLOW)
        story.apply(simulated(sim={"acceptance": 0.05, "round_cost": 0.5}, **WATCHED), LOW)
        story.apply(simulated(sim={"acceptance": 0}), OFF)
        story.apply(simulated("broken"), REFUSED)
        story.apply(simulated(sim={"never_ready": True}, rollout={"progressDeadlineSeconds": 600}), STUCK)
        for name in (MUTE, TAKEN_BACK):
            story.apply(simulated(), name)
        story.until_stable(TAKEN_BACK)
        story.apply(simulated(sim={"self_test": "NoLife"}), TAKEN_BACK)
        story.until_stable(MUTE)
        (mute,) = story.ready_pods(MUTE)
        mute.tell(metrics_missing=True)
        with ExitStack() as users:
            for name in (GOOD, SLOW, LOW, OFF):
                users.enter_context(story.traffic(name, users=1))
            expected = {
                ("TandemSlowerThanOff", SLOW),
                ("TandemAcceptanceCollapsing", LOW),
                ("TandemSpeculationInactive", OFF),
                ("TandemRolledBack", OFF),
                ("TandemRolledBack", TAKEN_BACK),
                ("TandemValidationFailing", REFUSED),
                ("TandemMetricsMissing", MUTE),
                ("TandemCanaryStuck", STUCK),
            }
            eventually(lambda: same(firing(prometheus, story), expected), LIMIT_SECONDS)
            assert_every_panel_has_data(prometheus, story, began)
        assert "TandemOperatorNotProgressing" not in {labels["alertname"] for labels in prometheus.firing()}
        with story.operator.down():
            eventually(
                lambda: "TandemOperatorNotProgressing" in {labels["alertname"] for labels in prometheus.firing()}, 30
            )


def same(found: set[tuple[str, str]], expected: set[tuple[str, str]]) -> bool:
    assert found == expected, f"missing {expected - found}, too many {found - expected}"
    return True


def assert_every_panel_has_data(prometheus: Prometheus, story: Story, began: float) -> None:
    silent, still = [], []
    for board in BOARDS:
        for panel in board.panels:
            found = [
                series
                for query in panel.queries
                for series in prometheus.over(filled_in(query.expr, namespace=story.namespace), began, time.time())
            ]
            if not found:
                silent.append(f"{board.uid}: {panel.title}")
            elif not changes(found):
                still.append(panel.title)
    assert silent == []
    # An operator in good health has nothing to change in the one; a quick canary may be scraped at one weight only.
    assert set(still) <= {"Progress and CRD", "Canary weight"}
