"""Tensors are read ahead within a window, and always arrive, in whatever order they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_worker.checkpoint import CheckpointError, TensorInfo
from tandem_worker.checkpoint.header import rows_of
from tandem_worker.models import reader
from tandem_worker.models.reader import Reader
from unit.serving import wait_for

SIZES = [1, 5, 64, 3, 200, 8, 40, 2]


@pytest.fixture(scope="module")
def infos(tmp_path_factory: pytest.TempPathFactory) -> list[TensorInfo]:
    """Tensor i is SIZES[i] bytes of value i, behind each other in one file."""
    file = tmp_path_factory.mktemp("reader") / "shard"
    file.write_bytes(b"".join(bytes([i]) * size for i, size in enumerate(SIZES)))
    starts = [sum(SIZES[:i]) for i in range(len(SIZES))]
    return [
        TensorInfo(f"t{i}", "U8", (size,), file, start, start + size)
        for i, (size, start) in enumerate(zip(SIZES, starts, strict=True))
    ]


@given(
    st.lists(st.integers(0, len(SIZES) - 1), unique=True),
    st.permutations(range(len(SIZES))),
    st.integers(1, 300),
    st.integers(1, 3),
)
@settings(max_examples=60)
def test_every_tensor_arrives_in_any_order_with_any_window(
    infos: list[TensorInfo], expected: list[int], asked: list[int], window: int, threads: int
) -> None:
    with Reader(window, threads=threads) as opened:
        opened.expect(infos[i] for i in expected)
        for i in asked:
            assert opened.take(infos[i]).tolist() == [i] * SIZES[i]
        assert opened.bytes_read == sum(SIZES)  # each once


def test_no_more_than_the_window_is_read_ahead(infos: list[TensorInfo], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def watched(info: TensorInfo, page_locked: bool = False) -> torch.Tensor:
        read.append(info.name)
        return original(info, page_locked)

    original = reader.read
    monkeypatch.setattr(reader, "read", watched)
    with Reader(window_bytes=75) as opened:  # holds the first four
        opened.expect(infos)
        opened.take(infos[3])
        opened.take(infos[0])
        wait_for(lambda: len(read) >= 4)
    assert sorted(read) == ["t0", "t1", "t2", "t3"]


def test_what_is_wanted_next_goes_before_what_was_expected(infos: list[TensorInfo]) -> None:
    with Reader(window_bytes=1, threads=1) as opened:
        opened.expect(infos[4:6])
        opened.expect([infos[0]], next=True)
        assert opened.take(infos[0]).tolist() == [0]
        assert opened.take(infos[5]).tolist() == [5] * SIZES[5]


def test_rows_are_a_tensor_of_their_own(tmp_path: Path) -> None:
    values = torch.arange(12, dtype=torch.int32).view(4, 3)
    file = tmp_path / "shard"
    file.write_bytes(b"head" + values.numpy().tobytes())
    info = TensorInfo("t", "I32", (4, 3), file, 4, 4 + 48)
    assert torch.equal(reader.read(rows_of(info, 1, 3)), values[1:3])


@pytest.mark.parametrize("expected", [True, False])
def test_a_file_that_became_shorter_is_named(tmp_path: Path, expected: bool) -> None:
    file = tmp_path / "shard.safetensors"
    file.write_bytes(bytes(10))
    info = TensorInfo("late", "U8", (20,), file, 0, 20)
    with Reader(100) as opened:
        opened.expect([info] if expected else [])
        with pytest.raises(CheckpointError, match=r"shard.safetensors became shorter while it was read; late"):
            opened.take(info)


@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("failure", [RuntimeError("cudaHostAlloc: out of memory"), MemoryError("2 GiB")])
def test_whatever_a_reading_ends_in_is_told_to_who_waits_for_it(
    infos: list[TensorInfo], monkeypatch: pytest.MonkeyPatch, failure: Exception, expected: bool
) -> None:
    original = reader.read

    def sometimes(info: TensorInfo, page_locked: bool = False) -> torch.Tensor:
        if info is infos[1]:
            raise failure
        return original(info, page_locked)

    monkeypatch.setattr(reader, "read", sometimes)
    with Reader(1000, threads=1) as opened:
        opened.expect(infos if expected else [])
        with pytest.raises(type(failure), match=str(failure)):
            opened.take(infos[1])
        assert opened.take(infos[2]).tolist() == [2] * SIZES[2], "the thread reads on"


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with Reader(100) as opened, pytest.raises(CheckpointError, match=r"gone.safetensors does not exist"):
        opened.take(TensorInfo("t", "U8", (1,), tmp_path / "gone.safetensors", 0, 1))
