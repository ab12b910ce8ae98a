"""A clock that was set back leaves times in status that are still to come, and whatever waits for them would stand
still until then. They are taken as now: a deadline or an interval under way begins anew, once."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from tandem_operator.api import Status
from tandem_operator.api.base import ApiModel
from tandem_operator.plan.observed import Context

Part = TypeVar("Part", bound=ApiModel)


def without_future(context: Context) -> Context:
    resource = context.observed.resource
    status = _of_status(resource.status, context.now)
    if status is resource.status:
        return context
    resource = resource.model_copy(update={"status": status})
    return replace(context, observed=replace(context.observed, resource=resource))


def _of_status(status: Status, now: datetime) -> Status:
    changed: dict[str, object] = {}
    if status.progress and (progress := _clamped(status.progress, now)) is not status.progress:
        changed["progress"] = progress
    if status.validation and (validation := _clamped(status.validation, now)) is not status.validation:
        changed["validation"] = validation
    windows = [_clamped(window, now) for window in status.windows]
    if any(new is not old for new, old in zip(windows, status.windows, strict=True)):
        changed["windows"] = windows
    return status.model_copy(update=changed) if changed else status


def _clamped(part: Part, now: datetime) -> Part:
    """`part` itself if none of its times is after `now`."""
    late = {name: now for name, value in part if isinstance(value, datetime) and value > now}
    return part.model_copy(update=late) if late else part
