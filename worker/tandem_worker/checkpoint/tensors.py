"""Reads single tensors, or some of their rows, with numpy alone: static validation never loads torch."""

from __future__ import annotations

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
