"""A CPU limit is what a container may use, whatever the node has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem_worker.cores import allowed_cores

NODE = 64


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(NODE)))


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, NODE),
        ({"cpu__max": "max 100000"}, NODE),
        ({"cpu__max": "400000 100000"}, 4),
        ({"cpu__max": "350000 100000"}, 3),
        ({"cpu__max": "50000 100000"}, 1),
        ({"cpu__max": "12800000 100000"}, NODE),
        ({"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}, NODE),
        ({"cpu__cfs_quota_us": "200000", "cpu__cfs_period_us": "100000"}, 2),
        ({"cpu__max": "nonsense"}, NODE),
    ],
)
def test_limit_of_the_container(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    write(tmp_path, **files)
    assert allowed_cores(tmp_path, tmp_path / "membership") == cores


@pytest.mark.parametrize(
    ("line", "folder"),
    [("0::/kubepods/pod1", "kubepods/pod1"), ("4:cpu,cpuacct:/kubepods/pod1", "cpu,cpuacct/kubepods/pod1")],
)
def test_limit_where_the_nodes_cgroups_are_seen(tmp_path: Path, line: str, folder: str) -> None:
    write(tmp_path / folder, cpu__max="300000 100000")
    (tmp_path / "membership").write_text(f"7:memory:/elsewhere\n{line}\n")
    assert allowed_cores(tmp_path, tmp_path / "membership") == 3


def test_this_machine_has_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 1 <= allowed_cores() <= len(os.sched_getaffinity(0))
