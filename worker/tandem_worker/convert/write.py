"""Writes one safetensors file by streaming: header first, then the bytes of each tensor from where they lie."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tandem_worker.checkpoint import CheckpointError
from tandem_worker.checkpoint.errors import error
from tandem_worker.checkpoint.files import readable
from tandem_worker.checkpoint.header import DTYPE_BITS
from tandem_worker.convert.draft import Entry

CHUNK_BYTES = 8 * 1024 * 1024
ALIGNMENT_BYTES = 8


def write_tensors(file: Path, tensors: Mapping[str, Entry]) -> None:
    """In the order of the safetensors library, wide dtypes first and then by name, so that data stays aligned.

    Raises CheckpointError when a source can not be read or became shorter, OSError when the copy can not be written.
    """
    order = sorted(tensors, key=lambda name: (-DTYPE_BITS[tensors[name].source.dtype], name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        source, data = tensors[name]
        start, end = end, end + (source.end - source.start if data is None else len(data))
        header[name] = {"dtype": source.dtype, "shape": list(source.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    with file.open("xb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            _copy(tensors[name], out)


def _copy(entry: Entry, out: BinaryIO) -> None:
    if entry.data is not None:
        out.write(entry.data)
        return
    tensor = entry.source
    with readable(tensor.file):
        stream = tensor.file.open("rb")
    with stream:
        stream.seek(tensor.start)
        left = tensor.end - tensor.start
        while left:
            with readable(tensor.file):
                part = stream.read(min(left, CHUNK_BYTES))
            if not part:
                message = f"{tensor.file.name} became shorter while it was read; {tensor.name} is cut off."
                raise CheckpointError(error("TDM-FILE-CHANGED", message, file=tensor.file, where=tensor.name))
            out.write(part)
            left -= len(part)
