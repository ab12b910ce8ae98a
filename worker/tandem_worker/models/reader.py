"""Reads tensors of checkpoint files ahead of their use, in the order in which they will be asked for.

Reading a large target is bound by its disk, so the disk must never wait for arithmetic: threads read what is expected
next into host memory (page-locked for a GPU, so that copies run at the bus's speed) while the caller computes. What was
read and not yet taken never exceeds a window, whatever the size of the checkpoint.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from threading import Condition, Thread
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from tandem_worker.checkpoint import CheckpointError, TensorInfo
from tandem_worker.checkpoint.errors import error
from tandem_worker.checkpoint.files import readable

THREADS = 8
TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


class Reader:
    """A context: leaving it ends the threads."""

    def __init__(self, window_bytes: int, page_locked: bool = False, threads: int = THREADS) -> None:
        self._window, self._page_locked = window_bytes, page_locked
        self._expected: deque[TensorInfo] = deque()
        self._underway: set[str] = set()
        self._ready: dict[str, Tensor | Exception] = {}
        self._held = 0  # bytes underway or ready
        self.bytes_read = 0
        self._changed = Condition()
        self._closed = False
        self._threads = [Thread(target=self._work, name=f"reader-{i}", daemon=True) for i in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._ready.clear()

    def expect(self, infos: Iterable[TensorInfo], *, next: bool = False) -> None:
        """Behind everything that is expected already, or before it."""
        with self._changed:
            if next:
                self._expected.extendleft(reversed(list(infos)))
            else:
                self._expected.extend(infos)
            self._changed.notify_all()

    def take(self, info: TensorInfo) -> Tensor:
        """The tensor in host memory, as it is stored. It is read at once when it was not expected, or not so soon.

        Raises CheckpointError when the file can not be read, or ends before the tensor does, and what else the reading
        raised: there may be no memory for it.
        """
        with self._changed:
            if info.name not in self._underway and info.name not in self._ready:
                if info in self._expected:
                    self._expected.remove(info)
                self._underway.add(info.name)
                self._held += _size(info)
                mine = True
            else:
                mine = False
        if mine:
            self._finish(info)
        with self._changed:
            self._changed.wait_for(lambda: info.name in self._ready)
            result = self._ready.pop(info.name)
            self._held -= _size(info)
            self._changed.notify_all()
        if isinstance(result, Exception):
            raise result
        return result

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._may_start())
                if self._closed:
                    return
                info = self._expected.popleft()
                self._underway.add(info.name)
                self._held += _size(info)
            self._finish(info)

    def _may_start(self) -> bool:
        """A tensor larger than the window is read when nothing else is held."""
        return bool(self._expected) and (self._held == 0 or self._held + _size(self._expected[0]) <= self._window)

    def _finish(self, info: TensorInfo) -> None:
        result: Tensor | Exception
        try:
            result = read(info, self._page_locked)
        except Exception as failure:  # of a thread of ours: who waits for the tensor is told
            result = failure
        with self._changed:
            self._underway.remove(info.name)
            self._ready[info.name] = result
            self.bytes_read += _size(info)
            self._changed.notify_all()


def read(info: TensorInfo, page_locked: bool = False) -> Tensor:
    """One tensor, whole, as it is stored. Raises CheckpointError."""
    buffer = torch.empty(_size(info), dtype=torch.uint8, pin_memory=page_locked)
    view = buffer.numpy().data
    done = 0
    with readable(info.file), info.file.open("rb", buffering=0) as stream:
        while done < len(view):
            count = os.preadv(stream.fileno(), [view[done:]], info.start + done)
            if not count:
                message = f"{info.file.name} became shorter while it was read; {info.name} is cut off."
                raise CheckpointError(error("TDM-FILE-CHANGED", message, file=info.file, where=info.name))
            done += count
    return buffer.view(torch_dtype(info)).view(info.shape)


def torch_dtype(info: TensorInfo) -> torch.dtype:
    """Raises CheckpointError for a dtype that torch does not have."""
    if info.dtype not in TORCH_DTYPES:
        message = f"{info.name} is stored as {info.dtype}, which is not read here."
        raise CheckpointError(error("TDM-DTYPE-NOT-READABLE", message, file=info.file, where=info.name))
    return TORCH_DTYPES[info.dtype]


def _size(info: TensorInfo) -> int:
    return info.end - info.start
