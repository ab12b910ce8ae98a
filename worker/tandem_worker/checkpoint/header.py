"""Headers of safetensors files: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.

Only the header is read. It must account for every byte of the file: a file that is cut or too long shows here, before
anything is loaded. Messages do not come from the safetensors library, whose wording changes between versions and which
opens a header without tensors, or with a key twice, without complaint.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from tandem_worker.checkpoint import strict_json
from tandem_worker.checkpoint.errors import CheckpointError, error, printable
from tandem_worker.checkpoint.files import readable

LENGTH_BYTES = 8
LARGEST_HEADER_BYTES = 100_000_000  # the format's own limit
LARGEST_RANK = 32
LARGEST_SIZE = 2**63 - 1
FIELDS = itemgetter("dtype", "shape", "data_offsets")

Shape: TypeAlias = tuple[int, ...]
Spans: TypeAlias = npt.NDArray[np.int64]  # [tensors, 2]: begin and end behind the header

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


def rows_of(info: TensorInfo, first: int, end: int) -> TensorInfo:
    """Rows of the first dimension as a tensor of their own."""
    row_bytes = (info.end - info.start) // info.shape[0]
    start = info.start + first * row_bytes
    name, shape = f"{info.name}[{first}:{end}]", (end - first, *info.shape[1:])
    return info._replace(name=name, shape=shape, start=start, end=start + (end - first) * row_bytes)


class ShardTensors(Mapping[str, TensorInfo]):
    """The tensors of one file by name, kept as columns: few of a large target's are ever asked for."""

    def __init__(self, file: Path, names: Iterable[str], dtypes: list[str], shapes: list[Shape], places: Spans) -> None:
        """`places` [tensors, 2]: begin and end from the beginning of the file."""
        self._file, self._dtypes, self._shapes, self._places = file, dtypes, shapes, places
        self._rows = dict(zip(names, range(len(dtypes)), strict=True))

    def __getitem__(self, name: str) -> TensorInfo:
        row = self._rows[name]
        start, end = self._places[row].tolist()
        return TensorInfo(name, self._dtypes[row], self._shapes[row], self._file, start, end)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True)
class Shard:
    """One safetensors file."""

    file: Path
    size_bytes: int
    header_sha256: str
    tensors: ShardTensors


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
        raise _damaged(file, "TDM-SHARD-HEADER-MALFORMED", f"has a broken header: {failure}") from None
    if not isinstance(entries, Mapping):
        raise _damaged(file, "TDM-SHARD-HEADER-MALFORMED", "has a header that is not a JSON object")
    described = {name: entry for name, entry in entries.items() if name != "__metadata__"}
    tensors = _tensors(described, file, data_start=LENGTH_BYTES + length, size_bytes=size_bytes)
    return Shard(file, size_bytes, hashlib.sha256(header).hexdigest(), tensors)


