"""What a kubelet writes into `status` of a pod. Pure: from the containers' states to phase and conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from localcluster.agent.api import timestamp
from localcluster.agent.model import Condition, Pod


@dataclass(frozen=True)
class Waiting:
    reason: str
    message: str = ""

    def json(self) -> dict[str, Any]:
        return {"waiting": _without_empty({"reason": self.reason, "message": self.message})}


@dataclass(frozen=True)
class Running:
    started_at: datetime

    def json(self) -> dict[str, Any]:
        return {"running": {"startedAt": timestamp(self.started_at)}}


@dataclass(frozen=True)
class Terminated:
    exit_code: int  # 128 + n if signal n ended it, as container runtimes say
    reason: str
    message: str
    started_at: datetime
    finished_at: datetime

    def json(self) -> dict[str, Any]:
        known = {"reason": self.reason, "message": self.message}
        times = {"startedAt": timestamp(self.started_at), "finishedAt": timestamp(self.finished_at)}
        return {"terminated": {"exitCode": self.exit_code, **_without_empty(known), **times}}


State = Waiting | Running | Terminated


@dataclass(frozen=True)
class ContainerReport:
    """One container as the API shows it. `ready` of an init container: it has succeeded."""

    name: str
    image: str
    state: State
    last: Terminated | None = None
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "containerID": self.container_id,
            "state": self.state.json(),
            "lastState": self.last.json() if self.last else {},
            "restartCount": self.restarts,
            "ready": self.ready,
            "started": self.started,
        }


def pod_status(
    pod: Pod,
    init_containers: Sequence[ContainerReport],
    containers: Sequence[ContainerReport],
    *,
    pod_ip: str,
    host_ip: str,
    started_at: datetime,
    now: datetime,
    before: Sequence[Condition] = (),
) -> dict[str, Any]:
    """`status` as JSON. `before` are the conditions last written: an unchanged one keeps its transition time."""
    phase = pod_phase(pod, init_containers, containers)
    return {
        "observedGeneration": pod.metadata.generation,
        "phase": phase,
        "conditions": _conditions(pod, phase, init_containers, containers, now, before),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "startTime": timestamp(started_at),
        "initContainerStatuses": [report.json() for report in init_containers],
        "containerStatuses": [report.json() for report in containers],
    }


def pod_phase(pod: Pod, init_containers: Sequence[ContainerReport], containers: Sequence[ContainerReport]) -> str:
    """As the kubelet's getPhase. A crashed container that waits for its restart counts as stopped, not as pending."""
    may_restart = pod.spec.restart_policy == "Always" and not pod.metadata.deletion_timestamp
    retries_failures = pod.spec.restart_policy != "Never" and not pod.metadata.deletion_timestamp
    for report in init_containers:
        if _failed(report.state) and not retries_failures:
            return "Failed"
        if not report.ready:
            return "Pending"
    if any(isinstance(report.state, Waiting) and not report.last for report in containers):
        return "Pending"
    ended = [report.state for report in containers if isinstance(report.state, Terminated)]
    if len(ended) < len(containers) or may_restart:
        return "Running"
    if not any(_failed(state) for state in ended):
        return "Succeeded"
    return "Running" if retries_failures else "Failed"


def _failed(state: State) -> bool:
    return isinstance(state, Terminated) and state.exit_code != 0


def _conditions(
    pod: Pod,
    phase: str,
    init_containers: Sequence[ContainerReport],
    containers: Sequence[ContainerReport],
    now: datetime,
    before: Sequence[Condition],
) -> list[dict[str, Any]]:
    finished = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "")
    uninitialised = [report.name for report in init_containers if not report.ready]
    unready = [report.name for report in containers if not report.ready]
    gates = [gate.condition_type for gate in pod.spec.readiness_gates if not pod.status.is_true(gate.condition_type)]
    initialised = not uninitialised or phase == "Succeeded"
    containers_ready = not unready and not finished
    wanted = [
        Condition(type="PodReadyToStartContainers", status=_text(not finished)),
        Condition(
            type="Initialized",
            status=_text(initialised),
            reason=finished if initialised else "ContainersNotInitialized",
            message="" if initialised else f"containers with incomplete status: [{' '.join(uninitialised)}]",
        ),
        _readiness("ContainersReady", containers_ready, finished, unready),
        _readiness("Ready", containers_ready and not gates, finished, unready, gates),
        Condition(type="PodScheduled", status="True"),
    ]
    known = {condition.type: condition for condition in before}
    result = []
    for condition in wanted:
        old = known.get(condition.type)
        since = old.last_transition_time if old and old.status == condition.status else timestamp(now)
        body = condition.model_copy(update={"last_transition_time": since}).model_dump(by_alias=True)
        # In a strategic merge patch a field that is left out keeps its old value; null removes it.
        result.append({key: value or None for key, value in body.items()})
    return result


def _readiness(kind: str, ready: bool, finished: str, unready: Sequence[str], gates: Sequence[str] = ()) -> Condition:
    if ready:
        return Condition(type=kind, status="True")
    if finished:
        return Condition(type=kind, status="False", reason=finished)
    if unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        return Condition(type=kind, status="False", reason="ContainersNotReady", message=message)
    message = "; ".join(f'corresponding condition of pod readiness gate "{gate}" does not exist' for gate in gates)
    return Condition(type=kind, status="False", reason="ReadinessGatesNotReady", message=message)


def _text(value: bool) -> str:
    return "True" if value else "False"


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value != ""}
