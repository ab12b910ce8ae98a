"""The operator itself."""

from __future__ import annotations

from chart.dashboards.build import Board, Panel, Query, Variable
from tandem_worker.contract import Metric, OperatorMetric

IN = 'cluster=~"$cluster"'


def _quantiles(metric: OperatorMetric) -> tuple[Query, ...]:
    buckets = f"sum by (le) (rate({metric}_bucket{{{IN}}}[$__rate_interval]))"
    return tuple(Query(f"histogram_quantile({q}, {buckets})", f"p{q * 100:g}") for q in (0.5, 0.99))


OPERATOR = Board(
    uid="tandem-operator",
    title="Tandem / Operator",
    description="The operator: passes, queue, loop lag, errors.",
    variables=(Variable("cluster", OperatorMetric.PROGRESSING),),
    rows=(
        (
            "Passes",
            (
                Panel(
                    "Time of a pass",
                    "One observe, plan, apply pass over one object.",
                    "s",
                    _quantiles(OperatorMetric.RECONCILE_SECONDS),
                ),
                Panel(
                    "Passes per second",
                    "All passes, those that ended in an error, and those over objects that did not parse.",
                    "ops",
                    (
                        Query(
                            f"sum(rate({OperatorMetric.RECONCILE_SECONDS}_count{{{IN}}}[$__rate_interval]))", "passes"
                        ),
                        Query(f"sum(rate({OperatorMetric.RECONCILE_ERRORS}{{{IN}}}[$__rate_interval]))", "errors"),
                        Query(f"sum(rate({OperatorMetric.INVALID}{{{IN}}}[$__rate_interval]))", "invalid"),
                    ),
                ),
                Panel(
                    "Queue",
                    "Objects whose turn has come and that wait, and those that are being reconciled.",
                    "none",
                    (
                        Query(f"sum({OperatorMetric.QUEUE_DUE}{{{IN}}})", "waiting"),
                        Query(f"sum({OperatorMetric.QUEUE_RUNNING}{{{IN}}})", "running"),
                    ),
                ),
            ),
        ),
        (
            "Health",
            (
                Panel(
                    "Loop lag",
                    "How late the event loop wakes a task: a starved pod, or a call that blocks.",
                    "s",
                    _quantiles(OperatorMetric.LOOP_LAG),
                ),
                Panel(
                    "Progress and CRD",
                    "1 while the operator makes progress, and while the installed CRD has every field that it reads.",
                    "none",
                    (
                        Query(f"min({OperatorMetric.PROGRESSING}{{{IN}}})", "progressing"),
                        Query(f"min({OperatorMetric.CRD_MATCHES}{{{IN}}})", "CRD matches"),
                    ),
                ),
                Panel(
                    "Versions",
                    "Pods by component and version.",
                    "none",
                    (Query(f"count by (component, version) ({Metric.BUILD}{{{IN}}})", "{{component}} {{version}}"),),
                ),
            ),
        ),
    ),
)
