"""A fingerprint changes with what runs, and with nothing else."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tandem_worker.checkpoint import CheckpointError, fingerprint, open_checkpoint
from tandem_worker.checkpoint.fingerprint import BLOCK_BYTES, BLOCKS, SIDE_FILES, WHOLE_BYTES, sampled_blocks
from unit.pairs import DRAFT_VOCAB, Files, drafter_files, overwrite

module = sys.modules[sampled_blocks.__module__]  # the package has a function of its name


def of(folder: Path) -> str:
    return fingerprint(open_checkpoint(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return drafter_files().write(tmp_path / "drafter")


def test_the_same_content_elsewhere_is_the_same_checkpoint(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other" / "name"
    shutil.copytree(folder, copy)
    (copy / "README.md").write_text("Notes do not run.")
    assert of(copy) == of(folder)
    assert re.fullmatch("sha256:[0-9a-f]{64}", of(folder))


def test_a_changed_weight_config_or_tokenizer_is_another_checkpoint(folder: Path) -> None:
    seen = {of(folder)}
    overwrite(folder, "midlayer.mlp.up_proj.weight", b"\1")
    seen.add(of(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"norm_before_residual": True}))
    seen.add(of(folder))
    (folder / "tokenizer.json").write_text("{}")
    seen.add(of(folder))
    assert len(seen) == 4


@pytest.mark.parametrize("name", SIDE_FILES)
def test_each_file_that_changes_what_runs_is_a_part_of_it(folder: Path, name: str) -> None:
    before = of(folder)
    file = folder / name
    text = file.read_text() if file.exists() else '{"weight_map": {}}' if name.endswith("index.json") else "{}"
    if name.endswith("index.json"):
        text = json.dumps({"weight_map": dict.fromkeys(open_checkpoint(folder).tensors, "model.safetensors")})
    file.write_text(text + " ")
    assert of(folder) != before


def test_a_map_that_claims_to_be_endless_is_read_to_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = 8 * DRAFT_VOCAB
    monkeypatch.setattr(module, "sampled_blocks", lambda size: [])
    monkeypatch.setattr(module, "SMALL_BYTES", entries - 8)
    before = of(folder)
    overwrite(folder, "d2t", b"\7", start=entries - 8)
    assert of(folder) == before
    overwrite(folder, "d2t", b"\7", start=entries - 16)
    assert of(folder) != before


def test_a_changed_draft_vocabulary_shows_in_a_large_file_too(tmp_path: Path) -> None:
    big = np.zeros((4096, 1024), np.float32)  # 16 MiB, of which blocks are sampled
    tensors: dict[str, np.ndarray] = {"a": big, "d2t": np.arange(2000), "z": big[:3]}
    folder = Files({}, tensors).write(tmp_path / "drafter")
    before = of(folder)
    for entry in range(0, 2000, 97):
        overwrite(folder, "d2t", b"\7", start=8 * entry)
        changed = of(folder)
        assert changed != before
        before = changed


def test_what_is_read_of_a_file_is_bounded_and_covers_both_ends() -> None:
    assert sampled_blocks(1000) == [(0, 1000)]
    for size in (WHOLE_BYTES + 1, 10**9, 10**13):
        blocks = sampled_blocks(size)
        assert len(blocks) == BLOCKS
        assert blocks[0] == (0, BLOCK_BYTES)
        assert sum(blocks[-1]) == size
        assert all(start + length <= size for start, length in blocks)


def test_a_file_that_vanishes_is_named(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError) as caught:
        fingerprint(checkpoint)
    assert caught.value.finding.code == "TDM-FILE-MISSING"
