"""The live view: printer columns and conditions as kubectl shows them, and every change of a condition as a line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.judge import Check
from demo.world import Shown
from tandem_operator.api import Condition

_STYLES = {"True": "green", "False": "red", "Unknown": "yellow"}


class View:
    """On a terminal the objects stand below the story and change in place; in a log only the story is there."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._objects: dict[str, Shown] = {}
        self._start = time.monotonic()

    @contextmanager
    def live(self, objects: dict[str, Shown]) -> Iterator[None]:
        self._objects = objects
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self._now, console=self.console, refresh_per_second=4, transient=True):
            yield

    def title(self, text: str, idea: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{text}", align="left")
        self.console.print(f"{idea}\n", style="italic", highlight=False)

    def say(self, text: str) -> None:
        self._line("", Text(text))

    def changed(self, name: str, before: Shown | None, now: Shown) -> None:
        """Tells the conditions whose status or reason is another than before."""
        for condition in changed_conditions(before, now):
            style = _STYLES[condition.status]
            status = Text.assemble(f"{condition.type}=", (condition.status, style), f" {condition.reason}")
            self._line(name, status, condition.message)

    def checks(self, checks: list[Check]) -> None:
        for check in checks:
            mark = ("as told", "green") if check.holds else ("NOT AS TOLD", "red")
            self._line("", Text.assemble(mark, f"  {check.told}"), check.found)

    def get(self) -> RenderableType:
        """`kubectl get specdep`."""
        shown = list(self._objects.values())
        headings = [heading.upper() for heading in (shown[0].columns if shown else {})]
        table = Table(*headings, box=None, padding=(0, 2, 0, 0))
        for one in shown:
            table.add_row(*(value or "-" for value in one.columns.values()))
        return table

    def _now(self) -> RenderableType:
        parts: list[RenderableType] = [Text(), Text("$ kubectl get specdep", style="dim"), self.get()]
        for name, shown in self._objects.items():
            parts += [Text(), Text(f"conditions of {name}", style="dim"), _conditions(shown)]
        return Group(*parts)

    def _line(self, name: str, text: Text, more: str = "") -> None:
        line = Table.grid(padding=(0, 1))
        line.add_column(width=5, justify="right", style="dim")
        line.add_column(width=10, style="cyan", no_wrap=True)
        line.add_column(ratio=1)
        if more:
            text.append(f"  {more}", style="dim")
        line.add_row(f"{time.monotonic() - self._start:.0f}s", name, text)
        self.console.print(line)


def changed_conditions(before: Shown | None, now: Shown) -> list[Condition]:
    """Those whose status or reason changed; at first, those that are more than Unknown."""

    def key(condition: Condition) -> tuple[str, str]:
        return condition.status, condition.reason

    known: dict[str, tuple[str, str]] = {c.type: key(c) for c in before.resource.status.conditions} if before else {}
    new = [c for c in now.resource.status.conditions if known.get(c.type) != key(c)]
    return [c for c in new if c.type in known or c.status != "Unknown"]


def _conditions(shown: Shown) -> Table:
    table = Table("TYPE", "STATUS", "REASON", "MESSAGE", box=None, padding=(0, 2, 0, 0))
    for condition in shown.resource.status.conditions:
        status = Text(condition.status, style=_STYLES[condition.status])
        table.add_row(condition.type, status, condition.reason, condition.message)
    return table


def told(figures: dict[str, Any]) -> str:
    """Figures by name, in one line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items() if value is not None)
