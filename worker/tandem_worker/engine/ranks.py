"""The processes that compute one target together, each with a GPU of its own.

Idea. Every rank runs the same engine on the same orders (see `orders`), and all of them compute the same bits, so they
decide the same without asking each other. Only three things travel between GPUs: the partial sums of the attention's
output and of the MLP's, the best logits of each rank's rows of the head, and all logits where something is drawn.

They are gathered, never reduced: an all-reduce adds in an order of its own choosing, which changes with the number of
rows. Here `add_norm` adds the ranks' parts in the ranks' order. So the bits of a row do not depend on what runs beside
it, with several GPUs as with one; another number of GPUs adds in another order, and gives other bits.

Cost. A rank receives (size - 1) M H floats of 4 bytes for each of a layer's two sums: what a ring that reduces them
moves, too, with two ranks, and size / 2 times as much with more.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tandem_worker.engine.gpu import GpuProblem

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

log = logging.getLogger(__name__)

TIMEOUT = timedelta(minutes=10)
"""Of a rank that waits for another one, which may have kernels to compile."""


@dataclass
class Ranks:
    """This process among them."""

    rank: int = 0
    size: int = 1
    group: ProcessGroup | None = None  # None: it is alone
    on_host: bool = False  # what is gathered goes through the host's memory; no graph can hold that
    lost: GpuProblem | None = None  # a rank is gone

    def gather(self, own: Tensor, whole: Tensor) -> None:
        """whole [size, ...] = `own` of every rank, in their order. Both contiguous.

        The kernels around it may be launched ahead of their turn (`kernels.launch`). NCCL's is not, so it begins when
        the one before it has ended; and it lets nobody begin before it has ended itself.
        """
        from torch.distributed import all_gather_into_tensor

        flat, target = own.view(-1), whole.view(-1)
        if self.on_host and own.is_cuda:
            parts = torch.empty(target.shape, dtype=target.dtype)
            all_gather_into_tensor(parts, flat.cpu(), self.group)
            target.copy_(parts)
        else:
            all_gather_into_tensor(target, flat, self.group)

    def agree(self, yes: bool, device: torch.device) -> bool:
        """Whether all say so. Waits for the device."""
        if self.group is None:
            return yes
        said = torch.tensor([int(yes)], dtype=torch.int32, device=device)
        answers = said.new_empty(self.size)
        self.gather(said, answers)
        return bool(answers.all())

    def check(self) -> None:
        """Nothing that was computed together counts once a rank is gone. Raises GpuProblem."""
        if self.lost:
            raise self.lost

    def lose(self, why: GpuProblem) -> None:
        self.lost = why
        self.leave()

    def leave(self) -> None:
        """Without the others' consent. Ends NCCL's kernels that wait for them, too."""
        if self.group is not None and not self.on_host:
            self.group.abort()


ALONE = Ranks()


def join(rank: int, size: int, folder: Path, device: torch.device, on_host: bool = False) -> Ranks:
    """Waits for the others, who name the same folder; all are processes of one machine. Raises GpuProblem.

    on_host: by gloo, for tests without as many GPUs as ranks. Nothing listens on an address that others can reach.
    """
    import torch.distributed as dist

    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    try:
        dist.init_process_group(
            "gloo" if on_host else "nccl",
            init_method=(folder / "ranks").as_uri(),
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
            device_id=None if on_host else device,
        )
    except RuntimeError as failure:
        first = str(failure).partition("\n")[0]
        raise GpuProblem("RankLost", f"Rank {rank} of {size} could not join the others: {first}") from failure
    log.info("Rank %d of %d is in", rank, size)
    return Ranks(rank, size, dist.group.WORLD, on_host)
