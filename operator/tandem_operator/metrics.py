"""The operator's own `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tandem_operator.api import Status
from tandem_operator.queue import Key


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        on = ["namespace", "name"]
        self.reconcile_seconds = Histogram(
            "tandem_operator_reconcile_seconds", "Time of one observe, plan, apply pass.", registry=self.registry
        )
        self.invalid = Counter(
            "tandem_operator_invalid_objects", "Passes over objects that did not parse.", registry=self.registry
        )
        self.crd_is_own = Gauge(
            "tandem_operator_crd_matches", "1 while the installed CRD is this operator's.", registry=self.registry
        )
        self.accept_length = Gauge(
            "tandem_accept_length", "Tokens per target forward of the stable revision.", on, registry=self.registry
        )
        self.condition = Gauge(
            "tandem_condition",
            "1 while the condition has this status.",
            [*on, "type", "status"],
            registry=self.registry,
        )

    def show(self, key: Key, status: Status) -> None:
        if status.acceptance:
            self.accept_length.labels(*key).set(status.acceptance.accept_length)
        for condition in status.conditions:
            for state in ("True", "False", "Unknown"):
                self.condition.labels(*key, condition.type, state).set(condition.status == state)

    def forget(self, key: Key) -> None:
        """Without the series of an object that is gone."""
        self.accept_length.remove_by_labels({"namespace": key.namespace, "name": key.name})
        self.condition.remove_by_labels({"namespace": key.namespace, "name": key.name})
