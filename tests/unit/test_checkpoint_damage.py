"""A damaged checkpoint ends in a finding that says what is wrong with which file."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_worker.checkpoint import CheckpointError, open_checkpoint
from tandem_worker.checkpoint.header import DTYPE_BITS, parse_shard
from tandem_worker.contract import Finding, Severity, Verdict
from unit.pairs import drafter_files, target_files, with_header, write_shard

SHARD = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return target_files().write(tmp_path / "target")


def refusal(folder: Path) -> tuple[Finding, ...]:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert caught.value.verdict is Verdict.COULD_NOT_CHECK
    assert all(finding.severity is Severity.ERROR and finding.message for finding in caught.value.findings)
    return caught.value.findings


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> bytes:
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": offsets}).encode()


def cut(count: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:count]


@pytest.mark.parametrize(
    ("damage", "code", "says"),
    [
        (lambda data: b"", "TDM-SHARD-ZERO-BYTES", "zero bytes"),
        (cut(5), "TDM-SHARD-TRUNCATED", "ends after 5 bytes"),
        (cut(100), "TDM-SHARD-TRUNCATED", "inside its header"),
        (lambda data: data[:-1], "TDM-SHARD-TRUNCATED", "truncated"),
        (lambda data: data + b"\0", "TDM-SHARD-TOO-LONG", "longer than its header says"),
        (lambda data: bytes(4096), "TDM-SHARD-ALL-ZEROS", "zeros only"),
        (
            lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "TDM-SHARD-IS-LFS-POINTER",
            "git lfs pull",
        ),
        (lambda data: b"\n<!DOCTYPE html><html>Sign in</html>", "TDM-SHARD-IS-WEB-PAGE", "web page"),
        (lambda data: b"<?xml version='1.0'?><Error>AccessDenied</Error>", "TDM-SHARD-IS-WEB-PAGE", "web page"),
        (lambda data: b"PK\x03\x04" + bytes(100), "TDM-SHARD-IS-PICKLE", "never opened"),
        (lambda data: b"\x80\x02}q\x00" + bytes(100), "TDM-SHARD-IS-PICKLE", "never opened"),
        (lambda data: b"some other kind of file", "TDM-SHARD-NOT-SAFETENSORS", "not a safetensors file"),
        (lambda data: with_header(b"{}"), "TDM-SHARD-EMPTY", "without any tensor"),
        (lambda data: with_header(b'{"__metadata__": {"format": "pt"}}'), "TDM-SHARD-EMPTY", "without any tensor"),
        (lambda data: with_header(b'{"a": '), "TDM-SHARD-HEADER-MALFORMED", "line 1, column"),
        (
            lambda data: with_header(b'{"a": ' + entry() + b', "a": ' + entry() + b"}", bytes(8)),
            "TDM-SHARD-HEADER-MALFORMED",
            "'a' stands twice",
        ),
        (
            lambda data: with_header(b'{"a": ' + entry("F31") + b"}", bytes(8)),
            "TDM-SHARD-HEADER-MALFORMED",
            "F31 is unknown",
        ),
        (
            lambda data: with_header(b'{"a": ' + entry(shape=[3]) + b"}", bytes(8)),
            "TDM-SHARD-HEADER-MALFORMED",
            "[3] of F32",
        ),
        (
            lambda data: with_header(b'{"a": ' + entry(offsets=[4, 12]) + b"}", bytes(12)),
            "TDM-SHARD-HEADER-MALFORMED",
            "hole",
        ),
        (
            lambda data: with_header(b'{"a": ' + entry() + b', "b": ' + entry(offsets=[4, 12]) + b"}", bytes(12)),
            "TDM-SHARD-HEADER-MALFORMED",
            "overlaps",
        ),
    ],
)
def test_each_kind_of_damage_to_a_shard_is_told_apart(
    folder: Path, damage: Callable[[bytes], bytes], code: str, says: str
) -> None:
    shard = folder / SHARD
    shard.write_bytes(damage(shard.read_bytes()))
    (finding,) = refusal(folder)
    assert finding.code == code
    assert says in finding.message
    assert finding.file == str(shard)


def test_a_whole_shard_is_read_with_absolute_offsets(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    tensor = checkpoint.tensors["model.norm.weight"]
    data = (folder / SHARD).read_bytes()[tensor.start : tensor.end]
    assert tensor.shape == (16,)
    assert np.array_equal(np.frombuffer(data, np.float32), target_files().tensors["model.norm.weight"])


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (b"", "TDM-CONFIG-MALFORMED", "it is empty"),
        (b'{\n  "hidden_size": 16,\n  "layers" 8\n}', "TDM-CONFIG-MALFORMED", "line 3, column 12"),
        (b"[1, 2]", "TDM-CONFIG-MALFORMED", "holds a list"),
        (b'{"a": 1, "a": 2}', "TDM-CONFIG-MALFORMED", "'a' stands twice"),
        (b'{"a": "\xff"}', "TDM-CONFIG-MALFORMED", "not UTF-8"),
        (b"[" * 100_000, "TDM-CONFIG-MALFORMED", "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "TDM-CONFIG-MALFORMED", "digits"),
    ],
)
def test_a_malformed_config_is_named_with_the_place(folder: Path, text: bytes, code: str, says: str) -> None:
    (folder / "config.json").write_bytes(text)
    (finding,) = refusal(folder)
    assert (finding.code, finding.file) == (code, str(folder / "config.json"))
    assert says in finding.message


def test_folders_that_hold_no_checkpoint(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere")[0].code == "TDM-FILE-MISSING"
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty")[0].code == "TDM-FOLDER-EMPTY"
    (tmp_path / "file").write_text("x")
    assert refusal(tmp_path / "file")[0].code == "TDM-NOT-A-FOLDER"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("x")
    assert "README.md" in refusal(tmp_path / "other")[0].message


def test_a_config_one_level_down_is_pointed_at(folder: Path) -> None:
    (finding,) = refusal(folder.parent)
    assert finding.code == "TDM-CONFIG-ONE-LEVEL-DOWN"
    assert str(folder) in finding.action


def test_a_checkpoint_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert refusal(folder)[0].code == "TDM-CONFIG-MISSING"


def test_a_pickle_only_checkpoint_is_named_and_never_opened(folder: Path) -> None:
    (folder / SHARD).unlink()
    os.mkfifo(folder / "pytorch_model.bin")  # opening it would hang
    (finding,) = refusal(folder)
    assert finding.code == "TDM-PICKLE-ONLY"
    assert "pytorch_model.bin" in finding.message


def test_a_checkpoint_without_weights(folder: Path) -> None:
    (folder / SHARD).unlink()
    assert refusal(folder)[0].code == "TDM-WEIGHTS-MISSING"


def test_a_folder_that_may_not_be_read() -> None:
    shared = Path(tempfile.mkdtemp())
    shared.chmod(0o755)
    try:
        folder = target_files().write(shared / "target")
        folder.chmod(0)
        previous = os.geteuid()
        if previous == 0:
            os.seteuid(65534)  # root may read everything
        try:
            findings = refusal(folder)
        finally:
            os.seteuid(previous)
        folder.chmod(0o755)
        assert findings[0].code == "TDM-PERMISSION-DENIED"
        assert findings[0].file == str(folder)
    finally:
        shutil.rmtree(shared)


def sharded(folder: Path) -> dict[str, str]:
    """Splits the weights over three shards; returns the index's map."""
    tensors = target_files().tensors
    names = sorted(tensors)
    (folder / SHARD).unlink()
    index: dict[str, str] = {}
    for i in range(3):
        part = {name: tensors[name] for name in names[i::3]}
        shard = f"model-{i}.safetensors"
        write_shard(folder / shard, part)
        index |= dict.fromkeys(part, shard)
    return index


