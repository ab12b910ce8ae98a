"""Watching acceptance: windows of evidence on the stable and the canary revision, and what their verdicts say.

A revision is sampled once an interval. A window that was judged Healthy ends and the next begins, so a collapse is
judged on what came after, not diluted by a good past. A pod that could not be read, and a revision whose speculation
the operator itself switched off, give no evidence.
"""

from __future__ import annotations

from datetime import timedelta

from tandem_operator.api import Status
from tandem_operator.api.status import Counts, Window
from tandem_operator.plan import evidence
from tandem_operator.plan.conditions import Seen
from tandem_operator.plan.decision import Notes
from tandem_operator.plan.observed import Context, Pod
from tandem_operator.plan.verdict import Outcome, Verdict, judge
from tandem_worker.contract import SelfTestOutcome

NOT_DUE = Verdict(Outcome.INCONCLUSIVE, "NotDue", "the next look at acceptance is still to come")


def window_of(context: Context, status: Status, revision: str) -> Window:
    known = next((w for w in status.windows if w.revision == revision), None)
    return known or Window(revision=revision, started_at=context.now, sampled_at=context.now)


def keep_windows(status: Status, *revisions: str) -> Status:
    """Only the windows of these revisions: state does not grow with history."""
    return status.model_copy(update={"windows": [w for w in status.windows if w.revision in revisions]})


def with_window(status: Status, window: Window) -> Status:
    others = [w for w in status.windows if w.revision != window.revision]
    return status.model_copy(update={"windows": [*others, window][-2:]})


def look(context: Context, status: Status, revision: str) -> tuple[Status, Window, Verdict]:
    """Sample the revision when its interval has passed, and judge what its window then holds."""
    window = window_of(context, status, revision)
    interval = timedelta(seconds=context.observed.resource.spec.rollout.analysis.interval_seconds)
    if context.now - window.sampled_at < interval:
        return with_window(status, window), window, NOT_DUE
    drafting: list[tuple[str, Counts]] = []
    idle: list[tuple[str, Counts]] = []
    for pod in context.observed.of(revision):
        worker = context.observed.worker(pod)
        if worker.counts is not None and worker.status is not None:
            (drafting if worker.status.speculation_enabled else idle).append((pod.uid, worker.counts))
    window = evidence.sample(window, drafting, idle, context.now)
    window = evidence.forget(window, frozenset(pod.uid for pod in context.observed.pods))
    floor = context.observed.resource.spec.guard.min_accept_length
    return with_window(status, window), window, judge(window.counts, floor)


def self_test_failed(context: Context, revision: str, retry: str) -> str:
    """A sentence when a ready worker of the revision saw no life in its drafter, else empty.

    Workers that were started before the present `retry` are about to be replaced; what they saw is known.
    """
    for pod in context.observed.of(revision):
        if pod.retry != retry:
            continue
        reported = context.observed.worker(pod).status
        if pod.ready and reported and reported.self_test.outcome == SelfTestOutcome.NO_LIFE:
            return (
                f"self-test of {pod.name}: none of {reported.self_test.drafts} drafts was accepted; "
                "the drafter does not predict this target as this engine wires it"
            )
    return ""


def note_metrics(context: Context, notes: Notes) -> None:
    ready = [pod for pod in context.observed.pods if pod.ready and not pod.terminating]
    silent = [pod.name for pod in ready if context.observed.worker(pod).counts is None]
    if not ready:
        notes.seen.append(Seen("MetricsAvailable", "Unknown", "NoReadyWorker", "no worker is ready"))
    elif silent:
        message = f"no usable /metrics from {', '.join(silent[:5])}: counts as no evidence, neither good nor bad"
        notes.seen.append(Seen("MetricsAvailable", "False", "ScrapeFailed", message))
    else:
        notes.seen.append(Seen("MetricsAvailable", "True", "Scraped", f"{len(ready)} workers were read"))


def ready_pods(context: Context, revision: str) -> list[Pod]:
    return [pod for pod in context.observed.of(revision) if pod.ready]
