"""Times in status when the clock was set.

While the operator runs it knows by how much (`Context.clock_set`), and every time is moved along: what is under way
takes as long as it would have. One that has just started can't know. It takes times that are still to come as now, for
whatever waits for them would stand still until then: a deadline or an interval under way begins anew, once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from tandem_operator.api import Status
from tandem_operator.api.base import ApiModel
from tandem_operator.plan.observed import Context

Part = TypeVar("Part", bound=ApiModel)


def with_right_times(context: Context) -> Context:
    resource = context.observed.resource
    status = _of_status(context, resource.status)
    if status is resource.status:
        return context
    resource = resource.model_copy(update={"status": status})
    return replace(context, observed=replace(context.observed, resource=resource))


def _of_status(context: Context, status: Status) -> Status:
    changed: dict[str, object] = {}
    for name in ("progress", "validation"):
        part: ApiModel | None = getattr(status, name)
        if part and (right := _right(context, part)) is not part:
            changed[name] = right
    for name in ("windows", "measurements"):
        before: list[ApiModel] = getattr(status, name)
        parts = [_right(context, part) for part in before]
        if any(new is not old for new, old in zip(parts, before, strict=True)):
            changed[name] = parts
    return status.model_copy(update=changed) if changed else status


def _right(context: Context, part: Part) -> Part:
    """`part` itself if all of its times are right."""
    times = {name: value for name, value in part if isinstance(value, datetime)}
    right = {name: min(value + context.clock_set, context.now) for name, value in times.items()}
    return part.model_copy(update=right) if right != times else part