def write_index(folder: Path, index: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))


def test_shards_with_an_index_are_one_checkpoint(folder: Path) -> None:
    whole = open_checkpoint(folder).tensors.keys()
    write_index(folder, sharded(folder))
    assert open_checkpoint(folder).tensors.keys() == whole


def test_all_damaged_shards_are_told_at_once(folder: Path) -> None:
    write_index(folder, sharded(folder))
    (folder / "model-0.safetensors").unlink()
    (folder / "model-2.safetensors").write_bytes(b"")
    assert [(finding.code, Path(finding.file).name) for finding in refusal(folder)] == [
        ("TDM-SHARD-MISSING", "model-0.safetensors"),
        ("TDM-SHARD-ZERO-BYTES", "model-2.safetensors"),
    ]


def test_an_index_that_disagrees_with_the_headers(folder: Path) -> None:
    index = sharded(folder)
    write_index(folder, index | {"model.norm.weight": "model-0.safetensors", "lm_head.bias": "model-1.safetensors"})
    (finding,) = refusal(folder)
    assert finding.code == "TDM-INDEX-DISAGREES"
    assert "lm_head.bias" in finding.message


def test_an_index_that_lacks_a_tensor_is_noted_only(folder: Path) -> None:
    index = sharded(folder)
    del index["model.norm.weight"]
    write_index(folder, index)
    assert [finding.code for finding in open_checkpoint(folder).findings] == ["TDM-INDEX-INCOMPLETE"]


@pytest.mark.parametrize("index", [None, {}, {"a": 1}, {"a": "../elsewhere.safetensors"}, {"a": "/etc/passwd"}])
def test_an_index_that_names_no_files_of_the_folder(folder: Path, index: object) -> None:
    write_index(folder, index)
    assert refusal(folder)[0].code == "TDM-INDEX-MALFORMED"


def test_one_tensor_in_two_files_without_an_index(folder: Path) -> None:
    shutil.copy(folder / SHARD, folder / "model-copy.safetensors")
    (finding,) = refusal(folder)
    assert finding.code == "TDM-TENSOR-TWICE"
    assert "model-copy.safetensors" in finding.message


# --- any bytes at all ------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(sorted(DTYPE_BITS)) | JSON,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | JSON,
    },
)


def headers_or_refusal(data: bytes) -> None:
    try:
        shard = parse_shard(BytesIO(data), len(data), Path("x.safetensors"))
    except CheckpointError as failure:
        json.dumps(asdict(failure.finding))
    else:
        assert max(tensor.end for tensor in shard.tensors.values()) == len(data)


@given(st.binary(max_size=200))
def test_any_bytes_give_headers_or_a_refusal(data: bytes) -> None:
    headers_or_refusal(data)


@given(st.dictionaries(st.text(max_size=8), ENTRY | JSON, max_size=4) | JSON, st.binary(max_size=40))
def test_any_header_gives_headers_or_a_refusal(header: object, data: bytes) -> None:
    headers_or_refusal(with_header(json.dumps(header).encode(), data))


@given(st.data())
def test_a_healthy_file_with_one_changed_byte_gives_headers_or_a_refusal(data: st.DataObject) -> None:
    header = b'{"a": ' + entry() + b', "d2t": ' + entry("I64", [1], [8, 16]) + b"}"
    healthy = bytearray(with_header(header, bytes(16)))
    healthy[data.draw(st.integers(0, len(healthy) - 1))] = data.draw(st.integers(0, 255))
    headers_or_refusal(bytes(healthy))


def test_a_drafter_is_opened_as_a_target_is(tmp_path: Path) -> None:
    assert "d2t" in open_checkpoint(drafter_files().write(tmp_path / "drafter")).tensors
