"""Every metric of worker and operator: name, type, labels, unit, help.

`python -m tandem_worker.metric` writes docs/metrics.md from it (make metrics). Label sets are bounded: an object, its
revisions, and short closed lists; never a user, a prompt or a pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from prometheus_client import CollectorRegistry, Gauge

from tandem_worker import __version__


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class _Described(StrEnum):
    """A name that knows what it stands for. `labels` are written as one text, separated by blanks."""

    kind: Kind
    labels: tuple[str, ...]
    unit: str
    help: str

    def __new__(cls, name: str, kind: Kind, labels: str, unit: str, text: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.kind, member.labels, member.unit, member.help = kind, tuple(labels.split()), unit, text
        return member


# fmt: off
class Metric(_Described):
    """Of a worker. Everything starts at zero."""

    DRAFTS = "tandem_drafts_total", Kind.COUNTER, "revision origin", "drafts", \
        "Drafts that the target verified"
    DRAFT_TOKENS = "tandem_draft_tokens_total", Kind.COUNTER, "revision origin", "tokens", \
        "Tokens in these drafts"
    ACCEPTED_TOKENS = "tandem_accepted_tokens_total", Kind.COUNTER, "revision origin", "tokens", \
        "Drafted tokens that the target accepted"
    ACCEPTED_PER_POSITION = "tandem_accepted_tokens_per_position_total", Kind.COUNTER, "revision origin position", \
        "tokens", "Drafted tokens accepted, by their position in the draft, from 0"
    ACCEPT_LENGTH = "tandem_accept_length", Kind.HISTOGRAM, "revision origin", "tokens", \
        "Tokens emitted per round, the target's own included"
    REQUESTS = "tandem_requests_total", Kind.COUNTER, "revision origin outcome", "requests", \
        "Requests that have ended: finished, cancelled or failed"
    REFUSED = "tandem_refused_requests_total", Kind.COUNTER, "revision", "requests", \
        "Requests refused with 429 because too many wait; not among tandem_requests_total"
    REQUEST_SECONDS = "tandem_request_seconds", Kind.HISTOGRAM, "revision origin", "seconds", \
        "Time from arrival to the last token, of finished requests"
    PROMPT_TOKENS = "tandem_prompt_tokens_total", Kind.COUNTER, "revision origin", "tokens", \
        "Prompt tokens of requests that have ended"
    REUSED_TOKENS = "tandem_reused_prompt_tokens_total", Kind.COUNTER, "revision origin", "tokens", \
        "Of these, tokens that an earlier text had begun with, and that were not computed again"
    GENERATED_TOKENS = "tandem_generated_tokens_total", Kind.COUNTER, "revision origin", "tokens", \
        "Tokens generated"
    UNDRAFTED_TOKENS = "tandem_undrafted_tokens_total", Kind.COUNTER, "revision origin", "tokens", \
        "Of these, tokens for which no draft was meant: the request wants none, or none pay (draftLength: auto)"
    # From the sums over finished requests the correlation of drafts within a request, and so the design effect, follow.
    FINISHED_N = "tandem_finished_requests_total", Kind.COUNTER, "revision origin", "requests", \
        "Finished requests, n"
    FINISHED_D = "tandem_finished_drafts_total", Kind.COUNTER, "revision origin", "drafts", \
        "Drafts d, summed over finished requests"
    FINISHED_A = "tandem_finished_accepted0_total", Kind.COUNTER, "revision origin", "drafts", \
        "Drafts accepted at position 0, a, summed over finished requests"
    FINISHED_DD = "tandem_finished_drafts_squared_total", Kind.COUNTER, "revision origin", "drafts squared", \
        "d * d summed over finished requests"
    FINISHED_AA = "tandem_finished_accepted0_squared_total", Kind.COUNTER, "revision origin", "drafts squared", \
        "a * a summed over finished requests"
    FINISHED_DA = "tandem_finished_drafts_accepted0_total", Kind.COUNTER, "revision origin", "drafts squared", \
        "d * a summed over finished requests"
    STEP_SECONDS = "tandem_step_seconds", Kind.HISTOGRAM, "revision phase batch", "seconds", \
        "Time of one forward by phase (prefill, draft, verify, plain) and number of requests in it; 1, or as were met"
    SPECULATION_ENABLED = "tandem_speculation_enabled", Kind.GAUGE, "revision", "0 or 1", \
        "Whether the engine speculates now"
    DRAFT_LENGTH = "tandem_draft_length", Kind.GAUGE, "revision", "tokens", \
        "Tokens drafted per request and round; with draftLength: auto as chosen for the last round"
    SPEEDUP = "tandem_speedup_ratio", Kind.GAUGE, "revision", "ratio", \
        "Estimated speed with speculation over speed without, from step times; NaN until both were timed"
    RUNNING = "tandem_running_requests", Kind.GAUGE, "revision", "requests", "Requests that hold pages"
    WAITING = "tandem_waiting_requests", Kind.GAUGE, "revision", "requests", "Requests that wait for a place"
    FREE_PAGES = "tandem_cache_free_pages", Kind.GAUGE, "revision", "pages", \
        "Pages of the cache, of 64 tokens each, that no running request holds; all of them when nothing runs"
    GRAPHS = "tandem_cuda_graphs", Kind.GAUGE, "revision", "0 or 1", \
        "Whether every round is a CUDA graph; 0 on a CPU, or when one could not be captured"
    BUILD = "tandem_build_info", Kind.GAUGE, "component version", "1", "Always 1; the version is in the label"


class OperatorMetric(_Described):
    """Of the operator: what it says of each object, from the same status that people read, and of itself."""

    CONDITION = "tandem_specdep_condition", Kind.GAUGE, "namespace specdep type status", "0 or 1", \
        "1 for the status that the condition has now: True, False or Unknown"
    REVISION = "tandem_specdep_revision_info", Kind.GAUGE, "namespace specdep role revision", "1", \
        "The revision that is stable, and the one that is canary"
    WEIGHT = "tandem_specdep_canary_weight_ratio", Kind.GAUGE, "namespace specdep", "ratio", \
        "Weight of the step that the canary is at, 0 to 1; of the replicas it may have more"
    STEP_STARTED = "tandem_specdep_canary_step_started_timestamp_seconds", Kind.GAUGE, "namespace specdep", "seconds", \
        "When the canary's present step began; absent without a canary"
    PAUSED = "tandem_specdep_rollout_paused", Kind.GAUGE, "namespace specdep", "0 or 1", \
        "1 while the rollout waits for a person, by spec.paused or at a step that pauses"
    QUARANTINED = "tandem_specdep_quarantined_revisions", Kind.GAUGE, "namespace specdep", "revisions", \
        "Revisions that do not run again while the spec stays as it is"
    ROLLED_BACK_AT = "tandem_specdep_last_rollback_timestamp_seconds", Kind.GAUGE, "namespace specdep", "seconds", \
        "When a revision was last quarantined; 0: none in memory"
    LENGTH = "tandem_specdep_accept_length", Kind.GAUGE, "namespace specdep", "tokens", \
        "Tokens per target forward of the serving revision, over the last window with evidence"
    POSITION0 = "tandem_specdep_position0_acceptance_ratio", Kind.GAUGE, "namespace specdep", "ratio", \
        "Share of the drafts of that window whose first token was accepted"
    SPEEDUP = "tandem_specdep_speedup_ratio", Kind.GAUGE, "namespace specdep", "ratio", \
        "Speed of the serving revision over that of the target alone; absent until enough steps were timed"
    MIN_LENGTH = "tandem_specdep_min_accept_length", Kind.GAUGE, "namespace specdep", "tokens", \
        "guard.minAcceptLength of the object"
    MIN_SPEEDUP = "tandem_specdep_min_speedup_ratio", Kind.GAUGE, "namespace specdep", "ratio", \
        "guard.minSpeedup of the object"
    WANTED = "tandem_specdep_speculation_wanted", Kind.GAUGE, "namespace specdep", "0 or 1", \
        "Whether the object names a drafter and wants it used"
    OUTCOME = "tandem_specdep_outcome", Kind.GAUGE, "namespace specdep role outcome", "0 or 1", \
        "1 for what the newest measurement says of the stable and of the canary revision"
    EVIDENCE = "tandem_specdep_evidence_drafts", Kind.GAUGE, "namespace specdep role", "drafts", \
        "Drafts in the newest measurement"
    SCORE = "tandem_specdep_score", Kind.GAUGE, "namespace specdep role", "nats", \
        "Log-likelihood ratio of collapsed over healthy; the larger of the tests against baseline and floor"
    ALARM = "tandem_specdep_alarm_score", Kind.GAUGE, "namespace specdep role", "nats", \
        "Score above which the revision counts as collapsed"
    RECONCILE_SECONDS = "tandem_operator_reconcile_seconds", Kind.HISTOGRAM, "", "seconds", \
        "Time of one observe, plan, apply pass"
    RECONCILE_ERRORS = "tandem_operator_reconcile_errors_total", Kind.COUNTER, "", "passes", \
        "Passes that ended in an error and are tried again"
    INVALID = "tandem_operator_invalid_objects_total", Kind.COUNTER, "", "passes", \
        "Passes over objects that did not parse"
    QUEUE_DUE = "tandem_operator_queue_due", Kind.GAUGE, "", "objects", "Objects whose turn has come and that wait"
    QUEUE_RUNNING = "tandem_operator_queue_running", Kind.GAUGE, "", "objects", "Objects that are being reconciled"
    LOOP_LAG = "tandem_operator_loop_lag_seconds", Kind.HISTOGRAM, "", "seconds", \
        "How late the event loop wakes a task, looked at ten times a second"
    PROGRESSING = "tandem_operator_progressing", Kind.GAUGE, "", "0 or 1", \
        "1 while the operator makes progress, as /healthz says"
    CRD_MATCHES = "tandem_operator_crd_matches", Kind.GAUGE, "", "0 or 1", \
        "1 while the installed CRD has every field of this operator's"
    BUILD = "tandem_build_info", Kind.GAUGE, "component version", "1", "Always 1; the version is in the label"
# fmt: on


def show_build(component: str, registry: CollectorRegistry) -> None:
    """`tandem_build_info`, the same on both sides."""
    info = Gauge(Metric.BUILD, Metric.BUILD.help, Metric.BUILD.labels, registry=registry)
    info.labels(component, __version__).set(1)


HEAD = """# Metrics

