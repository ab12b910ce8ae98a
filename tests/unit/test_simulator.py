"""The engine simulator does what it is told, and its counters agree with one another."""

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import jwt
import pytest
from aiohttp.test_utils import TestClient, TestServer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from simulator.arguments import parse_arguments
from simulator.behaviour import Behaviour
from simulator.engine import Engine
from simulator.rounds import Drafts
from simulator.server import Server
from tandem_worker.contract import Metric, SpeculationCommand, WorkerFailure, WorkerStatus

SERVE = ["serve", "--target", "/models/t", "--drafter", "/models/d", "--draft-length", "4"]
SERVE += ["--model", "llama", "--revision", "7c9f", "--host", "127.0.0.1"]
FAST = {"tokens_per_second": 1e6}

Samples = dict[tuple[str, str], float]


@asynccontextmanager
async def simulated(
    arguments: list[str] | None = None, serve: list[str] = SERVE, **behaviour: object
) -> AsyncIterator[TestClient]:
    parsed, _ = parse_arguments([*serve, *(arguments or [])])
    engine = Engine(parsed, Behaviour.model_validate(FAST | behaviour))
    engine.schedule(behaviour)
    async with TestClient(TestServer(Server(engine).app())) as client:
        yield client


async def complete(client: TestClient, tokens: int = 64, origin: str = "user") -> int:
    asked = {"model": "llama", "prompt": "Where does Mira live?", "max_tokens": tokens}
    async with client.post("/v1/completions", json=asked, headers={"X-Tandem-Origin": origin}) as response:
        await response.read()
        return response.status


async def samples(client: TestClient) -> Samples:
    """By name and the labels that are not the revision."""
    async with client.get("/metrics") as response:
        assert response.status == 200
        return parse_samples(await response.text())


def parse_samples(text: str) -> Samples:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == Metric.BUILD:
                continue
            assert sample.labels["revision"] == "7c9f"
            labels = ",".join(value for name, value in sorted(sample.labels.items()) if name != "revision")
            found[sample.name, labels] = sample.value
    return found


async def test_a_healthy_pod_answers_as_a_worker_does() -> None:
    async with simulated() as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 200
        assert (await (await client.get("/v1/models")).json())["data"][0]["id"] == "llama"
        status = WorkerStatus.model_validate_json(await (await client.get("/status")).text())
        assert (status.revision, status.draft_length, status.speculation_enabled) == ("7c9f", 4, True)
        assert status.self_test.outcome == "Alive"
        assert await complete(client) == 200


async def test_every_metric_of_the_contract_is_there_at_zero_before_the_first_request() -> None:
    async with simulated() as client:
        text = await (await client.get("/metrics")).text()
    found = parse_samples(text)
    exposed = {name for name, _ in found} | {name.removesuffix("_count") for name, _ in found}
    assert set(Metric) - {Metric.BUILD} <= exposed
    assert 'tandem_build_info{component="simulator",version="' in text
    assert found.pop((Metric.SPECULATION_ENABLED, "")) == 1
    assert found.pop((Metric.DRAFT_LENGTH, "")) == 4
    assert math.isnan(found.pop((Metric.SPEEDUP, "")))
    assert set(found.values()) == {0}


async def test_counters_agree_with_one_another_and_with_the_answers() -> None:
    async with simulated(acceptance=[0.7, 0.5], correlation=0.2) as client:
        for _ in range(30):
            assert await complete(client, tokens=50) == 200
        found = await samples(client)
    drafts, accepted = found[Metric.DRAFTS, "user"], found[Metric.ACCEPTED_TOKENS, "user"]
    per_position = [found[Metric.ACCEPTED_PER_POSITION, f"user,{k}"] for k in range(4)]
    assert sum(per_position) == accepted
    assert sorted(per_position, reverse=True) == per_position
    assert found[f"{Metric.ACCEPT_LENGTH}_count", "user"] == drafts
    assert found[f"{Metric.ACCEPT_LENGTH}_sum", "user"] == drafts + accepted
    plain_steps = found[f"{Metric.STEP_SECONDS}_count", "1,plain"]
    assert found[Metric.GENERATED_TOKENS, "user"] == 30 * 50 == 30 + drafts + accepted + plain_steps
    assert found[Metric.REQUESTS, "user,finished"] == found[Metric.FINISHED_N, "user"] == 30
    assert found[Metric.FINISHED_D, "user"] == drafts
    assert found[Metric.FINISHED_A, "user"] == per_position[0]
    assert found[Metric.FINISHED_DD, "user"] >= drafts**2 / 30  # Cauchy and Schwarz
    assert (
        found[Metric.FINISHED_DA, "user"]
        <= (found[Metric.FINISHED_DD, "user"] * found[Metric.FINISHED_AA, "user"]) ** 0.5
    )
    assert found[Metric.DRAFTS, "calibration"] == 0


