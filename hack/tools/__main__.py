"""`python -m tools`: have the programs that the tests need, so that nobody waits for them in the middle of a test."""

from __future__ import annotations

import sys

from tools.helm import HELM
from tools.once import ToolError
from tools.prometheus import promtool


def main() -> None:
    try:
        print(HELM.build())
        print(promtool())
    except ToolError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
