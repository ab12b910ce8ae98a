"""From checkpoints to a worker that may serve, or to the reason why there is none.

Order: content as validated, pair resolved, weights loaded, wiring observed in a real forward and compared with the
resolution, self-test, plain steps timed. Whatever goes wrong ends in CannotStart, which says it for the operator.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tandem_worker.checkpoint import (
    Checkpoint,
    CheckpointError,
    Drafter,
    Target,
    open_checkpoint,
    read_drafter,
    read_target,
)
from tandem_worker.checkpoint.tokenizer import read_tokenizer
from tandem_worker.checks import drafter_parameters, resolve
from tandem_worker.checks.builtin import beyond_kernels, indivisible, unread_weights, unserved
from tandem_worker.contract import (
    ExitCode,
    Fingerprints,
    Resolution,
    SelfTest,
    SelfTestOutcome,
    WorkerFailure,
)
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.followers import LOADED, Followers
from tandem_worker.engine.gpu import GpuProblem, claim, enough, explained, keep_kernels, multiplies_8_bits
from tandem_worker.engine.measure import measure
from tandem_worker.engine.orders import Follower, Leader
from tandem_worker.engine.ranks import join
from tandem_worker.engine.runner import EngineBroken
from tandem_worker.engine.self_test import TEXTS, Seen, observe, self_test, time_plain_steps
from tandem_worker.engine.speedup import Speedup
from tandem_worker.engine.thread import EngineThread
from tandem_worker.models.llama import Llama
from tandem_worker.models.load import LoadedDrafter, load_drafter, load_target
from tandem_worker.models.share import WHOLE, Share
from tandem_worker.probe.template import read_template
from tandem_worker.server.admin import Gate
from tandem_worker.server.chat import ChatTemplate
from tandem_worker.server.metrics import Metrics
from tandem_worker.server.vocabulary import Vocabulary
from tandem_worker.server.worker import Identity, Worker
from tandem_worker.verify import difference, found_in

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What `tandem-worker serve` is asked to do."""

    target: Path
    drafter: Path | None
    model: str
    revision: str
    speculate: bool
    engine: EngineOptions
    threads: int
    expected: Fingerprints  # empty: not compared
    operator_key_file: Path | None
    pod_uid: str | None
    gpu_memory_fraction: float | None = None
    restore_8_bits: bool = False
    max_waiting: int = 256
    tensor_parallel: int = 1  # GPUs

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.engine.device).type == "cuda"

    @property
    def keep_8_bits(self) -> bool:
        """Weights of 8 bits stay so in memory; else they are restored to the engine's own type when they are loaded."""
        return self.on_gpu and not self.restore_8_bits and multiplies_8_bits()

    def of_rank(self, rank: int) -> Settings:
        device = f"cuda:{rank}" if self.on_gpu else self.engine.device
        return replace(self, engine=replace(self.engine, device=device))


class CannotStart(Exception):
    def __init__(self, code: ExitCode, reason: str, message: str, found: Fingerprints | None = None) -> None:
        super().__init__(message)
        self.code, self.failure = code, WorkerFailure(reason=reason, message=message, found=found)


@dataclass(frozen=True)
class Pair:
    """Both checkpoints, opened and understood; the drafter's half is None without one."""

    target_checkpoint: Checkpoint
    target: Target
    drafter_checkpoint: Checkpoint | None
    drafter: Drafter | None
    fingerprints: Fingerprints


def start(settings: Settings) -> Worker:
    """Raises CannotStart."""
    with _told_why():
        return _start(settings)


@contextmanager
def _told_why() -> Iterator[None]:
    try:
        yield
    except CheckpointError as failure:
        message = " ".join(filter(None, (part for f in failure.findings for part in (f.message, f.action))))
        raise CannotStart(ExitCode.CANNOT_LOAD, "CannotLoad", message) from failure
    except EngineBroken as failure:
        raise CannotStart(ExitCode.CANNOT_LOAD, "EngineBroken", f"The self-test failed: {failure}.") from failure
    except GpuProblem as failure:
        raise CannotStart(ExitCode.CANNOT_LOAD, failure.reason, str(failure)) from failure
    except RuntimeError as failure:
        problem = explained(failure)
        if problem is None:
            raise
        raise CannotStart(ExitCode.CANNOT_LOAD, problem.reason, str(problem)) from failure


