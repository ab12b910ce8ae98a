"""`python -m chart`: write everything that is made from the chart."""

from __future__ import annotations

import sys
from pathlib import Path

from chart.dashboards import BOARDS, as_json
from chart.manifests import manifests
from chart.readme import readme
from tools.once import ToolError

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tandem"


def main() -> None:
    (CHART / "README.md").write_text(readme(CHART))
    for board in BOARDS:
        (CHART / "dashboards" / f"{board.uid}.json").write_text(as_json(board))
    for name, text in manifests(CHART).items():
        (ROOT / "deploy" / name).write_text(text)


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(f"error: {error}")
