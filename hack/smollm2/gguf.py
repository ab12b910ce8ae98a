"""Reads a GGUF file (llama.cpp's format, version 3): its metadata, and its tensors as float32.

Of the quantised types only those that SmolLM2's file has: Q4_1 and Q8_0, blocks of 32 values (ggml-common.h):

    Q8_0    value = d * q                     d float16, 32 int8
    Q4_1    value = d * q + m                 d and m float16, 32 times 4 bits: low halves first, then high ones
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

BLOCK = 32
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


class GgufError(Exception):
    """The file is not what it should be; the message says where."""


def _f32(data: NDArray[np.uint8]) -> Floats:
    return data.view("<f4").astype(np.float32)


def _q8_0(data: NDArray[np.uint8]) -> Floats:
    blocks = data.reshape(-1, 2 + BLOCK)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)  # [N, 1]
    return (blocks[:, 2:].view(np.int8) * scale).ravel()


def _q4_1(data: NDArray[np.uint8]) -> Floats:
    blocks = data.reshape(-1, 4 + BLOCK // 2)
    scale, least = (blocks[:, i : i + 2].copy().view("<f2").astype(np.float32) for i in (0, 2))
    quants = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)  # [N, 32]
    return (quants * scale + least).ravel()


TYPES: dict[int, tuple[int, int, Callable[[NDArray[np.uint8]], Floats]]] = {
    0: (1, 4, _f32),
    3: (BLOCK, 20, _q4_1),
    8: (BLOCK, 34, _q8_0),
}
"""By ggml's number: values of a block, bytes of it, how it is read."""


@dataclass(frozen=True)
class Info:
    shape: tuple[int, ...]  # rows first, as torch has it
    kind: int
    offset: int  # bytes from the beginning of the data


class Gguf:
    def __init__(self, file: Path) -> None:
        """Raises GgufError."""
        empty = file.stat().st_size == 0  # which can not be mapped
        self._file, self._data = file, np.zeros(0, np.uint8) if empty else np.memmap(file, np.uint8, "r")
        self._at = 0
        if self._take("<I") != 0x46554747 or self._take("<I") != 3:
            raise GgufError(f"{file} is not a GGUF file of version 3")
        tensors, pairs = self._take("<Q"), self._take("<Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            name = self._string()
            self.metadata[name] = self._value(self._take("<I"))
        self.tensors: dict[str, Info] = {}
        for _ in range(tensors):
            name = self._string()
            shape = tuple(self._take("<Q") for _ in range(self._take("<I")))
            self.tensors[name] = Info(shape[::-1], self._take("<I"), self._take("<Q"))
        alignment = int(self.metadata.get("general.alignment", 32))
        self._begin = -(-self._at // alignment) * alignment

    def read(self, name: str) -> Floats:
        """Raises GgufError."""
        info = self.tensors.get(name)
        if info is None or info.kind not in TYPES:
            what = "is missing" if info is None else f"has type {info.kind}; of these {sorted(TYPES)} are read"
            raise GgufError(f"{self._file}: tensor {name} {what}")
        values, size, read = TYPES[info.kind]
        count = int(np.prod(info.shape))
        first = self._begin + info.offset
        data = self._data[first : first + count // values * size]
        if len(data) != count // values * size:
            raise GgufError(f"{self._file}: tensor {name} ends behind the end of the file")
        return read(np.asarray(data)).reshape(info.shape)

    def _take(self, form: str) -> Any:
        size = struct.calcsize(form)
        data = self._data[self._at : self._at + size].tobytes()
        if len(data) != size:
            raise GgufError(f"{self._file} ends at byte {len(self._data)}, in the middle of its header")
        self._at += size
        return struct.unpack(form, data)[0]

    def _string(self) -> str:
        length = self._take("<Q")
        return bytes(self._take(f"<{min(length, len(self._data))}s")).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._take("<I"), self._take("<Q")
            return [self._value(inner) for _ in range(count)]
        if kind not in SCALARS:
            raise GgufError(f"{self._file}: metadata of the unknown type {kind} at byte {self._at}")
        return self._take(SCALARS[kind])
