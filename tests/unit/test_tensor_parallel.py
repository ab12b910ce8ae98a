"""A target shared by two processes: the same text as from one, whatever happens to requests, and an end with a reason.

The kernels run in Triton's interpreter, the ranks meet through gloo. On several GPUs the same engines meet through NCCL
(tests/gpu/test_tensor_parallel_gpu.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from random_checkpoint import write_drafter, write_target
from tandem_worker.engine.adaptive import Costs
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.followers import Followers
from tandem_worker.engine.gpu import GpuProblem
from tandem_worker.engine.gpu_runner import GpuRunner
from tandem_worker.engine.orders import Leader
from tandem_worker.engine.request import Finish, Sampling
from tandem_worker.engine.runner import EngineBroken
from tandem_worker.engine.self_test import observe
from tandem_worker.engine.thread import EngineThread
from tandem_worker.models.quantised import Kept
from tandem_worker.models.share import Share
from tandem_worker.server.start import CannotStart, Settings, follow, make_engine, open_pair, start
from unit.serving import Told, accepted, finish_all, submit, tiny_settings, wait_for

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning",  # of padding, which nobody stores
    "ignore:All-NaN:RuntimeWarning",
)

PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 7, 1]]
HEADS = {"hidden_size": 16, "intermediate_size": 16, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab_size": 30}
SAMPLINGS = [Sampling(4), Sampling(4, 1.5, seed=5, repetition_penalty=1.4)]


def loud(name: str, parameter: nn.Parameter) -> Tensor:
    """So that texts differ from each other."""
    weight = torch.empty(parameter.shape, dtype=torch.bfloat16)
    return weight.fill_(1) if "norm" in name else weight.uniform_(-0.4, 0.4)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("pair")
    torch.manual_seed(4)
    target = write_target(folder / "target", {**HEADS, "layers": 2, "max_position_embeddings": 256}, fill=loud)
    write_drafter(folder / "drafter", target, {**HEADS, "draft_vocab_size": 30}, fill=loud)
    file = folder / "drafter" / "config.json"
    config = json.loads(file.read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [-1, 0, 1]
    file.write_text(json.dumps(config))
    return replace(tiny_settings(), target=folder / "target", drafter=folder / "drafter")


def made(settings: Settings, size: int = 1, chunk: int = 128) -> Engine:
    options = EngineOptions(2, 2, 512, prefill_chunk=chunk, kernels=size > 1)
    settings = replace(settings, engine=options, tensor_parallel=size)
    engine, _ = make_engine(settings, open_pair(settings))
    engine.recorder = Told()
    return engine


@pytest.fixture(scope="module")
def alone(settings: Settings) -> list[list[int]]:
    """Texts of one process, on the CPU's own path, without speculation, one after the other."""
    engine = made(settings)
    engine.switch(False)
    texts = []
    for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True):
        texts.append(submit(engine, prompt, sampling))
        finish_all(engine)
    return [text.tokens for text in texts]


def made_up(*arguments: Any, **more: Any) -> Engine:
    """Its steps are made up to the sizes of graphs, as on a GPU."""
    engine = Engine(*arguments, **more)
    assert isinstance(engine.runner, GpuRunner)
    engine.runner.layout.padded = True
    return engine


def follow_made_up(settings: Settings, rank: int, pipe: Connection, folder: Path) -> None:
    """In a process of its own."""
    pytest.MonkeyPatch().setattr("tandem_worker.server.start.Engine", made_up)
    follow(settings, rank, pipe, folder)


@pytest.fixture(scope="module")
def leader(settings: Settings) -> Iterator[Leader]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem_worker.server.start.follow", follow_made_up)
        engine = made(settings, size=2, chunk=4)
    assert isinstance(engine, Leader)
    assert isinstance(engine.runner, GpuRunner)
    engine.runner.layout.padded = True
    yield engine
    engine.followers.close()
    torch.distributed.destroy_process_group()


def test_two_ranks_say_what_one_says_greedy_and_drawn_in_one_batch_in_chunks(
    leader: Leader, alone: list[list[int]]
) -> None:
    leader.switch(True)
    texts = [submit(leader, prompt, one) for prompt, one in zip(PROMPTS, SAMPLINGS, strict=True)]
    leader.step()
    leader.compare()
    finish_all(leader)
    assert [text.tokens for text in texts] == alone
    assert accepted(leader)
    leader.compare()


