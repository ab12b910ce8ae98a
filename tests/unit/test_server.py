"""The worker over HTTP, as clients, kubelet and operator see it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jwt
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client.parser import text_string_to_metric_families

from tandem_worker.contract import (
    COMMAND_ALGORITHM,
    ORIGIN_HEADER,
    Metric,
    SelfTestOutcome,
    SpeculationCommand,
    WorkerStatus,
)
from tandem_worker.engine.record import Phase
from tandem_worker.engine.speedup import Speedup
from tandem_worker.server.app import make_app
from tandem_worker.server.metrics import Metrics
from tandem_worker.server.run import bind, run
from tandem_worker.server.start import start
from tandem_worker.server.worker import Worker
from unit.serving import POD, generate, make_engine, over_http, prompts, tiny_settings, tokenizer, wait_for

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def write_key(file: Path, key: Ed25519PrivateKey) -> None:
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    file.write_bytes(pem)


@dataclass
class Served:
    worker: Worker
    client: httpx.Client
    key_file: Path

    def complete(self, **asked: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": "tiny", "temperature": 0, **asked})

    def counters(self) -> dict[tuple[str, ...], float]:
        """(name, label values in order of label names) -> value, of the samples that are not zero."""
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        return {
            (
                sample.name,
                *(sample.labels[label] for label in sorted(sample.labels) if label != "revision"),
            ): sample.value
            for family in families
            for sample in family.samples
            if sample.value and sample.name != Metric.BUILD
        }

    def command(self, enabled: bool, reason: str = "as asked", **claims: Any) -> httpx.Response:
        command = SpeculationCommand.to_pod(POD, enabled, reason, time.time()).model_dump() | claims
        return self.send(jwt.encode(command, KEY, COMMAND_ALGORITHM))

    def send(self, token: str) -> httpx.Response:
        return self.client.post("/admin/speculation", headers={"Authorization": f"Bearer {token}"})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    key_file = tmp_path_factory.mktemp("keys") / "operator.pem"
    write_key(key_file, KEY)
    worker = start(tiny_settings(key_file))
    with over_http(worker) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield Served(worker, client, key_file)


def later(seconds: float) -> SimpleNamespace:
    """The clocks for one module only: an event loop that saw them would sleep for so long."""
    return SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + seconds)


def greedy(prompt: list[int], tokens: int) -> str:
    """The target's text without speculation."""
    return tokenizer().decode(generate(make_engine(speculate=False), [prompt], tokens)[0])


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


# --- completions -----------------------------------------------------------------------------------------------------

PROMPT = "Q: Which colour is the"


def test_completion_is_the_targets_own_text(served: Served) -> None:
    response = served.complete(prompt=PROMPT, max_tokens=30)
    assert response.status_code == 200
    assert response.headers["x-tandem-revision"] == "rev-1"
    body = response.json()
    tokens = tokenizer().encode(PROMPT).ids
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": greedy(tokens, 30), "logprobs": None, "finish_reason": "length"}]
    assert body["usage"] == {
        "prompt_tokens": len(tokens),
        "completion_tokens": 30,
        "total_tokens": len(tokens) + 30,
    }


def test_streamed_pieces_join_to_the_same_text(served: Served) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 30, "stream": True, "stream_options": {"include_usage": True}}
    *pieces, usage = events(served.complete(**asked))
    whole = served.complete(prompt=PROMPT, max_tokens=30).json()
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole["choices"][0]["text"]
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert len(pieces) > 3
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]


def test_prompts_may_be_a_list_of_texts_or_tokens(served: Served) -> None:
    tokens = tokenizer().encode(PROMPT).ids
    expected = greedy(tokens, 12)
    texts = served.complete(prompt=[PROMPT, "48 + 16 ="], max_tokens=12).json()["choices"]
    assert [choice["index"] for choice in texts] == [0, 1]
    assert texts[0]["text"] == expected
    assert served.complete(prompt=tokens, max_tokens=12).json()["choices"][0]["text"] == expected
    lists = served.complete(prompt=[tokens, tokens], max_tokens=12).json()["choices"]
    assert [choice["text"] for choice in lists] == [expected, expected]


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_a_stop_string(served: Served, stream: bool) -> None:
    whole = greedy(tokenizer().encode(PROMPT).ids, 40)
    stop = whole[11:17]
    response = served.complete(prompt=PROMPT, max_tokens=40, stop=[stop, "never"], stream=stream)
    choices = [event["choices"][0] for event in events(response)] if stream else response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == whole[: whole.index(stop)]
    assert choices[-1]["finish_reason"] == "stop"