async def test_calibration_requests_are_counted_apart() -> None:
    async with simulated() as client:
        await complete(client, origin="calibration")
        found = await samples(client)
    assert found[Metric.DRAFTS, "calibration"] > 0
    assert found[Metric.REQUESTS, "calibration,finished"] == 1
    assert found[Metric.DRAFTS, "user"] == 0


async def test_the_same_seed_gives_the_same_counters() -> None:
    async def counted(seed: int) -> Samples:
        async with simulated(seed=seed, correlation=0.3) as client:
            for _ in range(5):
                await complete(client)
            return {key: value for key, value in (await samples(client)).items() if key[0] == Metric.ACCEPTED_TOKENS}

    assert await counted(1) == await counted(1)
    assert await counted(1) != await counted(2)


@given(
    st.integers(0, 1000),
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.floats(0, 0.9),
    st.integers(1, 6),
    st.integers(1, 40),
)
def test_a_request_ends_after_exactly_its_tokens(
    seed: int, acceptance: list[float], correlation: float, length: int, tokens: int
) -> None:
    drafts, emitted = Drafts(seed, 0, acceptance, correlation, length), 0
    while emitted < tokens:
        done = drafts.round(tokens - emitted)
        assert 0 <= done.accepted <= done.drafted <= length
        emitted += done.emitted
    assert emitted == tokens


def position0_by_request(correlation: float, requests: int = 400, rounds: int = 50) -> list[int]:
    drafts = [Drafts(5, number, [0.6], correlation, 1) for number in range(requests)]
    return [sum(one.round(2).accepted for _ in range(rounds)) for one in drafts]


@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.4])
def test_acceptance_and_its_correlation_within_a_request_are_as_told(correlation: float) -> None:
    """Variance of a request's count over the binomial's is 1 + (rounds - 1) rho: 1, 5.9 and 20.6 for 50 rounds."""
    counts = position0_by_request(correlation)
    mean = sum(counts) / len(counts)
    effect = sum((count - mean) ** 2 for count in counts) / (len(counts) - 1) / (50 * 0.6 * 0.4)
    assert mean / 50 == pytest.approx(0.6, abs=0.05)
    assert effect == pytest.approx(1 + 49 * correlation, rel=0.3)


async def test_a_drafter_of_no_use_is_never_accepted() -> None:
    async with simulated(acceptance=[0.0]) as client:
        await complete(client, tokens=31)
        found = await samples(client)
    assert found[Metric.DRAFTS, "user"] == 29  # 1 token from the prompt, 29 rounds of 1, a plain step at the end
    assert found[Metric.ACCEPTED_TOKENS, "user"] == 0
    assert found[Metric.SPEEDUP, ""] == pytest.approx(1 / 1.25)


async def test_requests_flow_without_drafts_when_told_to_stop_drafting() -> None:
    async with simulated(stop_drafts=True) as client:
        assert await complete(client) == 200
        found = await samples(client)
    assert found[Metric.SPECULATION_ENABLED, ""] == 1
    assert found[Metric.DRAFTS, "user"] == 0
    assert found[Metric.FINISHED_N, "user"] == 1


async def test_a_stream_arrives_in_pieces_and_ends_with_done() -> None:
    async with simulated() as client:
        asked = {"model": "llama", "prompt": [1, 2, 3], "max_tokens": 20, "stream": True}
        lines = (await (await client.post("/v1/completions", json=asked)).text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    parts = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-2]]
    assert len(parts) > 1
    assert "".join(part["text"] for part in parts) == " word" * 20
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]


async def test_an_unknown_model_and_a_malformed_request_are_refused() -> None:
    async with simulated() as client:
        assert (await client.post("/v1/completions", json={"model": "other", "prompt": "x"})).status == 404
        assert (await client.post("/v1/completions", data=b"{")).status == 400


async def test_it_lies_healthy_with_an_empty_model_list() -> None:
    async with simulated(empty_model_list=True) as client:
        assert (await client.get("/readyz")).status == 200
        assert (await (await client.get("/v1/models")).json())["data"] == []
        assert await complete(client) == 404


