"""Engines of several ranks over the tiny pair, on as few GPUs as there are. What a follower runs must be importable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tandem_worker.checkpoint import open_checkpoint, read_drafter, read_target
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.followers import LOADED, Followers
from tandem_worker.engine.orders import Follower, Leader
from tandem_worker.engine.ranks import Ranks, join
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.load import load_drafter, load_target
from tandem_worker.models.share import Share
from unit.pairs import TINY_PAIR
from unit.serving import Told

GPU = torch.device("cuda", 0)
OPTIONS = EngineOptions(4, 8, 16384, prefill_chunk=48, dtype=torch.bfloat16, device="cuda:0")


def share_of_tiny(share: Share) -> tuple[Llama, Eagle3]:
    checkpoints = [open_checkpoint(TINY_PAIR / part) for part in ("target", "drafter")]
    target = read_target(checkpoints[0])
    llama = load_target(checkpoints[0], target, torch.bfloat16, GPU, share=share)
    drafter = read_drafter(checkpoints[1], target)
    return llama, load_drafter(checkpoints[1], drafter, llama, torch.bfloat16, GPU).drafter


def follow_on_the_same_gpu(rank: int, pipe: Connection, folder: Path) -> None:
    pair = share_of_tiny(Share(rank, 2))
    pipe.send_bytes(LOADED)
    ranks = join(rank, 2, folder, GPU, on_host=True)
    Follower(Engine(*pair, OPTIONS, ranks=ranks), pipe).run()


@contextmanager
def one_rank(folder: Path) -> Iterator[Ranks]:
    """That gathers from itself, by NCCL."""
    try:
        yield join(0, 1, folder, GPU)
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def two_ranks_on_one_gpu() -> Iterator[Leader]:
    """NCCL refuses that, so what is gathered goes through the host, and no graph can be captured."""
    followers = Followers(follow_on_the_same_gpu, 2)
    pair = share_of_tiny(Share(0, 2))
    followers.wait_until_loaded()
    leader = Leader(*pair, OPTIONS, join(0, 2, followers.folder, GPU, on_host=True), followers)
    leader.recorder = Told()
    try:
        yield leader
    finally:
        followers.close()
        torch.distributed.destroy_process_group()
