"""The tiny pair, loaded, and engines over it, for the tests of the serving half."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
import uvicorn
from tokenizers import Tokenizer

from tandem_worker.checkpoint import open_checkpoint, read_drafter, read_target
from tandem_worker.contract import Fingerprints, Origin
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.record import NoRecord, Phase
from tandem_worker.engine.request import Finish, Request, Sampling
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.load import load_drafter, load_target
from tandem_worker.server.app import make_app
from tandem_worker.server.start import Settings
from tandem_worker.server.worker import Worker
from unit.pairs import TINY_PAIR

CPU = torch.device("cpu")
POD = "0f6e7c1a-pod"


def load_pair(target_folder: Path, drafter_folder: Path) -> tuple[Llama, Eagle3]:
    torch.set_num_threads(1)
    target_checkpoint, drafter_checkpoint = open_checkpoint(target_folder), open_checkpoint(drafter_folder)
    target = read_target(target_checkpoint)
    llama = load_target(target_checkpoint, target, torch.float32, CPU)
    drafter = read_drafter(drafter_checkpoint, target)
    return llama, load_drafter(drafter_checkpoint, drafter, llama, torch.float32, CPU).drafter


@cache
def tiny_pair() -> tuple[Llama, Eagle3]:
    return load_pair(TINY_PAIR / "target", TINY_PAIR / "drafter")


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY_PAIR / "target" / "tokenizer.json"))


@cache
def prompts() -> list[list[int]]:
    lines = (TINY_PAIR / "prompts.jsonl").read_text().splitlines()
    return [tokenizer().encode(json.loads(line)["prompt"]).ids for line in lines]


@dataclass
class Told(NoRecord):
    """What the engine reported."""

    accepted: list[int] = field(default_factory=list)  # tokens of each draft
    phases: list[Phase] = field(default_factory=list)  # of the target's steps
    undrafted_tokens: int = 0

    def stepped(self, phase: Phase, batch: int, seconds: float) -> None:
        if phase is not Phase.DRAFT:
            self.phases.append(phase)

    def drafted(self, origin: Origin, length: int, accepted: int) -> None:
        self.accepted.append(accepted)

    def undrafted(self, origin: Origin, tokens: int) -> None:
        self.undrafted_tokens += tokens


@dataclass(eq=False)
class Text:
    """A request and what came out of it."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None


def submit(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> Text:
    def listen(tokens: list[int], finish: Finish | None) -> None:
        text.tokens += tokens
        text.finish = finish

    text = Text(Request(tuple(prompt), sampling, listen))
    engine.submit(text.request)
    return text


def finish_all(engine: Engine, between: Callable[[int], None] = lambda step: None) -> None:
    step = 0
    while not engine.idle:
        engine.step()
        between(step)
        step += 1


def make_engine(
    speculate: bool = True, draft_length: int = 4, pair: tuple[Llama, Eagle3] | None = None, **options: float
) -> Engine:
    llama, eagle3 = pair or tiny_pair()
    engine = Engine(llama, eagle3, EngineOptions(draft_length, **options), Told())  # type: ignore[arg-type]
    engine.switch(speculate)
    return engine


def generate(engine: Engine, some: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Greedy."""
    texts = [submit(engine, prompt, Sampling(max_tokens)) for prompt in some]
    finish_all(engine)
    return [text.tokens for text in texts]


def accepted(engine: Engine) -> list[int]:
    """Tokens accepted of each draft that the engine verified."""
    assert isinstance(engine.recorder, Told)
    return engine.recorder.accepted


def phases(engine: Engine) -> list[Phase]:
    """Of the target's steps so far, in their order."""
    assert isinstance(engine.recorder, Told)
    return engine.recorder.phases


def tiny_settings(key_file: Path | None = None) -> Settings:
    return Settings(
        target=TINY_PAIR / "target",
        drafter=TINY_PAIR / "drafter",
        model="tiny",
        revision="rev-1",
        speculate=True,
        engine=EngineOptions(draft_length=4),
        threads=1,
        expected=Fingerprints(target="", drafter=""),
        operator_key_file=key_file,
        pod_uid=POD if key_file else None,
    )


@contextmanager
def over_http(worker: Worker) -> Iterator[str]:
    """-> where the worker is served. Ends it, too."""
    server = uvicorn.Server(uvicorn.Config(make_app(worker), port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        worker.engine.stop()
        worker.template.close()


def wait_for(condition: Callable[[], bool], tries: int = 2000) -> None:
    """Of what another thread or process will bring about."""
    for _ in range(tries):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")