def test_a_wiring_is_observed_on_all_ranks_since_what_is_observed_is_not_made_up(leader: Leader) -> None:
    """Rows of another number would be gathered otherwise."""
    seen = observe(leader, PROMPTS[0])
    assert (seen.capture_indexes, seen.fc_input_width) == ((0, 1, 2), 48)
    leader.compare()


def test_ranks_stay_in_step_when_readers_leave_and_speculation_is_switched(
    leader: Leader, alone: list[list[int]]
) -> None:
    leader.switch(True)
    stays = submit(leader, PROMPTS[0], replace(SAMPLINGS[0], max_tokens=3, logprobs=2))
    leaves = submit(leader, PROMPTS[1], Sampling(50))

    dear = Costs({(batch, length): 1.0 + length for batch in (1, 2) for length in (0, 2)})  # drafts never pay

    def between(step: int) -> None:
        leader.compare()
        if step < 2:
            leader.switch(step == 1)
        if step == 2:
            leader.adapt(dear)
        if step == 4:
            leader.end(leaves.request, Finish.CANCELLED)
        leader.compare()

    finish_all(leader, between)
    assert stays.tokens == alone[0][:3]
    assert [one.token for one in stays.request.logprobs] == stays.tokens
    assert (leaves.finish, len(leaves.tokens) < 50) == (Finish.CANCELLED, True)


def test_a_rank_that_does_something_else_is_found(leader: Leader) -> None:
    """Here it is not told that a request was sent."""
    leader.switch(False)
    text = submit(leader, PROMPTS[1], Sampling(9))
    del leader._orders[-1]
    with pytest.raises(EngineBroken, match=r"texts of ranks \[1\]"):
        leader.compare()
    leader.scheduler.remove(text.request)


def test_a_rank_that_dies_fails_what_runs_with_a_reason(leader: Leader) -> None:
    thread = EngineThread(leader, 1)
    leader.switch(False)
    text = submit(leader, PROMPTS[1], Sampling(200))
    thread.start()
    wait_for(lambda: bool(text.tokens), tries=6000)
    leader.followers.processes[0].kill()
    wait_for(lambda: text.finish is not None, tries=6000)
    assert text.finish is Finish.FAILED
    assert (thread.reason, thread.broken) == (
        "RankLost",
        "Rank 1 of 2 was ended by SIGKILL; what it computed with the others is lost.",
    )
    thread.stop()


def test_a_rank_that_can_not_start_says_why(settings: Settings, tmp_path: Path) -> None:
    bad = replace(settings, target=tmp_path / "nothing", tensor_parallel=2)
    followers = Followers(partial(follow, bad), 2)
    with pytest.raises(GpuProblem, match=f"Rank 1 of 2: .*{tmp_path}") as failure:
        followers.wait_until_loaded()
    assert failure.value.reason == "CannotLoad"
    followers.close()


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (3, "3 GPUs can not share this target: it has 4 attention heads, 2 key-value heads"),
        (4, "2 key-value heads, .*, which does not divide by 4; choose 2, or serve on one."),
    ],
)
def test_heads_that_do_not_divide_are_refused_by_name(settings: Settings, gpus: int, message: str) -> None:
    with pytest.raises(CannotStart, match=message):
        start(replace(settings, engine=EngineOptions(2, kernels=True), tensor_parallel=gpus))


def test_matrices_of_8_bits_are_shared_with_their_scales_unless_that_tears_a_block() -> None:
    values = torch.arange(64 * 512).view(64, 512).remainder(100).to(torch.int8)
    kept = Kept(values, torch.rand(4, 64))  # blocks of 128 inputs
    whole = kept.restored(torch.float32)
    for size, shape in ((2, (32, 512)), (2, (64, 256)), (4, (64, 128))):
        parts = [Share(rank, size).cut_kept(kept, shape) for rank in range(size)]
        restored = [part.restored(torch.float32) for part in parts if part]
        assert torch.equal(torch.cat(restored, 0 if shape[0] < 64 else 1), whole)
    assert Share(0, 8).cut_kept(kept, (64, 64)) is None
    assert Share(0, 2).cut_kept(Kept(values[:, :48], torch.rand(1, 64)), (64, 24)) is None