async def test_never_ready_is_alive_all_the_same() -> None:
    async with simulated(never_ready=True) as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 503


async def test_it_becomes_ready_late() -> None:
    async with simulated(ready_after_seconds=3600) as client:
        assert (await client.get("/readyz")).status == 503
        await client.post("/sim", json={"ready_after_seconds": 0})
        assert (await client.get("/readyz")).status == 200


async def test_requests_stall_until_told_otherwise_and_the_pod_stays_ready() -> None:
    async with simulated(stall_requests=True) as client:
        waiting = asyncio.create_task(complete(client))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert (await client.get("/readyz")).status == 200
        assert (await samples(client))[Metric.RUNNING, ""] == 1
        await client.post("/sim", json={"stall_requests": False})
        assert await waiting == 200


async def test_a_hung_pod_answers_nothing_but_sim() -> None:
    async with simulated(hang=True) as client:
        waiting = asyncio.create_task(client.get("/healthz"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await client.post("/sim", json={"hang": False})
        assert (await waiting).status == 200


async def test_requests_fail_at_the_rate_that_was_told() -> None:
    async with simulated(fail_rate=0.3) as client:
        failed = [await complete(client, tokens=2) for _ in range(200)].count(500)
        found = await samples(client)
    assert 40 <= failed <= 80
    assert found[Metric.REQUESTS, "user,failed"] == failed
    assert found[Metric.FINISHED_N, "user"] == 200 - failed


async def test_counters_freeze_reset_turn_to_nan_and_vanish() -> None:
    async with simulated() as client:
        await complete(client)
        before = await samples(client)
        await client.post("/sim", json={"freeze_counters": True})
        await complete(client)
        frozen = await samples(client)
        assert frozen[Metric.DRAFTS, "user"] == before[Metric.DRAFTS, "user"] > 0
        await client.post("/sim", json={"freeze_counters": False, "reset_counters": True})
        reset = await samples(client)
        assert reset[Metric.DRAFTS, "user"] == 0
        assert reset[Metric.SPECULATION_ENABLED, ""] == 1
        await client.post("/sim", json={"metrics_nan": True})
        assert all(math.isnan(value) for value in (await samples(client)).values())
        await client.post("/sim", json={"metrics_missing": True})
        assert (await client.get("/metrics")).status == 404


async def test_sim_refuses_what_it_does_not_know() -> None:
    async with simulated() as client:
        response = await client.post("/sim", json={"acceptence": [0.5]})
        assert response.status == 400
        assert "acceptence" in await response.text()


def test_variables_tell_the_behaviour_and_a_wrong_name_is_an_error() -> None:
    told = Behaviour.from_environment({"SIM_ACCEPTANCE": "0.5,0.25", "SIM_SELF_TEST": "NoLife", "PATH": "/bin"})
    assert (told.acceptance, told.self_test) == ((0.5, 0.25), "NoLife")
    with pytest.raises(ValidationError, match="acceptence"):
        Behaviour.from_environment({"SIM_ACCEPTENCE": "0.5"})
    with pytest.raises(ValidationError, match="state_file"):
        Behaviour.from_environment({"SIM_CRASH_STARTS": "2"})


async def test_a_self_test_without_life_leaves_the_target_serving() -> None:
    async with simulated(self_test="NoLife") as client:
        status = WorkerStatus.model_validate_json(await (await client.get("/status")).text())
        assert (status.speculation_enabled, status.speculation_reason) == (False, "SelfTestFailed")
        assert (status.self_test.drafts, status.self_test.accepted) == (64, 0)
        assert await complete(client) == 200
        assert (await samples(client))[Metric.DRAFTS, "user"] == 0


@pytest.fixture
def key(tmp_path: Path) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "operator.pem").write_bytes(pem)
    return key


def bearer(key: Ed25519PrivateKey, pod: str, enabled: bool, now: float, **changed: float) -> dict[str, str]:
    claims = SpeculationCommand.to_pod(pod, enabled, "Collapsed", now).model_dump() | changed
    return {"Authorization": f"Bearer {jwt.encode(claims, key, algorithm='EdDSA')}"}


async def test_the_operators_signed_command_switches_speculation(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    arguments = ["--operator-key-file", str(tmp_path / "operator.pem"), "--pod-uid", "pod-1"]
    now, stranger = time.time(), Ed25519PrivateKey.generate()
    async with simulated(arguments) as client:

        async def post(headers: dict[str, str]) -> int:
            return (await client.post("/admin/speculation", headers=headers)).status

        assert await post({}) == 401
        assert await post(bearer(stranger, "pod-1", False, now)) == 401
        assert await post(bearer(key, "pod-2", False, now)) == 403
        assert await post(bearer(key, "pod-1", False, now - 3600)) == 401
        assert await post(bearer(key, "pod-1", False, now, exp=now + 3600)) == 403
        assert (await samples(client))[Metric.SPECULATION_ENABLED, ""] == 1

        response = await client.post("/admin/speculation", headers=bearer(key, "pod-1", False, now))
        status = WorkerStatus.model_validate_json(await response.text())
        assert (status.speculation_enabled, status.speculation_reason) == (False, "Collapsed")
        await complete(client)
        assert (await samples(client))[Metric.DRAFTS, "user"] == 0
        assert await post(bearer(key, "pod-1", True, now)) == 200
        await complete(client)
        assert (await samples(client))[Metric.DRAFTS, "user"] > 0


async def test_without_a_drafter_speculation_can_not_be_switched_on(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    arguments = ["--operator-key-file", str(tmp_path / "operator.pem"), "--pod-uid", "pod-1"]
    async with simulated(arguments, serve=["serve", "--target", "/models/t"]) as client:
        status = WorkerStatus.model_validate_json(await (await client.get("/status")).text())
        assert (status.resolution, status.speculation_reason, status.fingerprints.drafter) == (None, "NoDrafter", "")
        response = await client.post("/admin/speculation", headers=bearer(key, "pod-1", True, time.time()))
        assert response.status == 409


async def test_without_key_file_commands_are_off(key: Ed25519PrivateKey) -> None:
    async with simulated() as client:
        response = await client.post("/admin/speculation", headers=bearer(key, "pod-1", False, time.time()))
        assert response.status == 403


# --- as a process ----------------------------------------------------------------------------------------------------

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `python -m simulator serve ...` with SIM_ variables; ends what is left."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **told: str) -> subprocess.Popen[str]:
        variables = {f"SIM_{name.upper()}": value for name, value in told.items()}
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
        command = [sys.executable, "-m", "simulator", *SERVE, *arguments]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError(url)


def test_it_crashes_the_told_number_of_starts_and_then_serves(start: Start, port: int, tmp_path: Path) -> None:
    told = {"crash_starts": "2", "crash_exit_code": "9", "state_file": str(tmp_path / "starts")}
    assert [start(**told).wait(20) for _ in range(2)] == [9, 9]
    third = start("--port", str(port), "--some-new-option", "x", **told)
    wait_for(f"http://127.0.0.1:{port}/readyz")
    third.send_signal(signal.SIGTERM)
    assert third.wait(20) == 0
    assert third.stdout is not None
    assert "ignored --some-new-option x" in third.stdout.read()


def test_it_dies_after_a_while_as_if_killed_for_memory(start: Start, port: int) -> None:
    assert start("--port", str(port), die_after_seconds="0.1").wait(20) == 137


def test_changed_files_end_the_start_with_a_termination_message(start: Start, tmp_path: Path) -> None:
    message, found = tmp_path / "message", "sha256:" + "b" * 64
    arguments = ["--target-fingerprint", "sha256:" + "a" * 64, "--termination-message", str(message)]
    assert start(*arguments, target_fingerprint=found).wait(20) == 3
    failure = WorkerFailure.model_validate_json(message.read_text())
    assert failure.reason == "CheckpointChanged"
    assert failure.found is not None
    assert failure.found.target == found


def test_a_told_failure_ends_the_start_with_its_exit_code(start: Start, tmp_path: Path) -> None:
    message = tmp_path / "message"
    assert start("--termination-message", str(message), failure_reason="CannotLoad").wait(20) == 5
    assert WorkerFailure.model_validate_json(message.read_text()).reason == "CannotLoad"


def test_a_client_that_leaves_is_counted_as_cancelled(start: Start, port: int) -> None:
    start("--port", str(port), stall_requests="true")
    base = f"http://127.0.0.1:{port}"
    wait_for(f"{base}/readyz")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{base}/v1/completions", json={"model": "llama", "prompt": "x"}, timeout=0.2)
    deadline = time.monotonic() + 20
    while parse_samples(httpx.get(f"{base}/metrics").text)[Metric.REQUESTS, "user,cancelled"] != 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
