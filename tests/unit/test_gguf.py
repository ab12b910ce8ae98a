"""SmolLM2 from llama.cpp's file: blocks are read by their formula, and what is no such file is told."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from smollm2.convert import apart
from smollm2.gguf import Gguf, GgufError


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(folder: Path, kind: int, shape: tuple[int, ...], data: bytes) -> Path:
    """One tensor `x`, and a few kinds of metadata."""
    pairs = [
        text("name") + struct.pack("<I", 8) + text("tiny"),
        text("count") + struct.pack("<II", 4, 7),
        text("list") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
    ]
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(pairs)) + b"".join(pairs)
    head += text("x") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, 0)
    file = folder / "x.gguf"
    file.write_bytes(head + bytes(-len(head) % 32) + data)
    return file


def test_metadata_and_plain_floats(tmp_path: Path) -> None:
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    file = Gguf(gguf(tmp_path, 0, (2, 3), values.tobytes()))
    assert file.metadata == {"name": "tiny", "count": 7, "list": ["a", "b"]}
    assert np.array_equal(file.read("x"), values)


def test_blocks_of_8_and_of_4_bits(tmp_path: Path) -> None:
    quants = np.arange(-16, 16, dtype=np.int8)
    eight = Gguf(gguf(tmp_path, 8, (1, 32), np.float16(0.5).tobytes() + quants.tobytes())).read("x")
    assert np.array_equal(eight[0], quants * 0.5)
    low, high = np.arange(16, dtype=np.uint8), np.arange(16, dtype=np.uint8)[::-1]
    packed = np.float16(0.25).tobytes() + np.float16(-1).tobytes() + (low | high << 4).tobytes()
    four = Gguf(gguf(tmp_path, 3, (1, 32), packed)).read("x")
    assert np.array_equal(four[0], np.concatenate([low, high]) * 0.25 - 1)


@pytest.mark.parametrize(
    ("kind", "data", "says"), [(8, b"\0" * 33, "ends behind the end"), (2, b"\0" * 18, "has type 2")]
)
def test_what_can_not_be_read_is_told(tmp_path: Path, kind: int, data: bytes, says: str) -> None:
    with pytest.raises(GgufError, match=says):
        Gguf(gguf(tmp_path, kind, (1, 32), data)).read("x")
    with pytest.raises(GgufError, match="y is missing"):
        Gguf(gguf(tmp_path, kind, (1, 32), data)).read("y")


@pytest.mark.parametrize("length", [0, 3, 20, 60])
def test_a_file_that_is_cut_off_or_another_is_told(tmp_path: Path, length: int) -> None:
    file = gguf(tmp_path, 0, (1,), b"\0\0\0\0")
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(GgufError, match="in the middle of its header"):
        Gguf(file)
    file.write_bytes(b"PK" + bytes(100))
    with pytest.raises(GgufError, match="not a GGUF file"):
        Gguf(file)


def test_rotary_pairs_go_back_to_halves() -> None:
    """As llama.cpp's converter parted them, the other way round."""
    weight = torch.arange(2 * 8 * 3).view(16, 3)
    together = weight.view(2, 2, 4, 3).transpose(1, 2).reshape(16, 3)
    assert torch.equal(apart(together, heads=2), weight)
