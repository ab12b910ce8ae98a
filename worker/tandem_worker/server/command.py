"""`tandem-worker serve`."""

from __future__ import annotations

import logging
import os
import socket
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from tandem_worker.contract import (
    AUTO,
    TERMINATION_MESSAGE_LIMIT_BYTES,
    WORKER_PORT,
    ExitCode,
    Fingerprints,
    WorkerFailure,
)
from tandem_worker.engine.adaptive import LONGEST
from tandem_worker.engine.engine import EngineOptions
from tandem_worker.server.run import bind, run
from tandem_worker.server.start import CannotStart, Settings, start

log = logging.getLogger(__name__)


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self is Device.CUDA else torch.float32


def serve(
    target: Annotated[Path, typer.Option(help="Folder of the target checkpoint.")],
    model: Annotated[str, typer.Option(help="Name under which clients ask for the model.")],
    drafter: Annotated[Path | None, typer.Option(help="Folder of the drafter checkpoint.")] = None,
    draft_length: Annotated[
        str, typer.Option(help="Tokens proposed per round, 1 to 16; auto: as many as pay, 0 to 8, chosen as it runs.")
    ] = "4",
    revision: Annotated[str, typer.Option(help="Label of all metrics, header of all answers.")] = "",
    host: Annotated[str, typer.Option()] = "0.0.0.0",
    port: Annotated[int, typer.Option()] = WORKER_PORT,
    no_speculation: Annotated[bool, typer.Option("--no-speculation", help="Start with speculation off.")] = False,
    target_fingerprint: Annotated[str, typer.Option(help="As validated; another one ends in exit code 3.")] = "",
    drafter_fingerprint: Annotated[str, typer.Option(help="As validated; another one ends in exit code 3.")] = "",
    operator_key_file: Annotated[Path | None, typer.Option(help="The operator's public key (PEM, Ed25519).")] = None,
    pod_uid: Annotated[str | None, typer.Option(help="Commands must be addressed to it.")] = None,
    termination_message: Annotated[Path | None, typer.Option(help="File that says why the worker ended.")] = None,
    max_batch: Annotated[int, typer.Option(min=1, max=256, help="Requests that run at once.")] = 8,
    kv_cache_tokens: Annotated[
        int | None,
        typer.Option(min=64, help="Tokens that the cache holds. Default: max-batch x 2048, or x the model's context."),
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Requests that may wait; more are refused with 429 and told when to ask again.")
    ] = 256,
    prefill_chunk: Annotated[int, typer.Option(min=8, help="Prompt tokens per step.")] = 128,
    prefix_reuse: Annotated[
        bool, typer.Option(help="Do not compute again what an earlier text began with, whoever asked for it.")
    ] = True,
    context_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of prompt and completion. Default: the target's.")
    ] = None,
    device: Annotated[
        Device, typer.Option(help="Where the engine runs: float32 on cpu, bfloat16 on cuda.")
    ] = Device.CPU,
    gpu_memory_fraction: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Of the GPU's memory: must be free at start, and no more is taken."),
    ] = None,
    restore_8_bits: Annotated[
        bool,
        typer.Option("--restore-8-bits", help="8-bit weights become bfloat16: twice the memory, faster, same text."),
    ] = False,
    tensor_parallel: Annotated[
        int, typer.Option(min=1, help="GPUs that share the target, each in a process of its own. With --device cuda.")
    ] = 1,
    baseline_probe: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of the rounds that run without drafts, to time them.")
    ] = 0.0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the engine.")] = 1,
    drain_seconds: Annotated[float, typer.Option(min=0, help="Longest wait for running requests at the end.")] = 25,
) -> None:
    """Serve a target, with or without a drafter, over an OpenAI-compatible API.

    Exit codes: 0 drained; 3 a checkpoint is not the one that was validated; 4 the pair was wired otherwise than
    validated; 5 it can not be loaded or can not listen, or the engine is broken.
    """
    if tensor_parallel > 1 and device is not Device.CUDA:
        raise typer.BadParameter(f"{tensor_parallel} needs --device cuda", param_hint="--tensor-parallel")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    settings = Settings(
        target=target,
        drafter=drafter,
        model=model,
        revision=revision,
        speculate=not no_speculation,
        engine=EngineOptions(
            draft_length=LONGEST if draft_length == AUTO else _length(draft_length),
            adaptive=draft_length == AUTO,
            max_batch=max_batch,
            kv_cache_tokens=kv_cache_tokens,
            prefill_chunk=prefill_chunk,
            prefix_reuse=prefix_reuse,
            context_length=context_length,
            dtype=device.dtype,
            device=device.value,
            baseline_probe=baseline_probe,
        ),
        threads=threads,
        gpu_memory_fraction=gpu_memory_fraction,
        restore_8_bits=restore_8_bits,
        max_waiting=max_waiting,
        tensor_parallel=tensor_parallel,
        expected=Fingerprints(target=target_fingerprint, drafter=drafter_fingerprint),
        operator_key_file=operator_key_file,
        pod_uid=pod_uid,
    )
    try:
        bound = _bind(host, port)
        worker = start(settings)
    except CannotStart as refusal:
        raise _ended(refusal.code, refusal.failure, termination_message) from None
    ended = typer.Exit()
    if failure := run(worker, bound, drain_seconds) or worker.engine.failure:
        told = WorkerFailure(reason=failure.reason, message=f"The engine failed: {failure.message}")
        ended = _ended(ExitCode.CANNOT_LOAD, told, termination_message)
    if worker.engine.is_alive():  # in a step that does not end: Python would wait at its exit, as the GPU does
        os._exit(ended.exit_code)
    raise ended


def _length(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 16:
        raise typer.BadParameter(f"{text!r} is neither 1 to 16 nor {AUTO}", param_hint="--draft-length")
    return int(text)


def _bind(host: str, port: int) -> socket.socket:
    try:
        return bind(host, port)
    except OSError as failure:
        message = f"{host}:{port} can not be listened on: {failure.strerror}. Choose another --host or --port."
        raise CannotStart(ExitCode.CANNOT_LOAD, "CannotListen", message) from failure


def _ended(code: ExitCode, failure: WorkerFailure, file: Path | None) -> typer.Exit:
    """Logs why, and writes it where the kubelet looks; what is over 4 KiB would be cut and unreadable."""
    log.error("%s: %s", failure.reason, failure.message)
    if file is not None:
        message = failure.message[: TERMINATION_MESSAGE_LIMIT_BYTES // 5]  # a character takes up to 4 bytes
        try:
            file.write_text(failure.model_copy(update={"message": message}).model_dump_json(), encoding="utf-8")
        except OSError as problem:
            log.error("The termination message %s could not be written: %s", file, problem.strerror)
    return typer.Exit(int(code))
