"""What a running worker and a running operator show is what the table of metrics says, no more and no less."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.operator_kit import Story, real, simulated
from tandem_worker.contract import Metric, OperatorMetric
from tools.prometheus import promtool

pytestmark = pytest.mark.cluster


def exposed(text: str) -> dict[str, tuple[str, set[str]]]:
    """Name as written at `# TYPE` -> type and label names."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in text_string_to_metric_families(text)
    }


def described(metrics: Iterable[Metric | OperatorMetric]) -> dict[str, tuple[str, set[str]]]:
    return {str(metric): (str(metric.kind), set(metric.labels)) for metric in metrics}


def check(text: str) -> str:
    """What promtool has against it."""
    result = subprocess.run(
        [str(promtool()), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    return result.stdout + result.stderr


def test_worker_simulator_and_operator_show_exactly_what_the_table_says(story: Story) -> None:
    story.apply(real())
    story.apply(simulated(), "simulated")
    story.until_stable("simulated")
    with story.traffic("simulated"):
        story.until("acceptance is measured", lambda shown: shown.status.acceptance, "simulated")
    story.until_stable()
    (worker,), (simulator,) = story.ready_pods(), story.ready_pods("simulated")
    operators = story.operator.get("/metrics")
    assert exposed(worker.metrics()) == exposed(simulator.metrics()) == described(Metric)
    table, shown = described(OperatorMetric), exposed(operators)
    assert {name: kind for name, (kind, _) in shown.items()} == {name: kind for name, (kind, _) in table.items()}
    assert [name for name, (_, labels) in shown.items() if labels not in (set(), table[name][1])] == []
    assert f'tandem_specdep_accept_length{{namespace="{story.namespace}",specdep="simulated"}}' in operators
    assert check(worker.metrics()) == check(operators) == ""
