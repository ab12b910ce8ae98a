"""docs/operator-faults.md says which test holds against which fault: the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "docs" / "operator-faults.md").read_text()
NAMED = re.compile(r"`((?:[\w./-]+/)?[\w-]+\.py|test_\w+)`")


def test_every_file_and_test_that_the_page_names_exists() -> None:
    files = [path for folder in ("tests", "operator") for path in (CHECKOUT / folder).rglob("*.py")]
    code = "\n".join(path.read_text() for path in files)
    named = NAMED.findall(PAGE)
    assert named
    for name in named:
        if name.endswith(".py"):
            assert [path for path in files if str(path).endswith(f"/{name}")], f"there is no {name}"
        else:
            assert f"def {name}(" in code, f"there is no {name}"
