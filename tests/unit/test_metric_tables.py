"""The one table of metrics: Prometheus' naming rules, the page, and what the operator shows of an object."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem_operator.api import SpeculativeDeployment, Status
from tandem_operator.api.status import Acceptance, Measurement, Progress, Quarantine
from tandem_operator.metrics import Metrics
from tandem_operator.plan.revisions import spec_hash
from tandem_operator.queue import Key
from tandem_worker.contract import Metric, OperatorMetric
from tandem_worker.metric import Kind, page

ROOT = Path(__file__).resolve().parents[2]
ALL = list(chain(Metric, OperatorMetric))
BOUNDED = {
    *("namespace", "specdep", "role", "revision", "type", "status", "outcome"),
    *("origin", "position", "phase", "batch", "component", "version"),
}
KEY = Key("team-a", "llama")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("metric", ALL)
def test_a_metric_is_named_as_prometheus_asks(metric: Metric | OperatorMetric) -> None:
    assert re.fullmatch(r"tandem_[a-z0-9]+(_[a-z0-9]+)*", metric)
    assert metric.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.endswith("_info") == (metric.unit == "1")
    assert metric.removesuffix("_total").endswith("_seconds") == (metric.unit == "seconds")
    assert metric.endswith("_ratio") == (metric.unit == "ratio")
    assert not re.search(r"milli|micro|_ms|percent|minute|hour", metric)
    assert metric.help
    assert not metric.help.endswith(".")


@pytest.mark.parametrize("metric", ALL)
def test_labels_are_of_bounded_sets(metric: Metric | OperatorMetric) -> None:
    assert set(metric.labels) <= BOUNDED, "never a user, a prompt or a pod"


def test_a_name_means_one_thing() -> None:
    shared = set(Metric) & set(OperatorMetric)
    assert shared == {"tandem_build_info"}


def test_the_page_is_what_the_table_says() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page(), "run make metrics"


def test_one_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tandem_worker.__version__"}


# --- of an object ----------------------------------------------------------------------------------------------------


def pair() -> SpeculativeDeployment:
    source = {"source": {"pvc": {"claimName": "models"}}}
    return SpeculativeDeployment.model_validate(
        {
            "metadata": {"name": KEY.name, "namespace": KEY.namespace, "uid": "u", "generation": 1},
            "spec": {"target": source, "drafter": source, "guard": {"minAcceptLength": 1.5}},
        }
    )


def measured(revision: str, outcome: str, at: datetime, **figures: float) -> Measurement:
    fields = {"at": at, "since": at, "revision": revision, "test": "Gate", "outcome": outcome, "reason": outcome}
    return Measurement.model_validate(fields | figures)


def shown(metrics: Metrics) -> dict[str, float]:
    """`name label=value,…` without namespace and specdep -> value, of the object's series."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if (labels.pop("namespace", ""), labels.pop("specdep", "")) == KEY:
                found[" ".join([sample.name, *(f"{k}={v}" for k, v in sorted(labels.items()))])] = sample.value
    return found


def test_an_object_in_mid_rollout_is_shown_with_its_evidence() -> None:
    metrics = Metrics()
    status = Status(
        stable_revision="aaaa",
        canary_revision="bbbb",
        weight=25,
        progress=Progress(step=1, step_started_at=AT, started_at=AT),
        acceptance=Acceptance(
            accept_length=3.4, position0=0.8, lower=0.7, upper=0.9, drafts=90, requests=4, revision="aaaa",
            window_seconds=30, speedup=1.6,
        ),
        measurements=[
            measured("bbbb", "Collapsed", AT, drafts=44, score=7.5, floor_score=2.0, alarm_above=6.9),
            measured("bbbb", "Inconclusive", AT - timedelta(seconds=5), drafts=10),
        ],
    )  # fmt: skip
    metrics.show(KEY, pair(), status)
    found = shown(metrics)
    assert found["tandem_specdep_canary_weight_ratio"] == 0.25
    assert found["tandem_specdep_canary_step_started_timestamp_seconds"] == AT.timestamp()
    assert found["tandem_specdep_revision_info revision=aaaa role=stable"] == 1
    assert found["tandem_specdep_revision_info revision=bbbb role=canary"] == 1
    assert found["tandem_specdep_accept_length"] == 3.4
    assert found["tandem_specdep_speedup_ratio"] == 1.6
    assert found["tandem_specdep_min_accept_length"] == 1.5
    assert found["tandem_specdep_speculation_wanted"] == 1
    assert found["tandem_specdep_evidence_drafts role=canary"] == 44, "the newest measurement"
    assert found["tandem_specdep_score role=canary"] == 7.5
    assert found["tandem_specdep_alarm_score role=canary"] == 6.9
    outcomes = {name: value for name, value in found.items() if name.startswith("tandem_specdep_outcome")}
    assert [name for name, value in outcomes.items() if value] == [
        "tandem_specdep_outcome outcome=Collapsed role=canary"
    ]
    assert len(outcomes) == 6


def test_a_rollback_leaves_its_time_and_no_series_of_the_canary() -> None:
    metrics = Metrics()
    progress = Progress(step_started_at=AT, started_at=AT)
    metrics.show(KEY, pair(), Status(stable_revision="aaaa", canary_revision="bbbb", progress=progress))
    quarantine = Quarantine(revision="bbbb", reason="NothingAccepted", at=AT, spec=spec_hash(pair().spec, ""))
    metrics.show(KEY, pair(), Status(stable_revision="aaaa", quarantined=[quarantine]))
    found = shown(metrics)
    assert found["tandem_specdep_last_rollback_timestamp_seconds"] == AT.timestamp()
    assert found["tandem_specdep_quarantined_revisions"] == 1
    assert not [name for name in found if "canary_step" in name or "role=canary" in name]


def test_a_quarantine_that_a_changed_spec_ended_counts_no_more() -> None:
    metrics = Metrics()
    present = spec_hash(pair().spec, "")
    entries = [("bbbb", "of an earlier spec"), ("bbbb", ""), ("cccc", present), ("dddd", present), ("dddd", "earlier")]
    quarantined = [Quarantine(revision=r, reason="TooSlow", at=AT, spec=s) for r, s in entries]
    metrics.show(KEY, pair(), Status(stable_revision="aaaa", quarantined=quarantined))
    assert shown(metrics)["tandem_specdep_quarantined_revisions"] == 2


def test_nothing_is_shown_of_an_object_that_is_gone() -> None:
    metrics = Metrics()
    metrics.show(KEY, pair(), Status())
    assert shown(metrics)
    metrics.forget(KEY)
    assert shown(metrics) == {}