def test_seed_repeats_a_sampled_text_with_speculation_and_without(served: Served) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.9, "top_p": 0.95}

    def text(seed: int) -> str:
        sampled: str = served.complete(**asked, seed=seed).json()["choices"][0]["text"]
        return sampled

    with_speculation = [text(seed) for seed in (1, 2, 1)]
    assert served.command(enabled=False).status_code == 200
    without = [text(seed) for seed in (1, 2, 1)]
    assert served.command(enabled=True).status_code == 200
    assert with_speculation == without
    assert without[0] == without[2] != without[1]


def test_a_temperature_next_to_nothing_is_none(served: Served) -> None:
    """Logits over it would be infinite."""
    warm, cold, none = (
        served.complete(prompt=PROMPT, max_tokens=24, temperature=t, seed=1).json()["choices"][0]["text"]
        for t in (1.5, 1e-308, 0)
    )
    assert cold == none != warm


BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": PROMPT, "n": 2}, "n: "),
    ({"prompt": PROMPT, "logprobs": 6}, "logprobs: "),
    ({"prompt": PROMPT, "echo": True}, "echo: "),
    ({"prompt": PROMPT, "presence_penalty": 2.5}, "presence_penalty: "),
    ({"prompt": PROMPT, "temperature": -1}, "temperature: "),
    ({"prompt": PROMPT, "temperature": "hot"}, "temperature: "),
    ({"prompt": PROMPT, "top_p": 0}, "top_p: "),
    ({"prompt": PROMPT, "max_tokens": 0}, "max_tokens: "),
    ({"prompt": PROMPT, "stop": ["a", "b", "c", "d", "e"]}, "stop: "),
    ({"prompt": PROMPT, "stop": ""}, "stop"),
    ({"prompt": PROMPT, "best_before": 3}, "best_before: "),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "empty"),
    ({"prompt": [3, -1]}, "prompt"),
    ({"prompt": [3, 512]}, "Token 512 is not in the vocabulary of 512"),
    ({"prompt": ["a"] * 129}, "may hold 128 prompts, this one holds 129"),
    ({}, "prompt: "),
    ({"prompt": PROMPT, "top_k": -2}, "top_k: "),
    ({"prompt": PROMPT, "min_p": 1.5}, "min_p: "),
    ({"prompt": PROMPT, "repetition_penalty": 0}, "repetition_penalty: "),
    ({"prompt": PROMPT, "repetition_penalty": 1e-308}, "repetition_penalty: "),
    ({"prompt": PROMPT, "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": PROMPT, "logit_bias": {"3": 101}}, "logit_bias"),
    ({"prompt": PROMPT, "logit_bias": {"512": 1}}, "Token 512 is not in the vocabulary of 512"),
    ({"prompt": PROMPT, "logit_bias": {str(token): 1 for token in range(301)}}, "logit_bias"),
    ({"prompt": PROMPT, "stream_options": {"include_usage": True}}, "stream_options may only be given with"),
    ({"prompt": "word " * 600}, "This model's context holds 512 tokens"),
    ({"prompt": PROMPT, "max_tokens": 510}, "Shorten the prompt or max_tokens"),
]