def _not_safetensors(start: bytes, size_bytes: int) -> tuple[str, str] | None:
    """(code, what the file is) when it does not even begin like a safetensors file."""
    text = start.lstrip().lower()
    if size_bytes == 0:
        return "TDM-SHARD-ZERO-BYTES", "has zero bytes"
    if start.startswith(b"version https://git-lfs"):
        return "TDM-SHARD-IS-LFS-POINTER", "is a Git LFS pointer, not the file it points to: run `git lfs pull`"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return (
            "TDM-SHARD-IS-WEB-PAGE",
            "is a web page (HTML or XML): the download answered with an error or a login page",
        )
    if not any(start):
        return "TDM-SHARD-ALL-ZEROS", "begins with zeros only: the space was reserved but never written"
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04", b"\x80\x05")) and start[8:9] != b"{":
        return (
            "TDM-SHARD-IS-PICKLE",
            "is a pickle under another name; pickles run code when opened and are never opened",
        )
    if size_bytes < LENGTH_BYTES:
        return "TDM-SHARD-TRUNCATED", f"ends after {size_bytes} bytes, inside its header"
    (length,) = struct.unpack("<Q", start[:LENGTH_BYTES])
    if start[8:9] != b"{" or length > LARGEST_HEADER_BYTES:
        return "TDM-SHARD-NOT-SAFETENSORS", "is not a safetensors file (no header)"
    if LENGTH_BYTES + length > size_bytes:
        return "TDM-SHARD-TRUNCATED", f"ends after {size_bytes} bytes, inside its header of {length} bytes"
    return None


def _tensors(entries: Mapping[str, Any], file: Path, data_start: int, size_bytes: int) -> ShardTensors:
    """The header is tested as a whole, column by column: a large target has hundreds of thousands of entries. Only when
    that fails are the entries looked at one by one, to name the one that is wrong.
    """
    columns = _columns(entries)
    if columns is None:
        raise _fault(entries, file)
    dtypes, shapes, spans = columns
    _check_cover(list(entries), spans, data_start, size_bytes, file)
    return ShardTensors(file, entries, dtypes, shapes, spans + data_start)


def _columns(entries: Mapping[str, Any]) -> tuple[list[str], list[Shape], Spans] | None:
    """dtypes, shapes and [n, 2] offsets; None when any entry is not as the format says. Equal values are one object.

    Each line is a loop in C over all entries.
    """
    try:
        raw_dtypes, raw_shapes, offsets = zip(*map(FIELDS, entries.values()), strict=True) if entries else ((), (), ())
        dtypes = list(map(sys.intern, raw_dtypes))
        lists = set(map(type, chain(raw_shapes, offsets))) <= {list} and set(map(len, offsets)) <= {2}
        # True and 1.0 equal 1, so types are looked at before values.
        integers = set(map(type, chain(chain.from_iterable(raw_shapes), chain.from_iterable(offsets)))) <= {int}
        if not (lists and integers and _is_text("".join(entries))):
            return None
        spans = np.fromiter(chain.from_iterable(offsets), dtype=np.int64, count=2 * len(offsets)).reshape(-1, 2)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    seen: dict[Shape, Shape] = {}
    shapes = list(map(tuple, raw_shapes))
    shapes = list(map(seen.setdefault, shapes, shapes))
    size_of = {kind: size_bytes_of(*kind) for kind in set(zip(dtypes, shapes, strict=True))}
    if None in size_of.values() or (spans < 0).any():
        return None
    sizes = np.array(list(map(size_of.__getitem__, zip(dtypes, shapes, strict=True))), dtype=np.int64)
    return (dtypes, shapes, spans) if np.array_equal(spans[:, 1] - spans[:, 0], sizes) else None


def size_bytes_of(dtype: str, shape: Shape) -> int | None:
    """Bytes of a tensor; None when there can be none such."""
    if dtype not in DTYPE_BITS or len(shape) > LARGEST_RANK or min(shape, default=0) < 0:
        return None
    bits = prod(shape) * DTYPE_BITS[dtype]
    return None if bits % 8 or bits // 8 > LARGEST_SIZE else bits // 8


def _fault(entries: Mapping[str, Any], file: Path) -> CheckpointError:
    for name, entry in entries.items():
        reason = _entry_fault(entry) if _is_text(name) else "its name is not valid text"
        if reason:
            return _entry_damaged(file, name, reason)
    raise AssertionError(f"{file}: the header fails as a whole, and no entry does")


def _entry_fault(entry: Any) -> str:
    """Why an entry of a header is not as the format says; empty when it is."""
    if not isinstance(entry, Mapping):
        return "its entry is not an object"
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return f"its dtype {printable(dtype, 40)} is unknown"
    if not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return "its shape or its offsets are not lists of sizes"
    begin, end = offsets
    if size_bytes_of(dtype, tuple(shape)) != end - begin:
        return f"shape {list(shape)} of {dtype} does not fill its {end - begin} bytes"
    return ""


def _is_text(name: str) -> bool:
    """Half of a surrogate pair can be written in JSON, and nowhere else."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    """Non-negative 64-bit integers, not more of them than any tensor has dimensions."""
    if not isinstance(value, list) or len(value) > LARGEST_RANK or not {type(item) for item in value} <= {int}:
        return False
    return not value or (min(value) >= 0 and max(value) <= LARGEST_SIZE)


def _check_cover(names: list[str], spans: Spans, data_start: int, size_bytes: int, file: Path) -> None:
    """The tensors must cover the bytes behind the header without hole, overlap, lack or rest."""
    if not names:
        raise _damaged(file, "TDM-SHARD-EMPTY", "has a header without any tensor")
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    starts, ends = spans[order].T
    reached = np.concatenate(([0], ends[:-1]))
    for i in np.flatnonzero(starts != reached)[:1]:
        kind = "overlaps the tensor before it" if starts[i] < reached[i] else "leaves a hole before it"
        raise _entry_damaged(file, names[order[i]], kind)
    reached_bytes = data_start + int(ends[-1])
    found, expected = f"{size_bytes} bytes", f"{reached_bytes} bytes"
    if size_bytes < reached_bytes:
        action = "The download or copy was cut off: fetch the file again."
        raise _damaged(file, "TDM-SHARD-TRUNCATED", "is truncated", found=found, expected=expected, action=action)
    if size_bytes > reached_bytes:
        action = "Something was appended or two files were mixed: fetch the file again."
        raise _damaged(file, "TDM-SHARD-TOO-LONG", "is longer than its header says", found, expected, action)


def _entry_damaged(file: Path, name: str, reason: str) -> CheckpointError:
    return _damaged(file, "TDM-SHARD-HEADER-MALFORMED", f"has a broken header: tensor {printable(name, 120)}: {reason}")


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
