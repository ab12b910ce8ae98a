"""What the disk gives to plain threads, for `probe.py`; and what of its files lies in memory already."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

CHUNK_BYTES = 16 * 2**20
READERS = (4, 16)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def drop_from_cache(folder: Path) -> None:
    """Of files that are on the disk and that nobody has mapped; `cached_share` says whether it was so."""
    for file in shards(folder):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(folder: Path) -> float | None:
    """Of all shards what lies in the page cache, by mincore(2); None where the kernel does not tell. A cache outside of
    this machine is not seen.
    """
    libc = ctypes.CDLL(None)
    cached = pages = 0
    for file in shards(folder):
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            there = np.zeros(-(-len(mapped) // mmap.PAGESIZE), dtype=np.uint8)
            first = ctypes.c_char.from_buffer(mapped)
            failed = libc.mincore(
                ctypes.byref(first), ctypes.c_size_t(len(mapped)), there.ctypes.data_as(ctypes.c_void_p)
            )
            del first  # it keeps the map from being closed
        if failed:
            return None
        cached, pages = cached + int((there & 1).sum()), pages + len(there)
    return round(cached / pages, 4)


def read_plainly(folder: Path, threads: int) -> float:
    """Bytes per second of reading all shards."""
    chunks = [(file, start) for file in shards(folder) for start in range(0, file.stat().st_size, CHUNK_BYTES)]
    buffers = [bytearray(CHUNK_BYTES) for _ in range(threads)]

    def read(worker: int) -> int:
        done = 0
        for file, start in chunks[worker::threads]:
            with file.open("rb", buffering=0) as opened:
                done += os.preadv(opened.fileno(), [buffers[worker]], start)
        return done

    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(read, range(threads)))
    return done / (time.monotonic() - began)


def disk_speed(folder: Path, cold: bool) -> tuple[float, int]:
    """(bytes per second, threads) of the fastest."""
    speeds = {}
    for threads in READERS:
        if cold:
            drop_from_cache(folder)
        speeds[threads] = read_plainly(folder, threads)
    threads = max(speeds, key=lambda count: speeds[count])
    return speeds[threads], threads