def _start(settings: Settings) -> Worker:
    torch.set_num_threads(settings.threads)
    pair = open_pair(settings)
    vocabulary = Vocabulary(read_tokenizer(settings.target), pair.target.vocab_size)
    engine, loaded = make_engine(settings, pair)
    engine.prepare()
    prompts = _self_test_prompts(vocabulary, pair.target)
    resolution = _check_wiring(engine, loaded, pair, prompts[0]) if loaded else None
    tested = self_test(engine, prompts) if loaded and settings.speculate else SelfTest(outcome=SelfTestOutcome.NOT_RUN)
    speedup = Speedup()
    time_plain_steps(engine, prompts[0], speedup)
    if settings.engine.adaptive and loaded:
        engine.adapt(measure(engine, prompts[0]))
    metrics = Metrics(settings.revision, settings.engine.draft_length, speedup)
    metrics.graphs.set_function(lambda: settings.on_gpu and not engine.degraded)
    metrics.free_pages.set_function(lambda: engine.pages.free)
    metrics.draft_length.set(engine.length if loaded else 0)
    engine.recorder = metrics
    identity = Identity(
        settings.revision, settings.model, settings.engine.draft_length, pair.fingerprints, resolution, tested
    )
    gate = Gate(settings.operator_key_file, settings.pod_uid)
    template = ChatTemplate(read_template(pair.target_checkpoint))
    thread = EngineThread(engine, settings.threads)
    worker = Worker(identity, thread, metrics, vocabulary, template, gate, settings.max_waiting)
    reason = _why_off(settings, tested)
    worker.set_speculation(not reason, reason)
    worker.engine.start()
    log.info("Ready: %s", worker.status().model_dump_json())
    return worker


def make_engine(settings: Settings, pair: Pair) -> tuple[Engine, LoadedDrafter | None]:
    size = settings.tensor_parallel
    if size == 1:
        llama, loaded = _load(settings, pair, WHOLE)
        return Engine(llama, loaded and loaded.drafter, settings.engine), loaded
    if settings.on_gpu:
        enough(size)
    followers = Followers(partial(follow, settings), size)
    settings = settings.of_rank(0)
    llama, loaded = _load(settings, pair, Share(0, size))
    followers.wait_until_loaded()
    ranks = join(0, size, followers.folder, torch.device(settings.engine.device), on_host=not settings.on_gpu)
    followers.watch(ranks)
    return Leader(llama, loaded and loaded.drafter, settings.engine, ranks, followers), loaded


def follow(settings: Settings, rank: int, pipe: Connection, folder: Path) -> None:
    """The whole life of another rank."""
    settings, size = settings.of_rank(rank), settings.tensor_parallel
    torch.set_num_threads(settings.threads)
    try:
        with _told_why():
            llama, loaded = _load(settings, open_pair(settings), Share(rank, size))
            pipe.send_bytes(LOADED)
            ranks = join(rank, size, folder, torch.device(settings.engine.device), on_host=not settings.on_gpu)
            Follower(Engine(llama, loaded and loaded.drafter, settings.engine, ranks=ranks), pipe).run()
    except CannotStart as failure:
        words = WorkerFailure(reason=failure.failure.reason, message=f"Rank {rank} of {size}: {failure}")
        pipe.send_bytes(words.model_dump_json().encode())
        raise SystemExit(int(failure.code)) from failure


def _load(settings: Settings, pair: Pair, share: Share) -> tuple[Llama, LoadedDrafter | None]:
    device, dtype = torch.device(settings.engine.device), settings.engine.dtype
    if settings.on_gpu:
        keep_kernels()
        if device.index is not None:
            torch.cuda.set_device(device)
        claim(settings.gpu_memory_fraction)
    llama = load_target(pair.target_checkpoint, pair.target, dtype, device, settings.keep_8_bits, share)
    if not (pair.drafter_checkpoint and pair.drafter):
        return llama, None
    loaded = load_drafter(pair.drafter_checkpoint, pair.drafter, llama, dtype, device)
    _refuse_missing(loaded, pair.drafter_checkpoint)
    return llama, loaded


