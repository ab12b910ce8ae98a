"""Grafana's dashboards, as what they show (`fleet`, `pair`, `operator`), laid out by one builder (`build`)."""

from chart.dashboards.build import Board, Panel, Query, as_json, read_again
from chart.dashboards.fleet import FLEET
from chart.dashboards.operator import OPERATOR
from chart.dashboards.pair import PAIR

BOARDS = (FLEET, PAIR, OPERATOR)

__all__ = ["BOARDS", "Board", "Panel", "Query", "as_json", "read_again"]
