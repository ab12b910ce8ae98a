"""From boards as plain data to Grafana's JSON, through the types of its own SDK.

Queries read raw metrics, not recording rules, so the boards work where the rules are not installed. The variables match
`.*` when nothing is chosen: series without a `cluster` label are then found as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

WIDTH, HEIGHT = 8, 8  # of a panel, in Grafana's grid of 24 columns
ALL = ".*"
SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="$datasource")
PanelBuilder = timeseries.Panel | table.Panel | statetimeline.Panel


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    title: str
    description: str
    unit: str  # Grafana's name of it
    queries: tuple[Query, ...]
    kind: Literal["time", "table", "state"] = "time"
    width: int = WIDTH
    least: float | None = 0  # of the axis


@dataclass(frozen=True)
class Variable:
    name: str
    metric: str
    within: str = ""  # matchers, which may name earlier variables
    all: bool = True


@dataclass(frozen=True)
class Board:
    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    annotations: tuple[Query, ...] = field(default=())

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for _, panels in self.rows for panel in panels)


def as_json(board: Board) -> str:
    """As `helm/tandem/dashboards/` keeps it."""
    return read_again(json.dumps(_built(board), cls=JSONEncoder))


def read_again(text: str) -> str:
    """A dashboard's JSON through the SDK's types and back, which fills in what the panels' defaults are."""
    register_default_plugins()
    read = dashboard.Dashboard.from_json(json.loads(text))
    return json.dumps(read, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _built(board: Board) -> dashboard.Dashboard:
    built = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["tandem"])
        .readonly()
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(builders.DashboardLink("Tandem").type(dashboard.DashboardLinkType.DASHBOARDS).tags(["tandem"]))
    )
    for variable in board.variables:
        built = built.with_variable(_variable(variable))
    for annotation in board.annotations:
        built = built.annotation(
            builders.AnnotationQuery()
            .name(annotation.legend)
            .datasource(SOURCE)
            .expr(annotation.expr)
            .enable(True)
            .icon_color("orange")
        )
    numbers = count(1)
    for title, panels in board.rows:
        built = built.with_row(builders.Row(title))
        for panel in panels:
            built = built.with_panel(_panel(panel).id(next(numbers)))
    return built.build()


def _variable(variable: Variable) -> builders.QueryVariable:
    series = variable.metric + (f"{{{variable.within}}}" if variable.within else "")
    built = (
        builders.QueryVariable(variable.name)
        .label(variable.name.capitalize())
        .datasource(SOURCE)
        .query({"query": f"label_values({series}, {variable.name})", "refId": variable.name})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
    if not variable.all:
        return built
    chosen = dashboard.VariableOption(selected=True, text="All", value="$__all")
    return built.include_all(True).all_value(ALL).multi(True).current(chosen)


def _panel(panel: Panel) -> PanelBuilder:
    built = _of_kind(panel)
    built = built.title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
    built = built.span(panel.width).height(HEIGHT)
    if panel.least is not None and panel.kind == "time":
        built = built.min(panel.least)
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        built = built.with_target(_target(letter, query, panel.kind))
    return built


def _of_kind(panel: Panel) -> PanelBuilder:
    if panel.kind == "table":
        return table.Panel().with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    if panel.kind == "state":
        return statetimeline.Panel().merge_values(True).show_value(common.VisibilityMode.NEVER)
    legend = (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    return timeseries.Panel().legend(legend).fill_opacity(5)


def _target(letter: str, query: Query, kind: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).datasource(SOURCE)
    return target.instant().format(PromQueryFormat.TABLE) if kind == "table" else target.range()


def quotient(over: Sequence[str], counter: str, per: str, where: str, window: str = "$__rate_interval") -> str:
    """Sum of one counter's rate over another's; where the second stands still there is nothing to say."""
    by = f"sum by ({', '.join(over)}) (rate("
    return f"{by}{counter}{{{where}}}[{window}])) / ({by}{per}{{{where}}}[{window}])) > 0)"