What `/metrics` of workers and operator shows. This page is written from the one table that both are built from
(`worker/tandem_worker/metric.py`) by `make metrics`; rules and alerts over them are in `helm/tandem/rules/`, what to do
when one fires in [runbooks](runbooks/). The chart's dashboards are drawn in [fleet](img/tandem-fleet.png),
[pair](img/tandem-pair.png) and [operator](img/tandem-operator.png) from what a Prometheus recorded of `make demo`.

The chart's PodMonitor adds the labels `namespace` and `specdep` (the object's name) to a worker's series, so that they
join with the operator's. An engine other than the builtin one shows its own metrics under its own names.
"""


def page() -> str:
    """docs/metrics.md."""
    worker = _table("Worker, port `http`", Metric)
    return HEAD + worker + _table("Operator, port `http`", OperatorMetric)


def _table(title: str, metrics: Iterable[_Described]) -> str:
    rows = [
        f"| `{metric}` | {metric.kind} | {' '.join(f'`{label}`' for label in metric.labels)} | {metric.unit} "
        f"| {metric.help} |\n"
        for metric in metrics
    ]
    return f"\n## {title}\n\n| name | type | labels | unit | what it is |\n| --- | --- | --- | --- | --- |\n" + "".join(
        rows
    )


if __name__ == "__main__":
    print(page(), end="")
