"""CUDA graphs of sequences of kernels that are launched again and again, all in one pool of memory.

Launching a kernel takes the host some 30 us, which is more than most of them run; a graph is one launch. When one can
not be captured, no more are tried, and what has no graph is launched kernel by kernel: the same kernels, so the same
text, more slowly. `failure` says why, for the log, the worker's status and its metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from tandem_worker.engine.ranks import Ranks

log = logging.getLogger(__name__)


class Graphs:
    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self.device, self.ranks, self.failure = device, ranks, ""
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @property
    def captured(self) -> frozenset[Hashable]:
        return frozenset(self._graphs)

    def play(self, key: Hashable, kernels: Callable[[], None], moved: Sequence[Tensor] = ()) -> None:
        """Runs `kernels`, by the key's graph if there is one or can be. They must read and write the same memory for
        the same key always."""
        self.ensure(key, kernels, moved)
        if graph := self._graphs.get(key):
            graph.replay()
        else:
            kernels()

    def ensure(self, key: Hashable, kernels: Callable[[], None], moved: Sequence[Tensor] = ()) -> None:
        """A graph for the key, unless this is no GPU or capturing failed before. Nothing that the kernels use may be in
        use; what they move on is given back its values."""
        if self.device.type != "cuda" or key in self._graphs or self.failure:
            return
        saved = [x.clone() for x in moved]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            kernels()  # so that everything is compiled; what fails here would fail without graphs, too
        torch.cuda.current_stream().wait_stream(stream)
        try:
            self._graphs[key] = self._captured(kernels, stream)
        except RuntimeError as failure:
            self.failure = str(failure).partition("\n")[0]
            log.warning("No CUDA graph for %s, its kernels are launched one by one: %s", key, self.failure)
        if not self.ranks.agree(not self.failure, self.device):  # what one launches otherwise, all do
            self.failure = self.failure or "another rank could not capture it"
            self._graphs.pop(key, None)
        for tensor, value in zip(moved, saved, strict=True):
            tensor.copy_(value)

    def _captured(self, kernels: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """Raises RuntimeError. The outer block leaves `stream` again, which a failed capture does not."""
        graph = torch.cuda.CUDAGraph()
        mode = "global" if self.ranks.group is None else "thread_local"  # NCCL's own threads look at events meanwhile
        with (
            torch.cuda.stream(stream),
            torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode=mode),
        ):
            kernels()
        return graph
