"""A real node: what can be told without one. tests/e2e has the rest."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest

from images import node
from localcluster.kubelet import configs
from localcluster.kubelet.isolation import remove_control_group
from tools.once import ToolError

CRI = "io.containerd.grpc.v1.cri"


def runtimes(environment: Path | None) -> dict[str, dict[str, str]]:
    text = configs.containerd(Path("/node"), Path("/plugins"), environment)
    found: dict[str, dict[str, str]] = tomllib.loads(text)["plugins"][CRI]["containerd"]["runtimes"]
    return found


def test_containerd_knows_the_class_of_pods_that_get_the_nodes_environment() -> None:
    assert set(runtimes(None)) == {"runc"}
    with_class = runtimes(Path("/node/environment.json"))
    assert with_class["environment"]["base_runtime_spec"] == "/node/environment.json"
    assert with_class["runc"]["base_runtime_spec"] == "", "other pods keep what their image holds"


def test_the_environment_comes_read_only_beside_all_other_mounts() -> None:
    spec = json.dumps({"ociVersion": "1.0.2", "mounts": [{"destination": "/proc"}]})
    changed = json.loads(configs.with_environment(spec, Path("/node/environment")))
    assert changed["ociVersion"] == "1.0.2"
    assert changed["mounts"][0] == {"destination": "/proc"}
    (mount,) = changed["mounts"][1:]
    assert (mount["source"], mount["destination"]) == ("/node/environment", "/opt/tandem")
    assert "ro" in mount["options"]


def test_control_groups_that_are_not_there_need_no_removal() -> None:
    remove_control_group("tandem-never-made")


@pytest.mark.parametrize(("required", "status"), [([], 0), (["--required"], 1)], ids=["make test", "make e2e"])
def test_a_machine_without_root_is_told_why_the_tests_do_not_run(
    required: list[str], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["node", *required])
    with pytest.raises(SystemExit) as ended:
        node.main()
    assert int(ended.value.code or 0) == status
    said = capsys.readouterr()
    assert said.out == "", "TANDEM_E2E stays empty"
    assert said.err == "end-to-end tests on a real node do NOT run here: a real node needs root\n"


def test_packages_for_another_python_are_not_given_to_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for step in ("install", "_try_kernel", "unpacked"):
        monkeypatch.setattr(node, step, lambda *_: None)
    monkeypatch.setattr(node, "local_base", lambda: "localhost/tandem-base:sid")
    monkeypatch.setattr(node, "python_of", lambda _: "3.99")
    with pytest.raises(ToolError, match=r"for Python 3\.\d+, and Debian's here is 3\.99"):
        node.node()
