"""Events of the object, through events.k8s.io/v1.

An event tells a transition that is recorded in status already, so it is lost if the operator dies in between. The
answers to what a person asked for must not be: they are kept in status, and told again at the first pass after a start,
under a name that follows from the answer. The API server then keeps one of them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from kubernetes.aio import client

from tandem_operator import kube
from tandem_operator.api import GROUP, KIND, VERSION, SpeculativeDeployment, Status
from tandem_operator.api.status import Answer, AnswerOutcome
from tandem_operator.plan.decision import Event
from tandem_operator.queue import Key

log = logging.getLogger(__name__)

NOTE_LIMIT = 1024  # of events.k8s.io
KEPT = timedelta(hours=1)  # by the API server, unless it was told otherwise: what is older must not come back


class Events:
    def __init__(self, api: client.ApiClient) -> None:
        self._objects = client.CustomObjectsApi(api)
        self._told: dict[Key, frozenset[str]] = {}  # names of the answers that were told, by object

    async def tell(self, resource: SpeculativeDeployment, event: Event, now: datetime, name: str = "") -> bool:
        """False: it could not be posted, which is logged and must not stop a rollback. One whose `name` is there is
        there."""
        metadata = resource.metadata
        named = {"name": name} if name else {"generateName": f"{metadata.name}-"}
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {**named, "namespace": metadata.namespace},
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),  # the API server insists on microseconds
            "type": event.type,
            "reason": event.reason,
            "action": "Reconcile",
            "note": event.message[:NOTE_LIMIT],
            "regarding": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
            },
            "reportingController": "tandem.dev/operator",
            "reportingInstance": "tandem-operator",
        }
        try:
            # As a custom object, that is, as it stands: the client's model of an event drops the microseconds.
            await self._objects.create_namespaced_custom_object(
                "events.k8s.io", "v1", metadata.namespace, "events", body
            )
        except kube.UNANSWERED as error:
            if name and isinstance(error, client.ApiException) and error.status == 409:
                return True
            log.warning("event %s on %s was not posted: %s", event.reason, metadata.name, kube.words(error))
            return False
        return True

    async def tell_all(
        self, resource: SpeculativeDeployment, status: Status, events: Iterable[Event], now: datetime
    ) -> None:
        """`events`, and the answers in `status`."""
        for event in events:
            await self.tell(resource, event, now)
        await self.tell_answers(resource, status, now)

    async def tell_answers(self, resource: SpeculativeDeployment, status: Status, now: datetime) -> None:
        """Those in `status` that this process has not told yet."""
        key = Key(resource.metadata.namespace, resource.metadata.name)
        told = self._told.get(key, frozenset())
        fresh = {_name(resource, answer): answer for answer in status.answers if now - answer.at < KEPT}
        done = {
            name
            for name, answer in fresh.items()
            if name in told or await self.tell(resource, _answer(answer), now, name)
        }
        if done:
            self._told[key] = frozenset(done)
        else:
            self.forget(key)

    def forget(self, key: Key) -> None:
        """The object is gone, or has nothing to remember."""
        self._told.pop(key, None)


def _answer(answer: Answer) -> Event:
    accepted = answer.outcome == AnswerOutcome.ACCEPTED
    reason = f"{answer.command.capitalize()}{answer.outcome}"
    message = answer.message[:1].upper() + answer.message[1:]
    return Event("Normal" if accepted else "Warning", reason, message)


def _name(resource: SpeculativeDeployment, answer: Answer) -> str:
    text = "/".join((resource.metadata.uid, answer.command, answer.value, answer.at.isoformat()))
    return f"{resource.metadata.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
