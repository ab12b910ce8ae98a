"""`python -m chart.pictures FOLDER`: plays the demo under a real Prometheus and draws every panel from its series.

There is no Grafana here, so these are no screenshots: each panel's own queries are asked of Prometheus over the time of
the four acts, and the answers are drawn, as docs/img says on each picture.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes

from chart.dashboards import BOARDS, Board, Panel
from demo.__main__ import DEMO
from demo.acts import GOOD
from demo.install import CLUSTERS
from localcluster.cluster import Cluster
from tools.once import ToolError
from tools.scrape import Prometheus, Series, filled_in, scraped

COLUMNS, INCHES = 3, (5.2, 3.1)  # per panel
START_LIMIT_SECONDS = 300
UNITS = {"s": "seconds", "percentunit": "share", "reqps": "requests/s", "ops": "passes/s", "none": ""}


@dataclass(frozen=True)
class Played:
    began: float  # unix seconds
    ended: float
    acts: tuple[tuple[str, float], ...]  # name, when it began


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    demo = [sys.executable, "-m", "demo"]
    subprocess.run([*demo, "down"], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "demo.json"
        cluster = Cluster(DEMO, CLUSTERS)
        try:
            with subprocess.Popen([*demo, "run", "--keep", "--json", str(report)]) as process:
                _wait_for(cluster, process)
                with scraped(cluster, Path(scratch) / "prometheus") as prometheus:
                    if process.wait():
                        raise ToolError("the demo did not pass; no picture is drawn")
                    played = _played(report)
                    for board in BOARDS:
                        _draw(board, prometheus, played, folder / f"{board.uid}.png")
        finally:
            subprocess.run([*demo, "down"], check=True)


def _wait_for(cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while not cluster.layout.ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise ToolError("the demo's cluster did not start")
        time.sleep(0.2)


def _played(report: Path) -> Played:
    """The acts follow each other, and the report is written when the last has ended."""
    ended = report.stat().st_mtime
    acts = json.loads(report.read_text())["acts"]
    began = ended - sum(act["seconds"] for act in acts)
    starts = [began + sum(before["seconds"] for before in acts[:number]) for number in range(len(acts))]
    return Played(began, ended, tuple((act["name"], start) for act, start in zip(acts, starts, strict=True)))


def _draw(board: Board, prometheus: Prometheus, played: Played, file: Path) -> None:
    panels = [panel for panel in board.panels if panel.kind != "table"]
    rows = math.ceil(len(panels) / COLUMNS)
    size = (COLUMNS * INCHES[0], rows * INCHES[1] + 0.8)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=size, squeeze=False, layout="constrained")
    for panel, axis in zip(panels, axes.flat, strict=False):
        _panel(axis, panel, prometheus, played)
    for axis in list(axes.flat)[len(panels) :]:
        axis.axis("off")
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    figure.suptitle(
        f"{board.title}: drawn from the series that Prometheus recorded of `make demo` on {today}; no screenshot",
        fontsize=11,
    )
    figure.savefig(file, dpi=70)
    pyplot.close(figure)


def _panel(axis: Axes, panel: Panel, prometheus: Prometheus, played: Played) -> None:
    axis.set_title(panel.title, fontsize=10)
    for letter, (_, start) in zip("1234", played.acts, strict=False):
        axis.axvline(start - played.began, color="0.8", linewidth=1)
        axis.annotate(letter, (start - played.began, 1), xycoords=("data", "axes fraction"), fontsize=8, color="0.5")
    drawn = [
        (_named(query.legend, series), series)
        for query in panel.queries
        for series in prometheus.over(
            filled_in(query.expr, namespace="default", specdep=_object(panel)), played.began, played.ended
        )
    ]
    for height, (name, series) in enumerate(sorted(drawn, key=lambda item: item[0])):
        times = [at - played.began for at, _ in series.points]
        if panel.kind == "state":
            axis.scatter(times, [height] * len(times), marker="s", s=12, label=name)
        else:
            axis.plot(times, [value for _, value in series.points], linewidth=1.4, label=name)
    if panel.kind == "state":
        axis.set_yticks([])
    elif panel.least is not None:
        axis.set_ylim(bottom=panel.least)
    axis.set_xlim(0, played.ended - played.began)
    axis.set_xlabel("seconds, acts 1 to 4", fontsize=8)
    axis.set_ylabel(UNITS[panel.unit], fontsize=8)
    axis.tick_params(labelsize=8)
    if drawn:
        axis.legend(fontsize=6, loc="best", framealpha=0.6)


def _object(panel: Panel) -> str:
    return GOOD if "specdep=~" in panel.queries[0].expr else ".*"


def _named(legend: str, series: Series) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: series.labels.get(match[1], ""), legend)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except ToolError as error:
        sys.exit(f"error: {error}")
