"""Revisions that must not run: found bad, or taken back by hand.

An entry holds while the spec stays as it was, retry annotation included: a changed spec, or a wish to try again, gives
every revision another chance. Nothing but a note in status is written, and `spec` never.
"""

from __future__ import annotations

from tandem_operator.api import Status
from tandem_operator.api.status import Quarantine
from tandem_operator.plan.decision import Notes
from tandem_operator.plan.observed import Context
from tandem_operator.plan.validation import retry_of

KEPT = 10


def blocked(context: Context, status: Status, revision: str) -> Quarantine | None:
    return status.quarantine_of(revision, context.spec_hash)


def retry_of_workers(context: Context, status: Status, revision: str) -> str:
    """The retry annotation that workers of the revision are started under: empty unless it was ever quarantined."""
    once = any(entry.revision == revision for entry in status.quarantined)
    return retry_of(context.observed.resource) if once else ""


def quarantine(
    context: Context, status: Status, revision: str, reason: str, message: str, notes: Notes, *, instead: str = ""
) -> Status:
    """`revision` is in quarantine and no canary any more. `instead`: what is to serve in its place, if not the last
    healthy one."""
    entry = Quarantine(
        revision=revision, reason=reason, message=message, at=context.now, spec=context.spec_hash, instead=instead
    )
    notes.say("Warning", "Quarantined", f"Revision {revision} quarantined ({reason}): {message}")
    status = _with_entry(status, entry)
    return without_canary(status) if revision == status.canary_revision else status


def quarantined_before_retry(context: Context, status: Status, revision: str, reason: str, message: str) -> Status:
    """Had this been seen in time, the retry would have ended the quarantine. So nothing is taken back, and workers are
    started anew (`retry_of_workers`)."""
    return _with_entry(status, Quarantine(revision=revision, reason=reason, message=message, at=context.now, spec=""))


def _with_entry(status: Status, entry: Quarantine) -> Status:
    """The newest of a revision and spec is kept, and of all the last few."""
    others = [q for q in status.quarantined if (q.revision, q.spec) != (entry.revision, entry.spec)]
    return status.model_copy(update={"quarantined": [*others, entry][-KEPT:]})


def without_canary(status: Status) -> Status:
    return status.model_copy(update={"canary_revision": "", "weight": 0, "progress": None})
