"""A target that several ranks share, on GPUs: NCCL in the graphs of rounds, and the text of one number of ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import torch

from gpu.ranks import OPTIONS, one_rank, share_of_tiny, two_ranks_on_one_gpu
from gpu.test_engine_gpu import differing, large, random_prompts
from gpu.test_worker_gpu import PAIR, TEXTS, worker
from random_checkpoint import WIDE, write_drafter, write_target
from tandem_worker.contract import ExitCode
from tandem_worker.engine.engine import Engine
from tandem_worker.engine.ranks import ALONE
from tandem_worker.engine.request import Sampling
from tandem_worker.models.share import WHOLE
from unit.quantising import by_channel, written
from unit.serving import Told, accepted, finish_all, generate, prompts, submit, wait_for

if TYPE_CHECKING:
    from gpu.conftest import Count

WIDE_HEADS = {name: WIDE[name] for name in ("hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim")}


def several(gpus: int) -> pytest.MarkDecorator:
    here = torch.cuda.device_count()
    return pytest.mark.skipif(here < gpus, reason=f"not run: {'one GPU' if here == 1 else f'{here} GPUs'} here")


def test_gathering_by_nccl_in_graphs_changes_no_token(tmp_path: Path, count: Count) -> None:
    """One rank alone, greedy and drawn."""
    pair, texts = share_of_tiny(WHOLE), []
    with one_rank(tmp_path) as gathers:
        for ranks in (ALONE, gathers):
            made = Engine(*pair, OPTIONS, Told(), ranks)
            sent = [submit(made, prompt, Sampling(64, i % 2 * 0.8, seed=i)) for i, prompt in enumerate(prompts()[:16])]
            finish_all(made)
            assert not made.degraded
            assert made.rounds
            assert made.rounds.graphs.captured
            assert sum(accepted(made)) > len(accepted(made)) / 2
            texts.append([text.tokens for text in sent])
    count("tokens", *differing(*texts))


def test_gathering_the_splits_of_large_layers_changes_no_token(tmp_path: Path, count: Count) -> None:
    some, texts = random_prompts(6, 200), []
    with one_rank(tmp_path) as gathers:
        for ranks in (ALONE, gathers):
            texts.append(generate(Engine(*large(), OPTIONS, Told(), ranks), some, 24))
    count("tokens", *differing(*texts))


def test_two_ranks_on_one_gpu_say_the_same_with_speculation_and_without(count: Count) -> None:
    some = prompts()[:8]
    with two_ranks_on_one_gpu() as leader:
        leader.switch(False)
        plain = [generate(leader, [prompt], 48)[0] for prompt in some]
        leader.switch(True)
        fast = generate(leader, some, 48)
        leader.compare()
        assert "CudaGraphCaptureFailed" in leader.degraded
        assert sum(accepted(leader)) > len(accepted(leader)) / 2
    count("tokens", *differing(fast, plain))


def texts_over_http(folder: Path, gpus: int, *arguments: str) -> list[list[str]]:
    """Speculating, and not."""
    with worker(folder, *arguments, f"--tensor-parallel={gpus}") as served:
        wait_for(served.ready, tries=30000)
        assert not served.status().degraded
        both = []
        for enabled in (True, False):
            served.switch(enabled)
            both.append([served.text(prompt) for prompt in TEXTS])
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
    return both


@several(2)
def test_two_gpus_serve_the_tiny_pair(tmp_path: Path, count: Count) -> None:
    fast, plain = texts_over_http(tmp_path, 2, *PAIR)
    count("texts", sum(a != b for a, b in zip(fast, plain, strict=True)), len(plain))


@several(2)
def test_two_gpus_share_matrices_of_8_bits(tmp_path: Path, count: Count) -> None:
    texts = []
    for folder in written(tmp_path / "targets", by_channel):
        (tmp_path / folder.parent.name).mkdir()
        texts += texts_over_http(tmp_path / folder.parent.name, 2, f"--target={folder}", PAIR[1])
    count("texts", sum(len(set(same)) > 1 for same in zip(*texts, strict=True)), len(TEXTS))


@pytest.mark.parametrize("gpus", [pytest.param(2, marks=several(2)), pytest.param(4, marks=several(4))])
def test_wide_layers_are_shared(tmp_path: Path, count: Count, gpus: int) -> None:
    target = write_target(tmp_path / "target", {**WIDE, "layers": 6}, device="cuda")
    write_drafter(tmp_path / "drafter", target, WIDE_HEADS, device="cuda")
    pair = f"--target={tmp_path / 'target'}", f"--drafter={tmp_path / 'drafter'}"
    fast, plain = texts_over_http(tmp_path, gpus, *pair)
    count("texts", sum(a != b for a, b in zip(fast, plain, strict=True)), len(plain))


def followers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


@several(2)
def test_a_gpu_whose_process_dies_ends_the_worker_which_says_so(tmp_path: Path) -> None:
    with worker(tmp_path, *PAIR, "--tensor-parallel=2") as served:
        wait_for(served.ready, tries=30000)
        (follower,) = followers_of(served.process.pid)
        os.kill(follower, signal.SIGKILL)

        def refused() -> bool:
            try:
                return served.complete(TEXTS[0]).status_code != 200
            except httpx.HTTPError:
                return True

        wait_for(refused)
        code, failure = served.last_words()
    assert (code, failure.reason) == (ExitCode.CANNOT_LOAD, "RankLost")
    assert "SIGKILL" in failure.message


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="not run: several GPUs here")
def test_more_gpus_than_there_are_is_told(tmp_path: Path) -> None:
    with worker(tmp_path, *PAIR, "--tensor-parallel=2") as served:
        code, failure = served.last_words()
    assert (code, failure.reason) == (ExitCode.CANNOT_LOAD, "NoGpu")
    assert "2 GPUs" in failure.message
