"""Headers of safetensors files: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.

Only the header is read. It must account for every byte of the file: a file that is cut or too long shows here, before
anything is loaded. Messages do not come from the safetensors library, whose wording changes between versions and which
opens a header without tensors, or with a key twice, without complaint.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeGuard

from tandem_worker.checkpoint import strict_json
from tandem_worker.checkpoint.errors import CheckpointError, error, printable
from tandem_worker.checkpoint.files import readable

LENGTH_BYTES = 8
LARGEST_HEADER_BYTES = 100_000_000  # the format's own limit
LARGEST_RANK = 32

DTYPE_BITS: Mapping[str, int] = {
    name: bits
    for bits, names in {
        4: "F4",
        6: "F6_E2M3 F6_E3M2",
        8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        16: "U16 I16 F16 BF16",
        32: "U32 I32 F32",
        64: "U64 I64 F64 C64",
    }.items()
    for name in names.split()
}


class TensorInfo(NamedTuple):
    """Where a tensor lies. `start` and `end` are byte offsets from the beginning of `file`."""

    name: str
    dtype: str  # as safetensors writes it: BF16, F32, I64, BOOL, ...
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


@dataclass(frozen=True)
class Shard:
    """One safetensors file."""

    file: Path
    size_bytes: int
    header_sha256: str
    tensors: tuple[TensorInfo, ...]


def read_shard(file: Path) -> Shard:
    """Raises CheckpointError that tells the kinds of damage apart."""
    with readable(file), file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        return parse_shard(stream, size, file)


def parse_shard(stream: BinaryIO, size_bytes: int, file: Path) -> Shard:
    start = stream.read(512)
    damage = _not_safetensors(start, size_bytes)
    if damage:
        raise _damaged(file, *damage)
    (length,) = struct.unpack("<Q", start[:LENGTH_BYTES])
    stream.seek(LENGTH_BYTES)
    header = stream.read(length)
    try:
        entries = strict_json.parse(header)
    except strict_json.JsonError as failure:
        raise _damaged(file, "ShardHeaderMalformed", f"has a broken header: {failure}") from None
    if not isinstance(entries, Mapping):
        raise _damaged(file, "ShardHeaderMalformed", "has a header that is not a JSON object")
    data_start = LENGTH_BYTES + length
    tensors = [_tensor(name, entry, file, data_start) for name, entry in entries.items() if name != "__metadata__"]
    _check_cover(tensors, data_start, size_bytes, file)
    return Shard(file, size_bytes, hashlib.sha256(header).hexdigest(), tuple(tensors))


def _not_safetensors(start: bytes, size_bytes: int) -> tuple[str, str] | None:
    """(code, what the file is) when it does not even begin like a safetensors file."""
    text = start.lstrip().lower()
    if size_bytes == 0:
        return "ShardZeroBytes", "has zero bytes"
    if start.startswith(b"version https://git-lfs"):
        return "ShardIsLfsPointer", "is a Git LFS pointer, not the file it points to: run `git lfs pull`"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "ShardIsWebPage", "is a web page (HTML or XML): the download answered with an error or a login page"
    if not any(start):
        return "ShardAllZeros", "begins with zeros only: the space was reserved but never written"
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04", b"\x80\x05")) and start[8:9] != b"{":
        return "ShardIsPickle", "is a pickle under another name; pickles run code when opened and are never opened"
    if size_bytes < LENGTH_BYTES:
        return "ShardTruncated", f"ends after {size_bytes} bytes, inside its header"
    (length,) = struct.unpack("<Q", start[:LENGTH_BYTES])
    if start[8:9] != b"{" or length > LARGEST_HEADER_BYTES:
        return "ShardNotSafetensors", "is not a safetensors file (no header)"
    if LENGTH_BYTES + length > size_bytes:
        return "ShardTruncated", f"ends after {size_bytes} bytes, inside its header of {length} bytes"
    return None


def _tensor(name: str, entry: strict_json.Json, file: Path, data_start: int) -> TensorInfo:
    if not isinstance(entry, Mapping):
        raise _entry_damaged(file, name, "its entry is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _entry_damaged(file, name, f"its dtype {printable(dtype, 40)} is unknown")
    if not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _entry_damaged(file, name, "its shape or its offsets are not lists of sizes")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _entry_damaged(file, name, "its name is not valid text") from None
    bits = prod(shape) * DTYPE_BITS[dtype]
    begin, end = offsets
    if bits % 8 or bits // 8 != end - begin:
        raise _entry_damaged(file, name, f"shape {list(shape)} of {dtype} does not fill its {end - begin} bytes")
    return TensorInfo(name, dtype, tuple(shape), file, data_start + begin, data_start + end)


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    """Non-negative 64-bit integers, not more of them than any tensor has dimensions."""
    # Written for speed: a target of a trillion parameters has hundreds of thousands of tensors.
    if not isinstance(value, list) or len(value) > LARGEST_RANK or not {type(item) for item in value} <= {int}:
        return False
    return not value or (min(value) >= 0 and max(value) < 2**63)


def _check_cover(tensors: list[TensorInfo], data_start: int, size_bytes: int, file: Path) -> None:
    """The tensors must cover the bytes behind the header without hole, overlap, lack or rest."""
    if not tensors:
        raise _damaged(file, "ShardEmpty", "has a header without any tensor")
    reached = data_start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != reached:
            kind = "overlaps the tensor before it" if tensor.start < reached else "leaves a hole before it"
            raise _entry_damaged(file, tensor.name, kind)
        reached = tensor.end
    found, expected = f"{size_bytes} bytes", f"{reached} bytes"
    if size_bytes < reached:
        action = "The download or copy was cut off: fetch the file again."
        raise _damaged(file, "ShardTruncated", "is truncated", found=found, expected=expected, action=action)
    if size_bytes > reached:
        action = "Something was appended or two files were mixed: fetch the file again."
        raise _damaged(file, "ShardTooLong", "is longer than its header says", found, expected, action)


def _entry_damaged(file: Path, name: str, reason: str) -> CheckpointError:
    return _damaged(file, "ShardHeaderMalformed", f"has a broken header: tensor {printable(name, 120)}: {reason}")


def _damaged(
    file: Path,
    code: str,
    what: str,
    found: str = "",
    expected: str = "",
    action: str = "Fetch the file again from where the checkpoint was published.",
) -> CheckpointError:
    figures = f" ({found}, expected {expected})" if found else ""
    message = f"{file.name} {what}{figures}."
    return CheckpointError(error(code, message, file=file, found=found, expected=expected, action=action))
