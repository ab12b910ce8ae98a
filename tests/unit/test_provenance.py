"""A committed result says of what commit it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import provenance as module
from provenance import provenance


def test_changes_that_were_not_committed_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for arguments in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    commit = provenance()["commit"]
    assert len(commit) == 40
    (tmp_path / "file").write_text("x")
    assert provenance()["commit"] == commit  # not a part of it
    subprocess.run(["git", "add", "file"], cwd=tmp_path, check=True)
    assert provenance()["commit"] == f"{commit}+"


def test_a_copy_without_history_is_told_its_commit_or_says_that_it_knows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    assert provenance(commit="abc")["commit"] == "abc"
    assert provenance()["commit"].startswith("unknown")


def test_versions_of_what_was_measured_stand_beside_it() -> None:
    found = provenance("torch", commit="abc")
    assert set(found) == {"commit", "python", "torch"}