@pytest.mark.parametrize(("asked", "message"), BAD_REQUESTS, ids=lambda value: str(value)[:40])
def test_bad_request_is_told_what_is_wrong_with_it(served: Served, asked: dict[str, Any], message: str) -> None:
    response = served.complete(**asked)
    assert response.status_code == 400
    error = response.json()["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def test_body_that_is_no_json_and_model_that_is_not_served(served: Served) -> None:
    response = served.client.post("/v1/completions", content=b'{"model": ')
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    response = served.complete(model="gpt-9", prompt=PROMPT)
    assert response.status_code == 404
    assert "'gpt-9' does not exist; this worker serves 'tiny'" in response.json()["error"]["message"]
    assert served.client.get("/v2").status_code == 404


def test_explicit_null_means_the_default(served: Served) -> None:
    asked = {"prompt": PROMPT, "max_tokens": None, "stop": None, "seed": None, "logit_bias": None, "n": None}
    assert served.complete(**asked).json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_frees_its_pages(served: Served, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    """And the log tells how far it had come."""
    caplog.set_level(logging.INFO)
    pages, before, said = served.worker.engine.engine.pages, cancelled(served), generated(served)
    body = json.dumps({"model": "tiny", "prompt": PROMPT, "max_tokens": 480, "stream": stream, "temperature": 0})

    async def leave() -> None:
        """Sends a request, waits until the engine has begun with it, and closes the connection."""
        host, port = served.client.base_url.host, served.client.base_url.port
        _, writer = await asyncio.open_connection(host, port)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(f"{head}\r\n\r\n{body}".encode())
        await writer.drain()
        await asyncio.to_thread(wait_for, lambda: generated(served) > said)
        writer.close()

    asyncio.run(leave())
    wait_for(lambda: cancelled(served) == before + 1)
    wait_for(lambda: free_pages(served) == pages.count - 1)
    wait_for(lambda: "cancelled" in caplog.text)
    assert ", 0 generated" not in caplog.text


def generated(served: Served) -> float:
    return served.counters().get((Metric.GENERATED_TOKENS, "user"), 0)


def free_pages(served: Served) -> float:
    return served.counters().get((Metric.FREE_PAGES,), 0)


def cancelled(served: Served) -> float:
    return served.counters().get((Metric.REQUESTS, "user", "cancelled"), 0)


# --- probes, status, metrics -----------------------------------------------------------------------------------------


def test_probes_models_and_status(served: Served) -> None:
    assert served.client.get("/healthz").text == "ok"
    assert served.client.get("/readyz").text == "ok"
    (model,) = served.client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 512)
    status = WorkerStatus.model_validate_json(served.client.get("/status").text)
    assert (status.revision, status.model, status.draft_length) == ("rev-1", "tiny", 4)
    assert status.self_test.outcome is SelfTestOutcome.ALIVE
    assert status.self_test.drafts >= 64
    assert status.resolution is not None
    assert (status.resolution.capture_indexes, status.resolution.fc_input_width) == ((2, 4, 5), 288)
    assert status.resolution.shared == ("embed_tokens.weight",)
    assert status.fingerprints.drafter.startswith("sha256:")


def test_engine_that_makes_no_progress_is_not_healthy(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU a step may well take a minute."""
    monkeypatch.setattr("tandem_worker.engine.thread.time", later(60))
    assert not served.worker.unhealthy()
    with monkeypatch.context() as patch:
        patch.setattr(served.worker.engine.engine.runner, "device", torch.device("cuda"))
        assert "EngineStalled: no step has begun for 6" in served.worker.unhealthy()
    monkeypatch.setattr("tandem_worker.engine.thread.time", later(700))
    assert "EngineStalled" in served.worker.unhealthy()
    assert "EngineStalled" in served.worker.unready()


def test_draining_worker_is_not_ready_and_still_serves_who_comes(served: Served) -> None:
    served.worker.draining = True
    try:
        assert served.client.get("/readyz").status_code == 503
        assert served.client.get("/readyz").text.startswith("Draining")
        assert served.client.get("/healthz").status_code == 200
        response = served.complete(prompt=PROMPT)
        assert (response.status_code, response.headers["connection"]) == (200, "close")
    finally:
        served.worker.draining = False


def test_a_step_has_series_of_its_own_once_there_was_one_of_so_many_requests() -> None:
    metrics = Metrics("rev-1", draft_length=3, speedup=Speedup())

    def counts() -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(metrics.exposition().decode())
        samples = [sample for family in families for sample in family.samples]
        counts = [sample for sample in samples if sample.name == f"{Metric.STEP_SECONDS}_count"]
        return {(sample.labels["phase"], sample.labels["batch"]): sample.value for sample in counts}

    none = {(phase.value, "1"): 0.0 for phase in Phase}
    assert counts() == none
    for batch in (200, 1, 200):
        metrics.stepped(Phase.VERIFY, batch, 0.01)
    assert counts() == none | {("verify", "1"): 1.0, ("verify", "200"): 2.0}


def test_every_metric_is_there_at_zero_from_the_start() -> None:
    text = Metrics("rev-1", draft_length=3, speedup=Speedup()).exposition().decode()
    families = [family for family in text_string_to_metric_families(text) if family.name != Metric.BUILD]
    samples = [sample for family in families for sample in family.samples]
    names = {sample.name for sample in samples}
    histograms = {metric for metric in Metric if metric.kind == "histogram"}
    assert names == (set(Metric) - histograms - {Metric.BUILD}) | {
        f"{name}{part}" for name in histograms for part in ("_bucket", "_sum", "_count")
    }
    assert all(sample.labels["revision"] == "rev-1" for sample in samples)
    assert all(sample.value == 0 for sample in samples if sample.name != Metric.SPEEDUP)
    assert next(sample.value for sample in samples if sample.name == Metric.SPEEDUP) != 0  # NaN
    positions = [sample.labels for sample in samples if sample.name == Metric.ACCEPTED_PER_POSITION]
    assert {(labels["origin"], labels["position"]) for labels in positions} == {
        (origin, position) for origin in ("user", "calibration") for position in "012"
    }


def test_figures_of_a_request_add_up_and_calibration_is_kept_apart(served: Served) -> None:
    before = served.counters()
    assert served.client.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": prompts()[3], "max_tokens": 40, "temperature": 0},
        headers={ORIGIN_HEADER: "calibration"},
    ).is_success
    after = served.counters()

    def grown(metric: str, *labels: str) -> float:
        return after.get((metric, *labels), 0) - before.get((metric, *labels), 0)

    drafts, accepted = grown(Metric.DRAFTS, "calibration"), grown(Metric.ACCEPTED_TOKENS, "calibration")
    per_position = [grown(Metric.ACCEPTED_PER_POSITION, "calibration", str(position)) for position in range(4)]
    assert 40 / 5 - 1 <= drafts <= 40
    assert grown(Metric.DRAFT_TOKENS, "calibration") == 4 * drafts
    assert accepted == sum(per_position) > drafts
    assert per_position == sorted(per_position, reverse=True)
    assert grown(f"{Metric.ACCEPT_LENGTH}_count", "calibration") == drafts
    assert grown(f"{Metric.ACCEPT_LENGTH}_sum", "calibration") == drafts + accepted
    assert grown(Metric.GENERATED_TOKENS, "calibration") == 40
    assert grown(Metric.PROMPT_TOKENS, "calibration") == len(prompts()[3])
    assert grown(Metric.REQUESTS, "calibration", "finished") == grown(Metric.FINISHED_N, "calibration") == 1
    assert grown(Metric.FINISHED_D, "calibration") == drafts
    assert grown(Metric.FINISHED_A, "calibration") == per_position[0]
    # Sums of squares grow by this request's own, as it is the only one.
    assert grown(Metric.FINISHED_DD, "calibration") == drafts**2
    assert grown(Metric.FINISHED_AA, "calibration") == per_position[0] ** 2
    assert grown(Metric.FINISHED_DA, "calibration") == drafts * per_position[0]
    assert grown(Metric.DRAFTS, "user") == 0
    assert grown(f"{Metric.STEP_SECONDS}_count", "1", "verify") == drafts
    assert after[(Metric.SPEEDUP,)] > 0


# --- the operator's command ------------------------------------------------------------------------------------------


def test_speculation_is_switched_by_a_signed_command(served: Served) -> None:
    off = WorkerStatus.model_validate(served.command(enabled=False, reason="RolledBack").json())
    assert (off.speculation_enabled, off.speculation_reason) == (False, "RolledBack")
    before = served.counters()
    served.complete(prompt=PROMPT, max_tokens=20)
    after = served.counters()
    assert after.get((Metric.DRAFTS, "user")) == before.get((Metric.DRAFTS, "user"))
    assert (Metric.SPECULATION_ENABLED,) not in after
    on = WorkerStatus.model_validate(served.command(enabled=True).json())
    assert (on.speculation_enabled, on.speculation_reason) == (True, "")
    assert served.counters()[Metric.SPECULATION_ENABLED,] == 1


def test_switching_under_load_changes_no_answer(served: Served) -> None:
    asked = [{"prompt": prompt, "max_tokens": 48} for prompt in prompts()[:5]]
    expected = [served.complete(**one).json()["choices"] for one in asked]
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        answers[number] = served.complete(**asked[number]).json()["choices"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    enabled = False
    while any(thread.is_alive() for thread in threads):
        assert served.command(enabled).status_code == 200
        enabled = not enabled
        time.sleep(0.02)
    assert served.command(enabled=True).status_code == 200
    assert [answers[number] for number in range(len(asked))] == expected


def test_command_that_is_not_the_operators_is_not_known(served: Served) -> None:
    command = SpeculationCommand.to_pod(POD, False, "x", time.time()).model_dump()
    refused = [
        served.client.post("/admin/speculation"),
        served.client.post("/admin/speculation", headers={"Authorization": "Basic eA=="}),
        served.send("nonsense"),
        served.send(jwt.encode(command, Ed25519PrivateKey.generate(), COMMAND_ALGORITHM)),
        served.send(jwt.encode(command, served.key_file.read_bytes().hex(), "HS256")),  # the public key as a secret
        served.send(jwt.encode(command, "", "none")),
        served.command(False, iat=time.time() - 60, exp=time.time() - 40),
        served.command(False, iat=time.time() + 600, exp=time.time() + 620),
    ]
    assert [response.status_code for response in refused] == [401] * len(refused)
    assert all(response.json()["reason"] for response in refused)
    assert served.worker.status().speculation_enabled


def test_clocks_that_were_set_back_do_not_make_a_worker_deaf(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last command then seems to be issued later than all that come, and it is one that can't come again."""
    now = time.time()
    assert served.command(True, iat=now + 4, exp=now + 20).status_code == 200, "before they were set"
    assert served.command(False, iat=now, exp=now + 20).status_code == 403
    monkeypatch.setattr("tandem_worker.server.admin.time", later(40))
    assert served.command(False, iat=now, exp=now + 20).status_code == 200
    assert not served.worker.status().speculation_enabled


def test_command_that_is_not_for_now_and_here_is_not_allowed(served: Served) -> None:
    now = time.time()
    other_pod = served.command(False, aud="another-pod")
    too_long = served.command(False, iat=now, exp=now + 3600)
    no_reason = served.send(jwt.encode({"aud": POD, "iat": now, "exp": now + 9, "enabled": False}, KEY, "EdDSA"))
    assert served.command(True).status_code == 200
    replayed = served.command(False, iat=now - 2, exp=now + 9)
    refused = [other_pod, too_long, no_reason, replayed]
    assert [response.status_code for response in refused] == [403] * 4
    reasons = [response.json()["reason"] for response in refused]
    assert "for pod another-pod" in reasons[0]
    assert "at most 30 s" in reasons[1]
    assert "reason" in reasons[2]
    assert "replay" in reasons[3]
    assert served.worker.status().speculation_enabled


def test_key_is_read_anew_at_every_command(served: Served) -> None:
    new = Ed25519PrivateKey.generate()
    command = SpeculationCommand.to_pod(POD, True, "", time.time()).model_dump()
    try:
        write_key(served.key_file, new)
        assert served.send(jwt.encode(command, new, COMMAND_ALGORITHM)).status_code == 200
        assert served.command(True).status_code == 401
        served.key_file.write_text("not a key")
        assert served.command(True).status_code == 403
        served.key_file.unlink()
        response = served.command(True)
        assert (response.status_code, "can not be read" in response.json()["reason"]) == (403, True)
    finally:
        write_key(served.key_file, KEY)


# --- a worker without a key, one that breaks and one that stalls ------------------------------------------------------


def test_worker_without_a_key_takes_no_command_and_fails_loudly_when_its_engine_breaks(served: Served) -> None:
    worker = start(replace(tiny_settings(), speculate=False))
    status = worker.status()
    assert status.self_test.outcome is SelfTestOutcome.NOT_RUN
    assert (status.speculation_enabled, status.speculation_reason) == (False, "Disabled")

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("device lost")

    async def use() -> None:
        transport = httpx.ASGITransport(make_app(worker))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            token = jwt.encode(SpeculationCommand.to_pod(POD, True, "", time.time()).model_dump(), KEY, "EdDSA")
            headers = {"Authorization": f"Bearer {token}"}
            assert (await client.post("/admin/speculation", headers=headers)).status_code == 403
            worker.engine.engine.runner.verify = broken  # type: ignore[assignment]
            asked = {"model": "tiny", "prompt": PROMPT}
            failed = await client.post("/v1/completions", json=asked)
            assert (failed.status_code, failed.json()["error"]["code"]) == (500, "engine_broken")
            assert (await client.get("/readyz")).text == "EngineBroken: device lost"
            assert (await client.get("/healthz")).status_code == 503
            assert (await client.post("/v1/completions", json=asked)).status_code == 503

    asyncio.run(use())
    worker.engine.stop()
    assert worker.engine.engine.pages.free == worker.engine.engine.pages.count - 1


def test_worker_whose_step_does_not_end_says_so_and_ends_without_waiting_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU that never answers."""
    monkeypatch.setattr("tandem_worker.server.run.LINGER_SECONDS", 0.1)
    monkeypatch.setattr("tandem_worker.engine.thread.SILENT_ON_CPU_SECONDS", 1)
    monkeypatch.setattr("tandem_worker.engine.thread.STOP_SECONDS", 0.1)
    worker = start(replace(tiny_settings(), speculate=False))
    never = threading.Event()
    worker.engine.engine.step = never.wait  # type: ignore[assignment,method-assign]
    bound = bind("127.0.0.1", 0)

    ends: list[int] = []

    def ask() -> None:
        asked = {"model": "tiny", "prompt": PROMPT}
        answer = httpx.post(f"http://127.0.0.1:{bound.getsockname()[1]}/v1/completions", json=asked, timeout=30)
        ends.append(answer.status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    failure = run(worker, bound, drain_seconds=40)
    asking.join()
    assert ends == [500]
    assert failure is not None
    assert failure.reason == "EngineStalled"
    assert worker.engine.is_alive()
    never.set()