def open_pair(settings: Settings) -> Pair:
    target_checkpoint = open_checkpoint(settings.target)
    drafter_checkpoint = open_checkpoint(settings.drafter) if settings.drafter else None
    found = found_in(target_checkpoint, drafter_checkpoint)
    if message := difference(found, settings.expected, settings.target, settings.drafter):
        raise CannotStart(ExitCode.CHECKPOINT_CHANGED, "CheckpointChanged", message, found)
    target = read_target(target_checkpoint)
    drafter = read_drafter(drafter_checkpoint, target) if drafter_checkpoint else None
    refused = [*unserved(target, drafter, target_checkpoint, drafter_checkpoint)]
    if drafter_checkpoint and drafter:
        refused += unread_weights(drafter_parameters(drafter_checkpoint, drafter).values())
    if refused:
        raise CheckpointError(*refused)
    lacking = beyond_kernels(target, drafter) if settings.engine.on_kernels else []
    if lacking:
        message = f"The engine's kernels do not compute {', '.join(lacking)}. Serve the pair on a CPU, SGLang or vLLM."
        raise CannotStart(ExitCode.CANNOT_LOAD, "CannotLoad", message)
    if message := indivisible(target, settings.tensor_parallel):
        raise CannotStart(ExitCode.CANNOT_LOAD, "CannotLoad", message)
    return Pair(target_checkpoint, target, drafter_checkpoint, drafter, found)


def _refuse_missing(loaded: LoadedDrafter, checkpoint: Checkpoint) -> None:
    if loaded.missing:
        names, dropped = ", ".join(loaded.missing), ", ".join(loaded.dropped[:8])
        hint = f" Tensors that no parameter takes: {dropped}." if dropped else ""
        message = f"The drafter {checkpoint.path} lacks {names}; they would stay random.{hint}"
        raise CannotStart(ExitCode.CANNOT_LOAD, "CannotLoad", message)


def _self_test_prompts(vocabulary: Vocabulary, target: Target) -> list[list[int]]:
    prompts = [vocabulary.tokenizer.encode(text).ids for text in TEXTS]
    return [[target.bos_token_id or 0], *[prompt for prompt in prompts if prompt]]


def _check_wiring(engine: Engine, loaded: LoadedDrafter, pair: Pair, prompt: Sequence[int]) -> Resolution:
    """What was really done, which must be what validation says will be."""
    assert pair.drafter
    assert pair.drafter_checkpoint
    seen: Seen = observe(engine, prompt)
    did = Resolution(
        capture_indexes=seen.capture_indexes,
        fc_input_width=seen.fc_input_width,
        fc_applied=seen.fc_applied,
        norm_before_residual=loaded.drafter.norm_before_residual,
        loaded=loaded.loaded,
        shared=loaded.shared,
        missing=loaded.missing,
        dropped=loaded.dropped,
    )
    expected = resolve(pair.target, pair.drafter, pair.target_checkpoint, pair.drafter_checkpoint)
    if did != expected:
        differing = [name for name in Resolution.model_fields if getattr(did, name) != getattr(expected, name)]
        differences = "; ".join(f"{n}: {getattr(did, n)}, expected {getattr(expected, n)}" for n in differing)
        message = f"The engine did not wire the pair as it was validated: {differences}."
        raise CannotStart(ExitCode.RESOLUTION_DIFFERS, "ResolutionDiffers", message)
    return did


def _why_off(settings: Settings, tested: SelfTest) -> str:
    if settings.drafter is None:
        return "NoDrafter"
    if not settings.speculate:
        return "Disabled"
    return "SelfTestFailed" if tested.outcome is SelfTestOutcome.NO_LIFE else ""
