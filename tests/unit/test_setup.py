"""`make test` and `make demo` set themselves up."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from bundle.needed import needed, read_names
from setup.constraints import pins_of
from setup.environment import MARKER, ensure_environment, locked, remove_unused
from setup.progress import PipProgress
from setup.requirements import Requirements, environment_dir
from setup.steps import SetupError

ROOT = Path(__file__).resolve().parents[2]


def checkout(folder: Path, dependency: str = "leaf", pin: str = "leaf==1.0") -> Path:
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        f'[project]\ndependencies = ["{dependency}"]\n[project.optional-dependencies]\ndev = ["leaf>=1"]\n'
    )
    (folder / "constraints.txt").write_text(f"# made by hand\n{pin}\n")
    return folder


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index on disk with the one package `leaf` 1.0, and a cache folder of its own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "leaf-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("leaf.py", "")
        wheel.writestr("leaf-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: leaf\nVersion: 1.0\n")
        wheel.writestr("leaf-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("leaf-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_an_interrupted_set_up_is_made_good_and_then_found_again(
    wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = checkout(tmp_path / "one")
    left_over = environment_dir(root) / "bin"
    left_over.mkdir(parents=True)
    (left_over / "half-written").touch()

    environment = ensure_environment(root)

    assert not (left_over / "half-written").exists()
    leaf = subprocess.run([environment / "bin/python", "-c", "import leaf"], check=False)
    assert leaf.returncode == 0
    told = capsys.readouterr().out
    assert "interrupted" in told
    assert "environment ready" in told

    assert ensure_environment(checkout(tmp_path / "two")) == environment
    assert capsys.readouterr().out == ""


def test_environments_that_nobody_uses_any_more_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    old, used = (environment_dir(checkout(tmp_path / name, pin=f"leaf=={name}")) for name in ("0.1", "0.2"))
    for folder, age_days in ((old, 15), (used, 1)):
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
        seconds = time.time() - age_days * 86400
        os.utime(folder / MARKER, (seconds, seconds))
    remove_unused(old.parent)
    assert not old.exists()
    assert used.exists()


def test_a_package_that_cannot_be_had_ends_in_its_name_and_the_log(wheels: Path, tmp_path: Path) -> None:
    root = checkout(tmp_path / "one", dependency="no-such-leaf")
    with pytest.raises(SetupError, match=r"(?s)all of its output is in .*\.log.*no-such-leaf"):
        ensure_environment(root)
    assert not (environment_dir(root) / MARKER).exists()


def test_only_what_changes_the_packages_changes_the_environment(tmp_path: Path) -> None:
    key = Requirements.read(checkout(tmp_path / "one")).key("cpython-311")
    commented = checkout(tmp_path / "two")
    with (commented / "constraints.txt").open("a") as file:
        file.write("\n# a comment\n")
    with (commented / "pyproject.toml").open("a") as file:
        file.write("[tool.ruff]\nline-length = 100\n")
    assert Requirements.read(commented).key("cpython-311") == key
    assert Requirements.read(commented).key("cpython-312") != key
    assert Requirements.read(checkout(tmp_path / "three", pin="leaf==1.1")).key("cpython-311") != key
    assert Requirements.read(checkout(tmp_path / "four", dependency="leaf<2")).key("cpython-311") != key


def test_two_set_ups_at_once_wait_for_each_other(tmp_path: Path) -> None:
    lock = tmp_path / "venv.lock"
    code = (
        "import sys; from pathlib import Path; from setup.environment import locked\n"
        f"with locked(Path({str(lock)!r})): print('mine', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    first = subprocess.Popen(command, cwd=ROOT / "hack", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout is not None
    assert first.stdout.readline() == "mine\n"
    second = subprocess.Popen(command, cwd=ROOT / "hack", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert second.stdout is not None
    assert second.stdout.readline() == f"tandem set-up: waiting for the set-up that process {first.pid} is doing\n"
    first.kill()  # a holder that dies lets go
    assert second.communicate("")[0] == "mine\n"
    first.communicate()
    with locked(lock):
        pass


def test_every_checkout_runs_its_own_code(tmp_path: Path) -> None:
    for name in ("one", "two"):
        module = tmp_path / name / "operator/tandem_operator/api/crd.py"
        module.parent.mkdir(parents=True)
        module.write_text(f"print('code of {name}')")
        (tmp_path / name / "crds").mkdir()
        shutil.copy(ROOT / "Makefile", tmp_path / name)
    for name in ("one", "two"):
        command = ["make", "--silent", "--assume-old=venv", f"RUN={sys.executable} -m", "crds"]
        subprocess.run(command, cwd=tmp_path / name, check=True)
        assert (tmp_path / name / "crds/speculativedeployments.yaml").read_text() == f"code of {name}\n"


def test_progress_tells_the_phase_and_how_far_it_is() -> None:
    progress = PipProgress(expected=3)
    for line in ("Collecting torch==2.15.0\n", "  Downloading torch-2.15.0-cp311.whl.metadata (28 kB)\n"):
        progress.feed(line)
    assert progress.describe(lambda: 0) == "resolving: 1 of about 3 packages"
    for line in ("Using cached rich-15.0.0-py3-none-any.whl\n", "Downloading torch-2.15.0-cp311.whl (554.3 MB)\n"):
        progress.feed(line)
    assert progress.describe(lambda: 0) == "fetching: 2 of about 3 packages, now torch-2.15.0 (554.3 MB)"
    progress.feed("Installing collected packages: rich, torch\n")
    assert progress.describe(lambda: 1) == "installing: 1 of 2 packages"


def test_constraints_are_the_exact_versions_that_pip_reports() -> None:
    report = {
        "install": [
            {"metadata": {"name": "rich", "version": "15.0.0"}},
            {"metadata": {"name": "PyYAML", "version": "6.0.4"}},
        ]
    }
    assert pins_of(report) == ["PyYAML==6.0.4", "rich==15.0.0"]


def test_the_committed_constraints_pin_everything_and_name_no_address() -> None:
    requirements = Requirements.read(ROOT)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in requirements.constraints if "==" in line}
    wanted = {re.split(r"[>=\[]", line)[0].lower().replace("_", "-") for line in requirements.direct}
    assert wanted <= pinned
    assert len(pinned) == len(requirements.constraints)
    assert "://" not in (ROOT / "constraints.txt").read_text()


# --- a bundle --------------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, code: str) -> None:
    """One module, installed as any other wheel."""
    info = f"{name}-1.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as archive:
        for path, text in (
            (f"{name}.py", code),
            (f"{info}/METADATA", metadata),
            (f"{info}/WHEEL", tags),
            (f"{info}/RECORD", record),
        ):
            archive.writestr(path, text)


def test_an_environment_from_a_bundle_has_its_wheels_and_the_outer_pythons_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle"
    (bundle / "wheels").mkdir(parents=True)
    wheel(bundle / "wheels", "only_in_the_bundle", "value = 7")
    with lzma.open(bundle / "localkube.xz", "wb") as packed:
        packed.write(b"#!/bin/sh\necho kube\n")
    monkeypatch.setenv("TANDEM_BUNDLE", str(bundle))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = ensure_environment(ROOT)
    assert made == environment_dir(ROOT)
    check = "import only_in_the_bundle, pydantic; print(only_in_the_bundle.value, pydantic.__name__)"
    command = [str(made / "bin" / "python"), "-c", check]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7 pydantic\n"
    assert subprocess.run([made / "localkube"], capture_output=True, text=True, check=True).stdout == "kube\n"


def test_a_folder_that_is_no_bundle_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_BUNDLE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SetupError, match=r"is no bundle: it lacks localkube.xz"):
        ensure_environment(ROOT)


def test_a_bundle_carries_what_the_machine_lacks_and_nothing_that_it_has() -> None:
    has = read_names((ROOT / "hack" / "bundle" / "has.txt").read_text())
    wanted = needed(Requirements.read(ROOT).constraints, "3.12", has)
    assert {"kopf", "kubernetes", "pydantic", "pydantic-core", "fastapi", "uvicorn", "orjson", "pyjwt"} <= wanted
    assert not wanted & has
    assert not {"mypy", "ruff", "transformers"} & wanted, "nothing of the development tools"
