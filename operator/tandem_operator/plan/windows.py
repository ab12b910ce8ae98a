"""The evidence on revisions, as status keeps it: a window for each, and the workers whose evidence is still to begin.

Evidence begins anew with a retry, and there is none while a revision is in quarantine, or a canary not judged yet. A
window knows only the workers that were read, and may be lost or not begun. So status lists in `unread` the workers that
are there: the next reading of each, whenever it comes, only moves what later ones are differenced from. A worker that
starts later counts from its first draft.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandem_operator.api import Status
from tandem_operator.api.status import MOST_UNREAD, Counts, Window
from tandem_operator.plan.analysis import evidence
from tandem_operator.plan.observed import Context
from tandem_operator.plan.quarantine import blocked


def window_of(context: Context, status: Status, revision: str) -> Window:
    return _known(status, revision) or evidence.fresh(
        Window(revision=revision, started_at=context.now, sampled_at=context.now), context.now, total_beside(status)
    )


def _known(status: Status, revision: str) -> Window | None:
    return next((w for w in status.windows if w.revision == revision), None)


def total_beside(status: Status) -> Counts | None:
    stable = _known(status, status.stable_revision)
    return stable.total if stable else None


def with_window(status: Status, window: Window) -> Status:
    others = [w for w in status.windows if w.revision != window.revision]
    return status.model_copy(update={"windows": [*others, window][-2:]})


def next_window(context: Context, status: Status, window: Window) -> Status:
    """The window has said what it had to say."""
    return with_window(status, evidence.fresh(window, context.now, _beside(status, window)))


def judged_anew(context: Context, status: Status, revision: str) -> Status:
    """What is read from here on counts, and nothing before."""
    window = window_of(context, status, revision)
    return with_window(status, evidence.restart(window, context.now, _beside(status, window)))


def begun_anew(context: Context, status: Status, revisions: Iterable[str]) -> Status:
    """What was drafted before counts no more, nor does it when it is read only later. Said again between two looks this
    changes nothing: a pass that finds all as it was writes no status."""
    anew = set(revisions)
    windows = [
        evidence.restart(w, w.sampled_at, _beside(status, w)) if w.revision in anew else w for w in status.windows
    ]
    there = (pod.uid for pod in context.observed.pods if pod.revision in anew)
    return status.model_copy(update={"windows": windows, "unread": list(dict.fromkeys([*status.unread, *there]))})


def all_begun_anew(context: Context, status: Status) -> Status:
    """A retry was asked for."""
    return begun_anew(context, status, _revisions(context, status))


def kept(context: Context, status: Status) -> Status:
    """The end of a pass. Whatever ends a quarantine, a worker that was there before gives no evidence of before; state
    does not grow with history, nor with workers that nobody will read."""
    revisions = _revisions(context, status)
    status = begun_anew(context, status, [each for each in revisions if blocked(context, status, each)])
    drafting = [each for each in revisions if context.observed.speculates(each)]
    there = {pod.uid for revision in drafting for pod in context.observed.of(revision)}
    judged = (status.stable_revision, status.canary_revision)
    update = {
        "windows": [w for w in status.windows if w.revision in judged],
        "unread": [uid for uid in status.unread if uid in there][:MOST_UNREAD],
    }
    return status.model_copy(update=update)


def _revisions(context: Context, status: Status) -> list[str]:
    found = (*(pod.revision for pod in context.observed.pods), *(w.revision for w in status.windows))
    return list(dict.fromkeys(found))


def _beside(status: Status, window: Window) -> Counts | None:
    return total_beside(status) if window.revision != status.stable_revision else None
