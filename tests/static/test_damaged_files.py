"""Downloads that went wrong: each is named, and never taken for a pair that fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from static.build import eagle3_8b, llama_8b
from static.judging import Seen, run

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n"
Damage = Callable[[Path], None]


def healthy(folder: Path, shards: int = 6) -> tuple[Path, Path]:
    return llama_8b().write(folder / "target", 3), eagle3_8b(max_position_embeddings=131072).write(
        folder / "drafter", shards
    )


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("*.safetensors"))[number - 1]


def cut(folder: Path) -> None:
    file = shard(folder, 3)
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size * 6 // 10)


def lengthen(folder: Path) -> None:
    file = shard(folder, 3)
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size + 4096)


def replaced(data: bytes) -> Damage:
    return lambda folder: (shard(folder, 3).write_bytes(data), None)[1]


def broken_link(folder: Path) -> None:
    file = shard(folder, 3)
    file.unlink()
    file.symlink_to("../../blobs/0123")


def removed(folder: Path) -> None:
    shard(folder, 3).unlink()


def in_two_shards(folder: Path) -> None:
    shard(folder, 4).write_bytes(shard(folder, 3).read_bytes())


def index_elsewhere(folder: Path) -> None:
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    names = sorted(index["weight_map"])
    index["weight_map"][names[0]], index["weight_map"][names[1]] = (
        index["weight_map"][names[1]],
        index["weight_map"][names[0]],
    )
    file.write_text(json.dumps(index))


def config_as(data: bytes) -> Damage:
    return lambda folder: ((folder / "config.json").write_bytes(data), None)[1]


DAMAGE: list[tuple[str, Damage, str, tuple[str, ...]]] = [
    ("cut", cut, "TDM-SHARD-TRUNCATED", ("truncated", "model-00003-of-00006")),
    ("longer", lengthen, "TDM-SHARD-TOO-LONG", ("longer", "model-00003-of-00006")),
    ("lfs", replaced(LFS), "TDM-SHARD-IS-LFS-POINTER", ("LFS pointer", "git lfs pull")),
    ("html", replaced(b"<!DOCTYPE html><html><body>Sign in</body></html>"), "TDM-SHARD-IS-WEB-PAGE", ("web page",)),
    ("empty", replaced(b""), "TDM-SHARD-ZERO-BYTES", ("zero bytes",)),
    ("zeros", replaced(bytes(65536)), "TDM-SHARD-ALL-ZEROS", ("zeros",)),
    ("pickle", replaced(b"PK\x03\x04" + bytes(600)), "TDM-SHARD-IS-PICKLE", ("pickle",)),
    ("text", replaced(b"not found"), "TDM-SHARD-NOT-SAFETENSORS", ("safetensors",)),
    ("missing", removed, "TDM-SHARD-MISSING", ("model-00003-of-00006",)),
    ("link", broken_link, "TDM-LINK-BROKEN", ("symbolic link", "blobs/0123")),
    ("twice", in_two_shards, "TDM-TENSOR-TWICE", ("model-00004-of-00006",)),
    ("index", index_elsewhere, "TDM-INDEX-DISAGREES", ("index.json",)),
    ("config lfs", config_as(LFS), "TDM-CONFIG-MALFORMED", ("LFS pointer",)),
    ("config html", config_as(b"<html>404</html>"), "TDM-CONFIG-MALFORMED", ("web page",)),
    ("config empty", config_as(b""), "TDM-CONFIG-MALFORMED", ("empty",)),
    (
        "config twice",
        config_as(b'{"hidden_size": 1, "hidden_size": 2}'),
        "TDM-CONFIG-MALFORMED",
        ("hidden_size", "twice"),
    ),
    ("config deep", config_as(b'{"a":' * 100000), "TDM-CONFIG-MALFORMED", ()),
    ("config list", config_as(b"[]"), "TDM-CONFIG-MALFORMED", ("list",)),
]


@pytest.mark.parametrize(("damage", "code", "says"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_damage_is_named_and_nothing_is_judged(
    tmp_path: Path, damage: Damage, code: str, says: tuple[str, ...]
) -> None:
    target, drafter = healthy(tmp_path)
    damage(drafter)
    seen = run(target, drafter)
    assert seen.verdict == "CouldNotCheck"
    assert seen.errors == [code]
    assert str(drafter) in seen.text
    for said in says:
        assert said in seen.text


def test_whole_shards_are_one_checkpoint_with_and_without_an_index(tmp_path: Path) -> None:
    target, drafter = healthy(tmp_path)
    assert run(target, drafter).verdict == "Fits"
    (drafter / "model.safetensors.index.json").unlink()
    assert run(target, drafter).verdict == "Fits"


def test_an_index_may_name_files_of_a_folder_below(tmp_path: Path) -> None:
    target, drafter = healthy(tmp_path)
    below = drafter / "weights"
    below.mkdir()
    for file in list(drafter.glob("*.safetensors")):
        file.rename(below / file.name)
    index = drafter / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"model-', '"weights/model-'))
    assert run(target, drafter).verdict == "Fits"
    index.unlink()
    assert run(target, drafter).errors == ["TDM-WEIGHTS-ONE-LEVEL-DOWN"]


def test_a_checkpoint_one_level_down(tmp_path: Path) -> None:
    target, _ = healthy(tmp_path)
    eagle3_8b().write(tmp_path / "models" / "drafter" / "drafter")
    seen = run(target, tmp_path / "models" / "drafter")
    assert (seen.verdict, seen.errors) == ("CouldNotCheck", ["TDM-CONFIG-ONE-LEVEL-DOWN"])
    assert str(tmp_path / "models" / "drafter" / "drafter") in seen.text


def test_a_checkpoint_of_pickles_is_not_opened(tmp_path: Path) -> None:
    target, drafter = healthy(tmp_path)
    for file in drafter.glob("model*"):
        file.unlink()
    (drafter / "pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\n")
    seen = run(target, drafter)
    assert (seen.verdict, seen.errors) == ("CouldNotCheck", ["TDM-PICKLE-ONLY"])
    assert "pytorch_model.bin" in seen.text


def test_damage_to_both_is_told_at_once(tmp_path: Path) -> None:
    target, drafter = healthy(tmp_path)
    cut(drafter)
    shard(target, 1).write_bytes(LFS)
    assert run(target, drafter).errors == ["TDM-SHARD-IS-LFS-POINTER", "TDM-SHARD-TRUNCATED"]


def linked(folder: Path, home: Path) -> Seen:
    """Every file of the drafter as a link to another folder."""
    target, drafter = healthy(folder)
    home.mkdir(parents=True)
    for file in list(drafter.iterdir()):
        file.rename(home / file.name)
        file.symlink_to(home / file.name)
    return run(target, drafter)


def test_links_of_a_hub_cache_are_usual_and_others_out_of_the_folder_are_told(tmp_path: Path) -> None:
    assert linked(tmp_path / "a", tmp_path / "a" / "blobs").verdict == "Fits"
    other = linked(tmp_path / "b", tmp_path / "elsewhere")
    assert (other.verdict, other.codes) == ("FitsWithWarnings", {"TDM-LINK-OUTSIDE"})


def test_a_target_may_be_its_config_alone_to_be_asked_about(tmp_path: Path) -> None:
    target, drafter = healthy(tmp_path)
    for file in target.glob("model*"):
        file.unlink()
    seen = run(target, drafter)
    assert seen.verdict == "Fits"
    assert "TDM-CONFIG-ALONE" in seen.text
    (target / "pytorch_model.bin").write_bytes(b"x")
    assert run(target, drafter).errors == ["TDM-PICKLE-ONLY"]
