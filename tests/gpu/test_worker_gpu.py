"""`tandem-worker serve --device cuda` with checkpoints on disk: its text, its switch, and what it says when the GPU
fails it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import jwt
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demo.load import read_prompts
from gpu.test_engine_gpu import differing, engine, tiny
from random_checkpoint import WIDE, write_target
from tandem_worker.contract import COMMAND_ALGORITHM, ExitCode, SpeculationCommand, WorkerFailure, WorkerStatus
from unit.pairs import TINY_PAIR
from unit.quantising import by_channel, written
from unit.serving import generate, prompts, wait_for

if TYPE_CHECKING:
    from gpu.conftest import Count

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
POD = "the-pod"
TEXTS = read_prompts(TINY_PAIR / "prompts.jsonl")[:24]
SABOTAGE = Path(__file__).parents[2] / "hack" / "demo" / "sabotage"
LOST_CONTEXT = Path(__file__).parent / "lost_context"
PAIR = (f"--target={TINY_PAIR / 'target'}", f"--drafter={TINY_PAIR / 'drafter'}")


class Worker:
    def __init__(self, folder: Path, arguments: tuple[str, ...], path: Path | None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.message = folder / "termination-log"
        key_file = folder / "key.pem"
        form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        key_file.write_bytes(KEY.public_key().public_bytes(*form))
        command = [sys.executable, "-m", "tandem_worker", "serve", "--model=tiny", "--device=cuda", "--drain-seconds=5"]
        command += ["--host=127.0.0.1", f"--port={self.port}", f"--termination-message={self.message}"]
        command += [f"--operator-key-file={key_file}", f"--pod-uid={POD}", *arguments]
        more = {"PYTHONPATH": f"{os.environ['PYTHONPATH']}:{path}"} if path else {}
        self.log = folder / "worker.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env=os.environ | more)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def status(self) -> WorkerStatus:
        return WorkerStatus.model_validate_json(self.client.get("/status").text)

    def complete(self, prompt: str, tokens: int = 96, **more: Any) -> httpx.Response:
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        return self.client.post("/v1/completions", json=asked)

    def text(self, prompt: str) -> str:
        return str(self.complete(prompt).json()["choices"][0]["text"])

    def streamed(self, prompt: str) -> str:
        """Raises StopIteration when the stream was cut off."""
        lines = self.complete(prompt, stream=True).text.splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        return "".join(choice["text"] for line in data[:-1] for choice in json.loads(line)["choices"])

    def switch(self, enabled: bool) -> None:
        claims = SpeculationCommand.to_pod(POD, enabled, "Test", time.time()).model_dump()
        token = jwt.encode(claims, KEY, COMMAND_ALGORITHM)
        answer = self.client.post("/admin/speculation", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code < 300, answer.text

    def last_words(self) -> tuple[int, WorkerFailure]:
        code = self.process.wait(120)
        return code, WorkerFailure.model_validate_json(self.message.read_text())


@contextmanager
def worker(folder: Path, *arguments: str, path: Path | None = None) -> Iterator[Worker]:
    made = Worker(folder, arguments, path)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        made.client.close()


def test_a_target_of_8_bits_is_served_with_the_text_of_its_twin(tmp_path: Path, count: Count) -> None:
    texts = []
    for folder in written(tmp_path / "targets", by_channel):
        (tmp_path / folder.parent.name).mkdir()
        pair = f"--target={folder}", PAIR[1]
        with worker(tmp_path / folder.parent.name, *pair) as served:
            wait_for(served.ready, tries=12000)
            assert served.status().speculation_enabled
            texts.append([served.text(prompt) for prompt in TEXTS])
    count("texts", sum(a != b for a, b in zip(*texts, strict=True)), len(TEXTS))


def test_text_over_http_is_the_same_with_speculation_and_without_and_while_it_is_switched(
    tmp_path: Path, count: Count
) -> None:
    with worker(tmp_path, *PAIR) as served:
        wait_for(served.ready, tries=12000)
        assert served.status().speculation_enabled
        assert not served.status().degraded
        assert 'tandem_cuda_graphs{revision=""} 1.0' in served.client.get("/metrics").text
        fast = [served.text(prompt) for prompt in TEXTS]
        served.switch(False)
        plain = [served.text(prompt) for prompt in TEXTS]
        count("texts, speculating", sum(a != b for a, b in zip(fast, plain, strict=True)), len(plain))
        streamed: list[tuple[str, str]] = []

        def user() -> None:
            for _ in range(3):
                streamed.extend((served.streamed(prompt), text) for prompt, text in zip(TEXTS, plain, strict=True))

        users = [threading.Thread(target=user) for _ in range(4)]
        for one in users:
            one.start()
        switches = 0
        while any(one.is_alive() for one in users):
            switches += 1
            served.switch(switches % 2 == 1)
            time.sleep(0.02)
        assert switches > 10
        assert len(streamed) == 4 * 3 * len(TEXTS)
        count("streamed texts, switching", sum(a != b for a, b in streamed), len(streamed))


def test_a_target_larger_than_its_share_is_out_of_memory_at_load(tmp_path: Path) -> None:
    write_target(tmp_path / "wide", WIDE, device="cuda")
    torch.cuda.empty_cache()
    arguments = (f"--target={tmp_path / 'wide'}", "--no-speculation", "--gpu-memory-fraction=0.01")
    with worker(tmp_path, *arguments) as served:
        code, failure = served.last_words()
    assert (code, failure.reason) == (ExitCode.CANNOT_LOAD, "OutOfGpuMemory")
    assert "engine.gpuMemoryFraction" in failure.message


def test_a_share_that_another_process_holds_is_refused_with_figures(tmp_path: Path) -> None:
    free, total = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - int(0.4 * total)), dtype=torch.uint8, device="cuda")
    try:
        with worker(tmp_path, *PAIR, "--gpu-memory-fraction=0.5") as served:
            code, failure = served.last_words()
    finally:
        del held
        torch.cuda.empty_cache()
    assert (code, failure.reason) == (ExitCode.CANNOT_LOAD, "InsufficientGpuMemory")
    assert "GiB is free" in failure.message


def test_a_gpu_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with worker(tmp_path, *PAIR) as served:
        code, failure = served.last_words()
    assert (code, failure.reason) == (ExitCode.CANNOT_LOAD, "NoGpu")


def test_without_graphs_the_text_is_the_same_and_the_worker_says_why(tmp_path: Path) -> None:
    with worker(tmp_path, *PAIR, path=SABOTAGE) as served:
        wait_for(served.ready, tries=12000)
        assert served.status().degraded.startswith("CudaGraphCaptureFailed: ")
        assert 'tandem_cuda_graphs{revision=""} 0.0' in served.client.get("/metrics").text
        slow = [served.text(prompt) for prompt in TEXTS[:6]]
        served.switch(False)
        assert [served.text(prompt) for prompt in TEXTS[:6]] == slow


def test_a_lost_context_ends_requests_and_the_process_which_says_why(tmp_path: Path) -> None:
    with worker(tmp_path, *PAIR, path=LOST_CONTEXT) as served:
        wait_for(served.ready, tries=12000)
        answers: list[int] = []

        def user() -> None:
            while served.process.poll() is None:
                try:
                    answers.append(served.complete(TEXTS[0]).status_code)
                except httpx.TransportError:
                    return

        asking = threading.Thread(target=user)
        asking.start()
        wait_for(lambda: len(answers) > 3)
        served.process.send_signal(signal.SIGUSR1)
        code, failure = served.last_words()
        asking.join(60)
        assert not asking.is_alive(), "a request hangs"
    assert (code, failure.reason) == (ExitCode.CANNOT_LOAD, "GpuFailed")
    assert "CUDA error" in failure.message or "Triton Error" in failure.message


def test_capturing_that_fails_leaves_earlier_graphs_and_the_text(monkeypatch: pytest.MonkeyPatch, count: Count) -> None:
    some = prompts()[:8]
    plain = generate(engine(tiny(), speculate=False, max_batch=1), some, 64)
    made = engine(tiny(), max_batch=8)
    generate(made, some[:1], 8)
    assert made.rounds
    before = made.rounds.graphs.captured
    assert before
    enter = torch.cuda.graph.__enter__

    def entered(self: torch.cuda.graph) -> None:
        enter(self)
        with pytest.raises(RuntimeError):
            torch.cuda.current_stream().synchronize()

    monkeypatch.setattr(torch.cuda.graph, "__enter__", entered)
    count("tokens", *differing(generate(made, some, 64), plain))
    assert made.degraded.startswith("CudaGraphCaptureFailed: ")
    assert made.rounds.graphs.captured == before
