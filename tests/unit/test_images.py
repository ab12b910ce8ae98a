"""The images' recipes: what can be told without building them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from images.requirements import requirements

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ("operator", "worker")


def recipe(name: str) -> str:
    return (ROOT / f"Containerfile.{name}").read_text()


@pytest.mark.parametrize("name", RECIPES)
def test_the_base_is_pinned_by_digest_and_can_be_replaced(name: str) -> None:
    lines = recipe(name).splitlines()
    (base,) = [line for line in lines if line.startswith("ARG BASE=")]
    assert re.search(r"@sha256:[0-9a-f]{64}$", base)
    assert [line.split()[1] for line in lines if line.startswith("FROM ")] == ["${BASE}", "${BASE}"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_program_runs_as_nobody_without_a_shell_and_says_what_it_is(name: str) -> None:
    text = recipe(name)
    last = text[text.rindex("FROM ") :]
    assert re.search(r"^USER 65532:65532$", last, re.MULTILINE), "runAsNonRoot needs a number"
    assert f'ENTRYPOINT ["/opt/tandem/bin/python", "-m", "tandem_{name}"]' in last
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in last
    assert "pip" not in last, "no package manager of Python's at run time"
    assert "--no-cache-dir" in text


def test_the_operator_takes_along_all_that_it_imports_of_the_worker() -> None:
    copied = re.findall(r"worker/tandem_worker/(\w+\.py)", recipe("operator"))
    sources = (ROOT / "worker" / "tandem_worker" / file for file in copied)
    imported = {
        f"{module}.py"
        for source in sources
        for module in re.findall(r"^from tandem_worker\.(\w+) import", source.read_text(), re.MULTILINE)
    }
    assert imported <= set(copied)
    assert "contract.py" in copied


def test_an_image_installs_what_its_half_needs_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = f"--constraint {ROOT / 'constraints.txt'}"
    assert requirements(ROOT, []) == [*project["dependencies"], pinned]
    extra = project["optional-dependencies"]["worker"]
    assert requirements(ROOT, ["worker"]) == [*project["dependencies"], *extra, pinned]
    assert not [name for name in project["dependencies"] if name.startswith(("torch", "numpy", "safetensors"))]
