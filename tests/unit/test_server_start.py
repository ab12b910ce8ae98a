"""A worker serves what was validated, or says why it does not start; and it ends without losing a request."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tandem_worker.checkpoint import fingerprint, open_checkpoint
from tandem_worker.checks import resolve
from tandem_worker.contract import (
    TERMINATION_MESSAGE_LIMIT_BYTES,
    ExitCode,
    Fingerprints,
    Resolution,
    SelfTestOutcome,
    WorkerFailure,
)
from tandem_worker.server import start as start_module
from tandem_worker.server.command import serve
from tandem_worker.server.start import CannotStart, Settings, start
from unit.pairs import TINY_PAIR, copy_of, overwrite
from unit.serving import tiny_settings, wait_for


def cannot_start(settings: Settings) -> CannotStart:
    with pytest.raises(CannotStart) as caught:
        start(settings)
    return caught.value


def prints(target: str, drafter: str) -> Fingerprints:
    return Fingerprints(target=target, drafter=drafter)


def test_files_that_changed_since_validation_are_not_served(tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path)
    validated = prints(fingerprint(open_checkpoint(TINY_PAIR / "target")), fingerprint(open_checkpoint(drafter)))
    overwrite(drafter, "fc.weight", b"\0\0", start=100)
    settings = replace(tiny_settings(), drafter=drafter, expected=validated)
    failure = cannot_start(settings)
    assert failure.code is ExitCode.CHECKPOINT_CHANGED
    assert failure.failure.reason == "CheckpointChanged"
    assert failure.failure.found == prints(validated.target, fingerprint(open_checkpoint(drafter)))
    assert f"The drafter at {drafter} is not what was validated" in failure.failure.message


def test_drafter_with_missing_parameters_is_refused_by_their_names(tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path)
    shard = drafter / "model.safetensors"
    shard.write_bytes(shard.read_bytes().replace(b"midlayer.hidden_norm.weight", b"midlayer.hidden_nurm.weight"))
    failure = cannot_start(replace(tiny_settings(), drafter=drafter))
    assert (failure.code, failure.failure.reason) == (ExitCode.CANNOT_LOAD, "CannotLoad")
    assert "lacks midlayer.hidden_norm.weight; they would stay random" in failure.failure.message
    assert "midlayer.hidden_nurm.weight" in failure.failure.message


def test_pair_that_was_wired_otherwise_than_validated_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(*arguments: object) -> Resolution:
        return resolve(*arguments).model_copy(update={"capture_indexes": (3, 5, 6)})  # type: ignore[arg-type]

    monkeypatch.setattr(start_module, "resolve", another)
    failure = cannot_start(tiny_settings())
    assert (failure.code, failure.failure.reason) == (ExitCode.RESOLUTION_DIFFERS, "ResolutionDiffers")
    assert "capture_indexes: (2, 4, 5), expected (3, 5, 6)" in failure.failure.message


def test_damage_is_told_not_traced(tmp_path: Path) -> None:
    target = copy_of("target", tmp_path)
    (target / "tokenizer.json").write_text("{}")
    message = cannot_start(replace(tiny_settings(), target=target)).failure.message
    assert message.startswith(f"{target / 'tokenizer.json'} is not a tokenizer that the tokenizers library reads: ")
    assert message.endswith("Restore the file from where the target was published.")
    shard = target / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    assert "truncated" in cannot_start(replace(tiny_settings(), target=target)).failure.message
    nowhere = cannot_start(replace(tiny_settings(), target=tmp_path / "nowhere"))
    assert (nowhere.code, nowhere.failure.reason) == (ExitCode.CANNOT_LOAD, "CannotLoad")


def test_drafter_that_is_never_right_leaves_the_target_serving(tmp_path: Path) -> None:
    """d2t leads every draft id to one token, which the target never says."""
    drafter = copy_of("drafter", tmp_path)
    ids = np.arange(256)
    overwrite(drafter, "d2t", (255 - ids).astype("<i8").tobytes())
    worker = start(replace(tiny_settings(), drafter=drafter))
    worker.engine.stop()
    status = worker.status()
    assert status.self_test.outcome is SelfTestOutcome.NO_LIFE
    assert status.self_test.drafts >= 64
    assert status.self_test.accepted == 0
    assert (status.speculation_enabled, status.speculation_reason) == (False, "SelfTestFailed")
    assert not worker.unready()


def test_worker_without_a_drafter_serves_the_target() -> None:
    worker = start(replace(tiny_settings(), drafter=None))
    worker.engine.stop()
    status = worker.status()
    assert (status.resolution, status.self_test.outcome) == (None, SelfTestOutcome.NOT_RUN)
    assert (status.speculation_enabled, status.speculation_reason) == (False, "NoDrafter")


def test_address_that_is_taken_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        result, failure = served(tmp_path, TINY_PAIR / "target", "--host=127.0.0.1", f"--port={other.getsockname()[1]}")
    assert (result, failure.reason) == (ExitCode.CANNOT_LOAD, "CannotListen")
    assert "Address already in use" in failure.message


def served(folder: Path, target: Path, *more: str) -> tuple[int, WorkerFailure]:
    """Exit code and termination message of `tandem-worker serve`."""
    app, message = typer.Typer(), folder / "termination-log"
    app.command()(serve)
    arguments = [f"--target={target}", f"--drafter={TINY_PAIR / 'drafter'}", "--model=tiny", *more]
    result = CliRunner().invoke(app, [*arguments, f"--termination-message={message}"])
    assert message.stat().st_size <= TERMINATION_MESSAGE_LIMIT_BYTES
    return result.exit_code, WorkerFailure.model_validate_json(message.read_text())


def test_nan_in_the_target_ends_in_a_termination_message(tmp_path: Path) -> None:
    target = copy_of("target", tmp_path)
    overwrite(target, "model.layers.2.mlp.down_proj.weight", b"\xc0\x7f")  # NaN in bf16
    result, failure = served(tmp_path, target, "--host=127.0.0.1", "--port=0")
    assert (result, failure.reason) == (ExitCode.CANNOT_LOAD, "EngineBroken")
    assert "not finite" in failure.message


def test_sigterm_lets_running_requests_finish(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    arguments = [f"--target={TINY_PAIR / 'target'}", f"--drafter={TINY_PAIR / 'drafter'}", "--model=tiny"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tandem_worker",
                "serve",
                *arguments,
                "--host=127.0.0.1",
                f"--port={port}",
                "--drain-seconds=120",
            ],
            stderr=stream,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_for(lambda: is_ready(client), tries=6000)
            answers: list[httpx.Response] = []
            asked = {"model": "tiny", "prompt": ["Zanzibar", "is"], "max_tokens": 300}
            thread = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json=asked)))
            thread.start()
            wait_for(lambda: 'tandem_running_requests{revision=""} 2' in httpx.get(f"{client.base_url}/metrics").text)
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: httpx.get(f"{client.base_url}/readyz").status_code == 503)
            thread.join()
            assert answers[0].status_code == 200
            assert all(choice["finish_reason"] for choice in answers[0].json()["choices"])
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "Zanzibar" not in log.read_text()  # prompts are nobody's business


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
