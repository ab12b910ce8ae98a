"""What a person asks for by hand, as annotations of the object. docs/rollout.md has the grammar.

    tandem.dev/promote    REVISION ["full"] [# TAG]   the canary goes on to its next step, or to the end
    tandem.dev/abort      REVISION [# TAG]            the canary is taken back
    tandem.dev/rollback   REVISION [# TAG]            an earlier revision serves instead of the spec's
    tandem.dev/retry      any text                    everything may be tried again

The operator never writes annotations, so what was answered is kept in status: a value is carried out once, whatever
restarts, and again when it changes or was taken away in between. A command names its revision, so one that is left
behind, or comes from a repository, means nothing to the next canary. The answer is told as an event from status, see
`events.py`: one for each value, also when the operator dies between the two.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tandem_operator.api import GROUP, Status
from tandem_operator.api.status import Answer, AnswerOutcome, Command
from tandem_operator.plan.decision import Notes
from tandem_operator.plan.observed import Context
from tandem_operator.plan.quarantine import blocked, quarantine
from tandem_operator.plan.revisions import short_hash
from tandem_operator.plan.steps import next_step

GRAMMAR = {
    Command.PROMOTE: 'REVISION ["full"] ["#" TEXT]',
    Command.ABORT: 'REVISION ["#" TEXT]',
    Command.ROLLBACK: 'REVISION ["#" TEXT]',
}
_WORDS = re.compile(r"(?P<revision>[0-9a-f]{10})(?P<full> +full)?(?: +#.*)?")
LONGEST = 128

Result = tuple[Status, AnswerOutcome, str]


class Order(NamedTuple):
    revision: str
    full: bool = False


def parse(command: Command, value: str) -> Order | None:
    """None: that is no order."""
    found = _WORDS.fullmatch(value.strip()) if len(value) <= LONGEST else None
    if found is None or (found["full"] and command != Command.PROMOTE):
        return None
    return Order(found["revision"], bool(found["full"]))


def unanswered(context: Context, status: Status, command: Command) -> bool:
    """It is asked for and has no answer yet. A lost status asks anew."""
    value = _asked(context, command)
    return bool(value) and not any((a.command, a.value) == (command, _short(value)) for a in status.answers)


def _asked(context: Context, command: Command) -> str:
    return context.observed.resource.metadata.annotations.get(f"{GROUP}/{command}", "")


def _short(value: str) -> str:
    """As status keeps it. Two that are too long to keep, and differ only at their end, stay two."""
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 11]} {short_hash(value)}"


def carry_out(context: Context, status: Status, wanted: str, notes: Notes) -> Status:
    """Every wish that has no answer yet. `wanted`: the spec's revision, empty while it may not be rolled out."""
    answered = {answer.command: answer for answer in status.answers}
    answers = []
    for command in Command:
        value = _asked(context, command)
        if unanswered(context, status, command):
            status, outcome, message = _carried_out(context, status, wanted, command, value, notes)
            value = _short(value)
            answers.append(Answer(command=command, value=value, outcome=outcome, message=message, at=context.now))
        elif value:
            answers.append(answered[command])
    return status.model_copy(update={"answers": answers})


def _carried_out(context: Context, status: Status, wanted: str, command: Command, value: str, notes: Notes) -> Result:
    if command == Command.RETRY:
        message = "every quarantine ends, and the pair is validated anew"
        return status, AnswerOutcome.ACCEPTED, message
    order = parse(command, value)
    if order is None:
        message = (
            f"{GROUP}/{command} is {value[:LONGEST]!r}; it must be {GRAMMAR[command]}, REVISION being 10 hex digits"
        )
        return status, AnswerOutcome.NOT_UNDERSTOOD, f"{message} as in status.canaryRevision, without the quotes"
    if command == Command.PROMOTE:
        return _promote(context, status, order, notes)
    if command == Command.ABORT:
        return _abort(context, status, order, notes)
    return _rollback(context, status, wanted, order, notes)


def _promote(context: Context, status: Status, order: Order, notes: Notes) -> Result:
    if refusal := _not_the_canary(status, order.revision):
        return _refused(status, refusal)
    progress = status.progress
    if context.observed.resource.spec.paused:
        return _refused(status, "spec.paused is true")
    if status.weight == 100:
        return _refused(
            status, f"canary {order.revision} is at weight 100: it is stable once all its workers are ready"
        )
    if progress is None or progress.in_force_at is None or progress.waiting_since:
        return _refused(status, f"the workers of canary {order.revision} are not ready yet; ask again when they are")
    before = status.weight
    status = next_step(context, status, order.revision, "promoted by hand", notes, last=order.full)
    return status, AnswerOutcome.ACCEPTED, f"canary {order.revision} goes from weight {before} to {status.weight}"


def _abort(context: Context, status: Status, order: Order, notes: Notes) -> Result:
    if refusal := _not_the_canary(status, order.revision):
        return _refused(status, refusal)
    message = f"aborted by hand at weight {status.weight}"
    status = quarantine(context, status, order.revision, "Aborted", message, notes)
    return status, AnswerOutcome.ACCEPTED, f"canary {order.revision} is taken back"


def _rollback(context: Context, status: Status, wanted: str, order: Order, notes: Notes) -> Result:
    revision = order.revision
    if not wanted:
        return _refused(status, "the spec's own pair is not rolled out, so there is nothing to go back from")
    if revision == wanted:
        return _refused(status, f"revision {revision} is what the spec asks for; {GROUP}/retry lets it run again")
    if context.observed.recipe(revision) is None:
        known = ", ".join(h.revision for h in context.observed.history if h.revision != wanted) or "none"
        return _refused(status, f"revision {revision} is not in the history; there is: {known}")
    if entry := blocked(context, status, revision):
        return _refused(status, f"revision {revision} is in quarantine ({entry.reason}): {entry.message}")
    message = f"taken back by hand in favour of revision {revision}"
    status = quarantine(context, status, wanted, "RolledBackByHand", message, notes, instead=revision)
    return status, AnswerOutcome.ACCEPTED, f"revision {revision} is to serve instead of {wanted}"


def _not_the_canary(status: Status, revision: str) -> str:
    if revision == status.canary_revision:
        return ""
    if revision == status.stable_revision:
        return f"revision {revision} is stable already"
    there_is = f"the canary is {status.canary_revision}" if status.canary_revision else "there is no canary"
    return f"revision {revision} is not the canary: {there_is}"


def _refused(status: Status, message: str) -> Result:
    return status, AnswerOutcome.REFUSED, message
