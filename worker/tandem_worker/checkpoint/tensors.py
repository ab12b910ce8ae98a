"""Reads single tensors, or some of their rows, with numpy alone: static validation never loads torch."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tandem_worker.checkpoint.errors import CheckpointError, error
from tandem_worker.checkpoint.files import readable
from tandem_worker.checkpoint.header import DTYPE_BITS, TensorInfo

Array: TypeAlias = npt.NDArray[Any]

INTEGERS = {"U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"}
# numpy has no BF16: its bits are read, then widened to float32.
FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}
NUMPY_DTYPES = {"BOOL": "?"} | INTEGERS | FLOATS


def read_tensor(tensor: TensorInfo) -> Array:
    """The whole tensor in its shape; BF16 as float32."""
    return _decode(tensor, _read(tensor, [(tensor.start, tensor.end)])).reshape(tensor.shape)


def read_rows(tensor: TensorInfo, rows: Sequence[int]) -> Array:
    """Rows of the first dimension, [len(rows), ...]; only their bytes are read."""
    row_bytes = prod(tensor.shape[1:]) * DTYPE_BITS[tensor.dtype] // 8
    spans = [(tensor.start + row * row_bytes, tensor.start + (row + 1) * row_bytes) for row in rows]
    return _decode(tensor, _read(tensor, spans)).reshape((len(rows), *tensor.shape[1:]))


BLOCK_BYTES = 4096


def unwritten(tensor: TensorInfo) -> bool:
    """Whether the file is sparse where this tensor lies: it was given its size, and nothing was ever written there.

    Copies of headers, made to look at a checkpoint without its weights, are such files.
    """
    first = -(-tensor.start // BLOCK_BYTES) * BLOCK_BYTES  # whole blocks: the others may hold a neighbour's bytes
    last = tensor.end // BLOCK_BYTES * BLOCK_BYTES
    with readable(tensor.file), tensor.file.open("rb") as stream:
        status = os.fstat(stream.fileno())
        if tensor.end == tensor.start or status.st_blocks * 512 >= status.st_size:
            return False
        if first >= last:
            stream.seek(tensor.start)
            return not any(stream.read(tensor.end - tensor.start))
        try:
            return os.lseek(stream.fileno(), first, os.SEEK_DATA) >= last
        except OSError as failure:  # ENXIO: no data from here to the end of the file
            return failure.errno == errno.ENXIO


def _read(tensor: TensorInfo, spans: list[tuple[int, int]]) -> bytes:
    parts = []
    with readable(tensor.file), tensor.file.open("rb") as stream:
        for start, end in spans:
            stream.seek(start)
            part = stream.read(end - start)
            if len(part) < end - start:
                message = f"{tensor.file.name} became shorter while it was read; {tensor.name} is cut off."
                raise CheckpointError(error("TDM-FILE-CHANGED", message, file=tensor.file, where=tensor.name))
            parts.append(part)
    return b"".join(parts)


def _decode(tensor: TensorInfo, data: bytes) -> Array:
    if tensor.dtype not in NUMPY_DTYPES:
        message = f"{tensor.name} is stored as {tensor.dtype}, which is not read here."
        raise CheckpointError(error("TDM-DTYPE-NOT-READABLE", message, file=tensor.file, where=tensor.name))
    values: Array = np.frombuffer(data, NUMPY_DTYPES[tensor.dtype])
    if tensor.dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values
