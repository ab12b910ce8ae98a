"""How far pip is, told from the lines that it prints.

pip resolves first (`Collecting NAME`), fetches (`Downloading FILE (SIZE)`, or `Using cached`), and then installs
without a word after `Installing collected packages: A, B, C`; in that phase the finished packages are counted by
their metadata folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

_FETCH = re.compile(r"^\s*(Downloading|Using cached|Processing) (?P<file>\S+)( \((?P<size>[^)]+)\))?")
_INSTALL = re.compile(r"^Installing collected packages: (?P<names>.+)$")


@dataclass
class PipProgress:
    expected: int  # packages, from the constraints; some of them may not be needed on this machine
    collected: set[str] = field(default_factory=set)
    fetched: set[str] = field(default_factory=set)
    current: str = ""
    to_install: int = 0

    def feed(self, line: str) -> None:
        if match := _INSTALL.match(line):
            self.to_install = len(match["names"].split(","))
        elif line.startswith("Collecting "):
            self.collected.add(re.split(r"[^\w.-]", line.removeprefix("Collecting "))[0].lower())
        elif (match := _FETCH.match(line)) and match["file"].endswith(".whl"):
            self.fetched.add(match["file"])
            name = "-".join(match["file"].rsplit("/", 1)[-1].split("-")[:2])
            self.current = f"{name} ({match['size']})" if match["size"] else name

    def describe(self, installed: Callable[[], int]) -> str:
        """`installed` counts the packages that lie finished in the environment."""
        if self.to_install:
            return f"installing: {min(installed(), self.to_install)} of {self.to_install} packages"
        if self.fetched:
            return f"fetching: {len(self.fetched)} of about {self.expected} packages, now {self.current}"
        return f"resolving: {len(self.collected)} of about {self.expected} packages"
