"""The operator's edge: what it makes of the API server's JSON, of what workers answer, and of its own health."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web as http

from localcluster.certificates import Authority
from localcluster.controlplane import kubeconfig
from tandem_operator import kube, web, workers
from tandem_operator.api import Status
from tandem_operator.apply import _commands
from tandem_operator.observe import InvalidObject, Sight, _deployment, _history, _job, _pod
from tandem_operator.plan import Plan
from tandem_operator.plan.decision import Command
from tandem_operator.plan.observed import Pod
from tandem_operator.plan.revisions import recipe
from tandem_operator.queue import Key, WorkQueue
from tandem_operator.run import _run_kopf, bare_token
from tandem_operator.settings import Settings
from tandem_operator.signing import Signer
from tandem_operator.store import CHILDREN, Store
from tandem_operator.workers import Workers
from tandem_worker.contract import SpeculationCommand, ValidationReport, Verdict
from tandem_worker.server.admin import Gate, Refused
from unit.world import World, spec

POD = Pod("pair-1", "uid-1", "r1", True, False)
BUILTIN = recipe(spec(), "pair", None)

# --- pods and jobs, as the API server gives them ---------------------------------------------------------------------


def pod(phase: str = "Running", conditions: list[Any] | None = None, **container: Any) -> kube.PodObject:
    """A pod as `kubectl get pod -o json` shows it, cut down to what differs between the cases."""
    ready = [{"type": "Ready", "status": "False", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    item = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "pair-0123456789-abcde",
            "namespace": "ns",
            "uid": "uid-1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"tandem.dev/revision": "0123456789", "tandem.dev/role": "worker"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "pair", "uid": "owner"}],
            "managedFields": [{"manager": "kubelet", "operation": "Update"}],
        },
        "spec": {"nodeName": "local", "containers": [{"name": "worker", "image": "worker:1"}]},
        "status": {
            "phase": phase,
            "conditions": ready if conditions is None else conditions,
            "podIP": "10.0.0.7",
            "podIPs": [{"ip": "10.0.0.7"}],
            "qosClass": "BestEffort",
            "containerStatuses": [
                {"name": "worker", "image": "worker:1", "restartCount": 3, "ready": False} | container
            ],
        },
    }
    return kube.PodObject.model_validate_json(json.dumps(item))


def ended(exit_code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    at = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}
    word = {"message": message} if message else {}
    return {"terminated": {"exitCode": exit_code, "reason": reason, **at, **word}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


CHANGED = {
    "reason": "CheckpointChanged",
    "message": "drafter: model.safetensors differs",
    "found": {"target": "sha256:a", "drafter": "sha256:b"},
}


@pytest.mark.parametrize(
    ("seen", "trouble"),
    [
        (pod(state={"running": {"startedAt": "2026-01-01T00:00:00Z"}}), ""),
        (pod(state=waiting("ContainerCreating")), ""),
        (pod(state=waiting("PodInitializing")), ""),
        (
            pod(state=waiting("ImagePullBackOff", 'Back-off pulling image "worker:1"')),
            'ImagePullBackOff Back-off pulling image "worker:1"',
        ),
        (
            pod(state=waiting("CrashLoopBackOff", "back-off 10s"), lastState=ended(137, reason="OOMKilled")),
            "CrashLoopBackOff back-off 10s; OOMKilled (exit 137)",
        ),
        (
            pod(state=waiting("CrashLoopBackOff", "back-off 10s"), lastState=ended(1, "no room on the GPU\n")),
            "CrashLoopBackOff back-off 10s; Error (exit 1) no room on the GPU",
        ),
        (
            pod(state=ended(3, json.dumps(CHANGED))),
            "Error (exit 3) CheckpointChanged: drafter: model.safetensors differs",
        ),
        (
            pod(
                "Pending",
                [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}],
            ),
            "Unschedulable: 0/1 nodes",
        ),
        (
            pod(
                "Pending",
                [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "pod has unbound immediate PersistentVolumeClaims",
                    }
                ],
            ),
            "Unschedulable: pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            pod(state=waiting("CreateContainerConfigError", 'secret "token" not found')),
            'CreateContainerConfigError secret "token" not found',
        ),
        (pod(state=ended(0, reason="Completed")), ""),
    ],
)
def test_the_trouble_of_a_pod_is_told_in_words(seen: kube.PodObject, trouble: str) -> None:
    assert _pod(seen).trouble == trouble


def deployment(owner: str = "", **status: Any) -> kube.DeploymentObject:
    owners = [{"apiVersion": "tandem.dev/v1alpha1", "kind": "X", "name": "pair", "uid": owner, "controller": True}]
    labels = {"tandem.dev/revision": "0123456789"}
    metadata = {"name": "pair-0123456789", "labels": labels, "ownerReferences": owners if owner else []}
    return kube.DeploymentObject.model_validate({"metadata": metadata, "spec": {"replicas": 2}, "status": status})


def test_what_keeps_a_deployment_from_making_pods_is_read_from_its_condition() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
    progressing = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "message": "fine"}
    found = _deployment(deployment(conditions=[progressing, failure], readyReplicas=1), "uid")
    assert (found.revision, found.desired, found.ready, found.problem) == ("0123456789", 2, 1, "exceeded quota")
    assert _deployment(deployment(conditions=[progressing, failure | {"status": "False"}]), "uid").problem == ""


@pytest.mark.parametrize(("owner", "ours", "owned"), [("uid", True, True), ("other", False, False), ("", True, False)])
def test_children_are_ours_if_nobody_else_controls_them(owner: str, ours: bool, owned: bool) -> None:
    found = deployment(owner)
    assert (found.metadata.ours("uid"), _deployment(found, "uid").owned) == (ours, owned)


def test_the_fingerprints_that_a_worker_found_are_read_from_its_last_words() -> None:
    failure = _pod(pod(state=waiting("CrashLoopBackOff"), lastState=ended(3, json.dumps(CHANGED)))).failure
    assert failure is not None
    assert failure.found is not None
    assert failure.found.drafter == "sha256:b"


@pytest.mark.parametrize("words", ["", "Killed", "{", '{"reason": "X"}', json.dumps(CHANGED)[:40], "null", "[1]"])
def test_last_words_that_are_no_report_are_only_words(words: str) -> None:
    assert _pod(pod(state=ended(3, words))).failure is None


@pytest.mark.parametrize(
    ("state", "runs"),
    [
        ({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, True),
        (waiting("CrashLoopBackOff"), False),
        (ended(3, json.dumps(CHANGED)), False),
    ],
)
def test_last_words_of_an_engine_that_was_started_again_are_known_to_be_of_before(
    state: dict[str, Any], runs: bool
) -> None:
    store, seen = Store(), pod(state=state, lastState=ended(3, json.dumps(CHANGED)))
    mesh = kube.Container.model_validate({"name": "mesh", "state": {"running": {}}})
    seen.status.container_statuses.append(mesh)  # as ever
    seen.metadata.labels["tandem.dev/name"] = "pair"
    store.put(CHILDREN["Pod"], seen.model_dump(mode="json", by_alias=True))
    (kept,) = store.children(kube.PodObject, Key("ns", "pair"))
    assert _pod(kept).failure is not None
    assert _pod(kept).runs_again == runs


def test_a_record_that_another_operator_wrote_is_named() -> None:
    record = {"metadata": {"name": "pair-r7", "uid": "uid"}, "revision": 7, "data": {"engine": {"type": "Later"}}}
    with pytest.raises(
        InvalidObject, match=r"ControllerRevision pair-r7 was written by another operator.*delete the record"
    ):
        _history(kube.ControllerRevisionObject.model_validate(record), "uid")


def job(*conditions: dict[str, str], attempt: str = "2") -> kube.JobObject:
    labels = {"tandem.dev/validation": "key", "tandem.dev/attempt": attempt}
    return kube.JobObject.model_validate(
        {"metadata": {"name": "job", "uid": "owner", "labels": labels}, "status": {"conditions": list(conditions)}}
    )


FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "failed too often"}


def test_a_report_in_the_last_words_of_its_pod_ends_a_validation() -> None:
    report = ValidationReport(verdict=Verdict.DOES_NOT_FIT, mode="Static", summary="hidden sizes differ")
    found = _job(job(), [pod(state=ended(1, report.termination_message()))])
    assert (found.finished, found.report, found.key, found.attempt) == (True, report, "key", 2)


@pytest.mark.parametrize(("label", "attempt"), [("12", 12), ("x", 0), ("-1", 0), ("", 0), ("1.5", 0)])
def test_a_label_that_somebody_changed_does_not_stop_the_object(label: str, attempt: int) -> None:
    assert _job(job(attempt=label), []).attempt == attempt


def test_a_job_that_failed_without_a_report_says_why() -> None:
    found = _job(job(FAILED), [])
    assert (found.finished, found.report, found.problem) == (True, None, "failed too often")
    killed = _job(job(FAILED), [pod(state=ended(137, reason="OOMKilled"))])
    assert killed.problem == "OOMKilled (exit 137)"


def test_a_pod_of_another_job_is_not_asked() -> None:
    other = job().model_copy(update={"metadata": kube.Meta(name="other", uid="other")})
    report = ValidationReport(verdict=Verdict.FITS, mode="Static", summary="fits").termination_message()
    assert not _job(other, [pod(state=ended(0, report))]).finished


# --- workers over HTTP -----------------------------------------------------------------------------------------------

Answer = Callable[[http.Request], Awaitable[http.StreamResponse]]
ZEROES = "\n".join(
    f'{name}{{revision="r",origin="user"{more}}} 0'
    for name, more in (
        ("tandem_drafts_total", ""),
        ("tandem_accepted_tokens_total", ""),
        ("tandem_accepted_tokens_per_position_total", ',position="0"'),
        ("tandem_finished_requests_total", ""),
        ("tandem_generated_tokens_total", ""),
    )
)


@asynccontextmanager
async def worker(monkeypatch: pytest.MonkeyPatch, **answers: Answer) -> AsyncIterator[Workers]:
    """Workers that reach a server at 127.0.0.1 with these paths."""
    app = http.Application()
    app.add_routes([http.route("*", f"/{path.replace('__', '/')}", answer) for path, answer in answers.items()])
    runner = http.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = http.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(workers, "WORKER_PORT", runner.addresses[0][1])
    monkeypatch.setattr(workers, "READ_TIMEOUT", aiohttp.ClientTimeout(total=0.2))
    try:
        async with aiohttp.ClientSession() as session:
            yield Workers(session, Signer())
    finally:
        await runner.cleanup()


def says(text: str | bytes, status: int = 200) -> Answer:
    async def answer(_: http.Request) -> http.Response:
        return http.Response(body=text, status=status)

    return answer


async def test_an_object_of_a_thousand_workers_is_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0

    async def slow(_: http.Request) -> http.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return http.Response(text="")

    monkeypatch.setattr(workers, "ASKED_AT_ONCE", 4)
    async with worker(monkeypatch, status=slow, metrics=slow) as found:
        monkeypatch.setattr(workers, "READ_TIMEOUT", aiohttp.ClientTimeout(total=60))
        await asyncio.gather(*(found.read("127.0.0.1", POD, BUILTIN) for _ in range(40)))
    assert 2 <= most <= 8, "each asks for its status and its metrics"


async def never(_: http.Request) -> http.StreamResponse:
    await asyncio.sleep(3600)
    return http.Response()


async def cut_off(request: http.Request) -> http.StreamResponse:
    response = http.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"tandem_dra")
    assert request.transport is not None
    request.transport.close()
    return response


async def test_counters_at_zero_are_evidence_of_nothing_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async with worker(monkeypatch, metrics=says(ZEROES)) as asked:
        seen = await asked.read("127.0.0.1", POD, BUILTIN)
    assert seen.status is None
    assert seen.counts is not None
    assert (seen.counts.drafts, seen.counts.requests) == (0, 0)


@pytest.mark.parametrize(
    "metrics",
    [
        says("not here", 404),
        says(ZEROES, 500),
        says(""),
        says(ZEROES.replace(" 0", " NaN", 1)),
        says(ZEROES.replace(" 0", " +Inf", 1)),
        says(ZEROES.partition("\n")[2]),
        says("<!DOCTYPE html><html></html>"),
        says(b"\xff\xfe\x00\x01"),
        says('tandem_drafts_total{origin="user" 1'),
        cut_off,
        never,
    ],
    ids=["404", "500", "empty", "NaN", "infinity", "one-missing", "html", "binary", "garbled", "cut-off", "time-out"],
)
async def test_metrics_that_cannot_be_read_whole_are_no_evidence(
    monkeypatch: pytest.MonkeyPatch, metrics: Answer
) -> None:
    async with worker(monkeypatch, metrics=metrics, status=says("{}")) as asked:
        seen = await asked.read("127.0.0.1", POD, BUILTIN)
    assert seen.counts is None
    assert seen.status is None


async def test_a_worker_that_is_not_there_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    async with worker(monkeypatch) as asked:
        pass
    async with aiohttp.ClientSession() as session:
        seen = await Workers(session, Signer()).read("127.0.0.1", POD, BUILTIN)
    assert (seen.status, seen.counts) == (None, None)
    assert asked is not None


async def test_a_command_is_accepted_by_the_worker_that_it_is_for_and_by_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key_file, bearer = tmp_path / "key.pem", []

    async def admin(request: http.Request) -> http.Response:
        bearer.append(request.headers["Authorization"])
        return http.Response()

    async with worker(monkeypatch, admin__speculation=admin) as asked:
        key_file.write_text(asked._signer.public_key_pem)
        assert await asked.switch("127.0.0.1", "pod-1", False, "NothingAccepted") == ""
    command = Gate(key_file, "pod-1").admit(bearer[0])
    assert (command.enabled, command.reason) == (False, "NothingAccepted")
    with pytest.raises(Refused, match="pod-1"):
        Gate(key_file, "pod-2").admit(bearer[0])
    key_file.write_text(Signer().public_key_pem)
    with pytest.raises(Refused, match="not signed by the operator"):
        Gate(key_file, "pod-1").admit(bearer[0])


async def test_a_command_that_is_refused_or_not_heard_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async with worker(monkeypatch, admin__speculation=says("wrong key", 401)) as asked:
        assert await asked.switch("127.0.0.1", "pod-1", False, "x") == "401: wrong key"
    async with worker(monkeypatch, admin__speculation=never) as asked:
        assert "Timeout" in await asked.switch("127.0.0.1", "pod-1", False, "x")


async def test_workers_are_switched_at_once_so_that_one_that_does_not_answer_holds_up_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, all_asked = 0, asyncio.Event()

    async def together(_: http.Request) -> http.Response:
        nonlocal asked
        asked += 1
        if asked == 3:
            all_asked.set()
        await all_asked.wait()
        return http.Response()

    world = World(spec())
    sight = Sight(world.observed(), {f"pod-{i}": "127.0.0.1" for i in range(3)})
    plan = Plan(Status(), commands=tuple(Command(f"pod-{i}", False, "TooSlow") for i in range(4)))
    async with worker(monkeypatch, admin__speculation=together) as found, asyncio.timeout(10):
        monkeypatch.setattr(workers, "READ_TIMEOUT", aiohttp.ClientTimeout(total=60))
        await _commands(found, sight, plan)
    assert asked == 3, "nobody knows where the fourth one is"


async def test_a_command_does_not_wait_for_workers_that_do_not_answer_when_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "ASKED_AT_ONCE", 1)
    async with worker(monkeypatch, metrics=never, status=never, admin__speculation=says("")) as found:
        monkeypatch.setattr(workers, "READ_TIMEOUT", aiohttp.ClientTimeout(total=60))
        reading = asyncio.create_task(found.read("127.0.0.1", POD, BUILTIN))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            assert await found.switch("127.0.0.1", "pod-1", False, "TooSlow") == ""
        assert not reading.done()
        reading.cancel()


VLLM = recipe(spec(engine={"type": "vllm", "image": "vllm:1"}), "pair", None)


async def test_an_engine_is_asked_for_its_version_once_in_each_of_its_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(["0.26.0", "0.33.0", "never asked"])

    async def version(_: http.Request) -> http.Response:
        return http.json_response({"version": next(said)})

    async with worker(monkeypatch, version=version, metrics=says("")) as asked:
        seen = [
            (await asked.read("127.0.0.1", replace(POD, restarts=restarts), VLLM)).version
            for restarts in (0, 0, 1, 1)  # the image's tag was moved before it came up again
        ]
    assert seen == ["0.26.0", "0.26.0", "0.33.0", "0.33.0"]


async def test_versions_of_pods_that_are_long_gone_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "VERSIONS_KEPT", 5)
    async with worker(monkeypatch, version=says('{"version": "0.26.0"}'), metrics=says("")) as asked:
        for uid in range(20):
            await asked.read("127.0.0.1", replace(POD, uid=f"uid-{uid}"), VLLM)
        assert list(asked._versions) == [f"uid-{uid}" for uid in range(15, 20)]


def test_a_command_is_short_lived() -> None:
    command = SpeculationCommand.to_pod("pod-1", True, "Healthy", time.time())
    assert command.exp - command.iat == 30


async def test_calibration_prompts_are_marked_and_sent_one_set_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    go_on = asyncio.Event()

    async def completions(request: http.Request) -> http.Response:
        heard.append(request.headers["X-Tandem-Origin"])
        await go_on.wait()
        return http.json_response({})

    async with worker(monkeypatch, v1__completions=completions) as asked, asyncio.timeout(10):
        for _ in range(3):
            asked.replay("127.0.0.1", "pod-1", "pair")
        while not heard:  # noqa: ASYNC110 - heard by the server
            await asyncio.sleep(0.001)
        assert heard == ["calibration"]
        go_on.set()
        while len(heard) < len(workers.CALIBRATION_PROMPTS):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert set(heard) == {"calibration"}


# --- health ----------------------------------------------------------------------------------------------------------


async def nothing(_: Key) -> float | None:
    return None


async def test_health_is_progress() -> None:
    queue = WorkQueue(nothing)
    queue.beat_seconds = 1000.0
    assert web.ailment(queue, 990.0, 1010.0, 60.0) == ""
    assert web.ailment(queue, 990.0, 1040.0, 60.0) == "the work queue has not turned for 40 s"
    assert web.ailment(queue, 600.0, 1001.0, 60.0) == "objects have not been listed for 401 s"


async def test_a_reconcile_that_hangs_is_an_ailment(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = WorkQueue(nothing)
    queue.beat_seconds = 1000.0
    monkeypatch.setattr(queue, "stuck_seconds", lambda: 301.0)
    assert web.ailment(queue, 1000.0, 1000.0, 60.0) == "a reconcile has been running for 301 s"


@pytest.mark.parametrize(
    ("header", "token"), [("Bearer abc.d", "abc.d"), ("bearer abc.d", "abc.d"), ("abc.d", "abc.d"), ("", None)]
)
def test_kopf_gets_the_token_of_a_kubeconfig_and_of_a_service_account_alike(header: str, token: str | None) -> None:
    assert bare_token(header) == token


async def test_the_operator_runs_as_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The uid of a container has no entry in /etc/passwd. Here kopf starts and waits for an API server that is away."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", nameless)
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig("https://127.0.0.1:1", tmp_path / "ca.crt", {"token": "t"}))
    Authority.create(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(file))

    async def reconcile(key: Key) -> None: ...

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await _run_kopf(Store(), WorkQueue(reconcile), Settings(worker_image="worker"))
