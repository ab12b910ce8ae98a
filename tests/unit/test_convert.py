"""`tandem-worker convert`: a corrected copy that fits, or a reason and nothing left behind."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_worker.checkpoint import open_checkpoint
from tandem_worker.checks.judge import judge, open_pairing
from tandem_worker.convert import Refused, convert
from tandem_worker.convert.command import main
from tandem_worker.engines import load
from unit.pairs import DRAFT_VOCAB, DRAFTED, HIDDEN, LAYERS, VOCAB, Files, drafter_files, target_files

CLASSIC = (2, LAYERS // 2, LAYERS - 3)
SGLANG, OLD_SGLANG, VLLM, BUILTIN = "sglang@0.5.23", "sglang@0.5.11", "vllm@0.33.0", "builtin"


def healthy() -> Files:
    """A drafter of the classic layers that every engine takes as it is."""
    files = drafter_files()
    del files.config["eagle_aux_hidden_state_layer_ids"]
    return files


def fits(target: Path, drafter: Path, engine: str) -> bool:
    return judge(open_pairing(target, drafter, load(engine))).verdict.startswith("Fits")


def contents(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name -> dtype, shape and bytes of every tensor."""
    found = {}
    for name, tensor in open_checkpoint(folder).tensors.items():
        data = tensor.file.read_bytes()[tensor.start : tensor.end]
        found[name] = (tensor.dtype, tensor.shape, data)
    return found


def config(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return values


class Pair:
    def __init__(self, folder: Path, drafter: Files, target: Files | None = None) -> None:
        self.folder = folder
        self.target = (target or target_files()).write(folder / "target")
        self.drafter = drafter.write(folder / "drafter")
        self.out = folder / "out"

    def convert(self, engine: str, **options: Any) -> Path:
        return convert(self.drafter, self.out, self.target, load(engine), **options).out

    def left_behind(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {"target", "drafter"}


def test_a_drafter_that_fits_is_copied_byte_for_byte(tmp_path: Path) -> None:
    pair = Pair(tmp_path, healthy())
    (pair.drafter / "tokenizer.json").write_text("{}")
    done = convert(pair.drafter, pair.out, pair.target, load(VLLM))
    assert done.changes == ()
    assert contents(pair.out) == contents(pair.drafter)
    assert config(pair.out) == config(pair.drafter)
    assert (pair.out / "tokenizer.json").read_text() == "{}"


Damage = Callable[[Files], None]


def set_config(**fields: Any) -> Damage:
    return lambda files: files.config.update(fields)


def ids_in_d2t(files: Files) -> None:
    files.tensors["d2t"] = DRAFTED


def without_draft_vocabulary(files: Files) -> None:
    del files.config["draft_vocab_size"]


def without_head_dim(files: Files) -> None:
    del files.config["head_dim"]


@pytest.mark.parametrize(
    ("damage", "engine", "field", "value"),
    [
        (set_config(architectures=["LlamaForCausalLM"]), SGLANG, "architectures", ["LlamaForCausalLMEagle3"]),
        (set_config(architectures=["Eagle3Speculator"]), SGLANG, "architectures", ["LlamaForCausalLMEagle3"]),
        (set_config(num_hidden_layers=LAYERS), OLD_SGLANG, "num_hidden_layers", 1),
        (set_config(tie_word_embeddings=True), SGLANG, "tie_word_embeddings", False),
        (without_draft_vocabulary, SGLANG, "draft_vocab_size", DRAFT_VOCAB),
        (without_head_dim, VLLM, "head_dim", 6),
        (set_config(torch_dtype="float16"), SGLANG, "torch_dtype", "float32"),
    ],
)
def test_a_config_that_the_files_prove_wrong_is_corrected(
    tmp_path: Path, damage: Damage, engine: str, field: str, value: object
) -> None:
    files = healthy()
    damage(files)
    pair = Pair(tmp_path, files)
    out = pair.convert(engine)
    assert config(out)[field] == value
    assert contents(out) == contents(pair.drafter)
    assert fits(pair.target, out, engine)


@pytest.mark.parametrize(
    ("rename", "engine"),
    [
        (lambda files: files.rename("midlayer.", "layers.0."), OLD_SGLANG),
        (lambda files: files.prefix("model."), VLLM),
        (lambda files: files.prefix("drafter."), SGLANG),
        (lambda files: files.prefix("drafter."), BUILTIN),
    ],
)
def test_tensors_get_names_that_the_engine_reads(tmp_path: Path, rename: Damage, engine: str) -> None:
    files = healthy()
    rename(files)
    pair = Pair(tmp_path, files)
    assert not fits(pair.target, pair.drafter, engine)
    out = pair.convert(engine)
    assert fits(pair.target, out, engine)
    plain = healthy().write(tmp_path / "plain")
    assert contents(out) == contents(plain)


def test_ids_in_d2t_become_offsets_because_t2d_proves_them_to_be_ids(tmp_path: Path) -> None:
    files = healthy()
    ids_in_d2t(files)
    pair = Pair(tmp_path, files)
    out = pair.convert(SGLANG)
    _, _, data = contents(out)["d2t"]
    assert np.frombuffer(data, "<i8").tolist() == (DRAFTED - np.arange(DRAFT_VOCAB)).tolist()
    assert contents(out)["t2d"] == contents(pair.drafter)["t2d"]


def test_ids_in_d2t_without_t2d_are_not_guessed(tmp_path: Path) -> None:
    files = healthy()
    ids_in_d2t(files)
    del files.tensors["t2d"]
    pair = Pair(tmp_path, files)
    with pytest.raises(Refused, match="d2t"):
        pair.convert(SGLANG)
    assert pair.left_behind() == set()


def test_a_missing_head_of_the_whole_vocabulary_is_the_targets(tmp_path: Path) -> None:
    files = healthy()
    for name in ("lm_head.weight", "d2t", "t2d"):
        del files.tensors[name]
    files.config["draft_vocab_size"] = VOCAB
    pair = Pair(tmp_path, files)
    assert not fits(pair.target, pair.drafter, SGLANG)
    out = pair.convert(SGLANG)
    assert contents(out)["lm_head.weight"] == contents(pair.target)["lm_head.weight"]
    provenance = json.loads((out / "tandem-convert.json").read_text())
    assert [change["what"] for change in provenance["changes"]] == ["lm_head.weight"]


def test_a_missing_head_of_a_reduced_vocabulary_can_not_be_borrowed(tmp_path: Path) -> None:
    files = healthy()
    del files.tensors["lm_head.weight"]
    pair = Pair(tmp_path, files)
    with pytest.raises(Refused, match=r"lm_head\.weight"):
        pair.convert(SGLANG)
    assert pair.left_behind() == set()


def test_layer_ids_are_counted_as_the_engine_counts(tmp_path: Path) -> None:
    files = drafter_files()
    files.config["eagle_aux_hidden_state_layer_ids"] = [3, 5, 6]  # capture indexes, at top level
    pair = Pair(tmp_path, files)
    out = pair.convert(SGLANG)
    assert "eagle_aux_hidden_state_layer_ids" not in config(out)
    assert config(out)["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    assert open_pairing(pair.target, out, load(SGLANG)).resolution.captured == (3, 5, 6)


def test_a_nested_list_can_be_read_in_two_ways_and_is_not_guessed(tmp_path: Path) -> None:
    files = healthy()
    files.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [3, 5, 6]}
    pair = Pair(tmp_path, files)
    with pytest.raises(Refused, match=r"\[3, 5, 6\] or \[4, 6, 7\].*--trained-on.*--from"):
        pair.convert(VLLM)
    for options in ({"trained_on": (4, 6, 7)}, {"origin": load(SGLANG)}):
        out = pair.convert(VLLM, force=True, **options)
        assert config(out)["eagle_aux_hidden_state_layer_ids"] == [4, 6, 7]
        assert "eagle_config" not in config(out)


def test_speculators_nesting_is_laid_flat_for_engines_that_do_not_read_it(tmp_path: Path) -> None:
    files = healthy()
    layer = {name: files.config.pop(name) for name in list(files.config) if name not in ("draft_vocab_size",)}
    layer.pop("norm_before_residual")
    layer |= {"model_type": "llama"}
    files.config |= {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "norm_before_residual": False,
        "transformer_layer_config": layer,
    }
    files.rename("midlayer.", "layers.0.")
    pair = Pair(tmp_path, files)
    out = pair.convert(SGLANG)
    assert config(out)["hidden_size"] == HIDDEN
    assert "transformer_layer_config" not in config(out)
    assert fits(pair.target, out, SGLANG)


def test_a_dtype_that_is_wrong_within_the_nested_config_is_mended_where_the_copy_has_it(tmp_path: Path) -> None:
    files = healthy()
    layer = {name: files.config.pop(name) for name in list(files.config) if name not in ("draft_vocab_size",)}
    files.config |= {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "norm_before_residual": layer.pop("norm_before_residual"),
        "transformer_layer_config": layer | {"model_type": "llama", "torch_dtype": "float16"},
    }
    files.rename("midlayer.", "layers.0.")
    out = Pair(tmp_path, files).convert(SGLANG)
    assert "transformer_layer_config" not in config(out)
    assert config(out)["torch_dtype"] == "float32", "as the files are"


@pytest.mark.parametrize("name", ["NOTICE", "tokenizer.json"])
def test_a_link_out_of_the_drafters_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    pair = Pair(tmp_path, healthy())
    (tmp_path / "secret").write_text("private key")
    (pair.drafter / name).symlink_to("../secret")
    with pytest.raises(Refused, match=f"{name} is a link out of the drafter's folder, to .*secret"):
        pair.convert(VLLM)
    assert pair.left_behind() == {"secret"}


def test_links_within_the_folder_and_to_the_blobs_of_a_hub_cache_are_copied_as_files(tmp_path: Path) -> None:
    home = tmp_path / "models--a--b"
    pair = Pair(home / "snapshots", healthy())
    (home / "blobs").mkdir()
    (home / "blobs" / "0a1b").write_text("of the cache")
    (pair.drafter / "tokenizer.json").symlink_to("../../blobs/0a1b")
    (pair.drafter / "README.md").write_text("of the folder")
    (pair.drafter / "NOTICE").symlink_to("README.md")
    out = pair.convert(VLLM)
    assert ((out / "tokenizer.json").read_text(), (out / "NOTICE").read_text()) == ("of the cache", "of the folder")
    assert not (out / "NOTICE").is_symlink()


@settings(max_examples=25)
@given(
    indexes=st.lists(st.integers(1, LAYERS - 1), min_size=3, max_size=3, unique=True).map(sorted),
    engines=st.lists(st.sampled_from([SGLANG, OLD_SGLANG, VLLM, BUILTIN, "sglang@0.5.13", "vllm@0.26.0"]), min_size=1),
    spelling=st.sampled_from(["midlayer.", "layers.0."]),
    prefix=st.sampled_from(["", "model."]),
)
def test_there_and_back_is_the_identity(indexes: list[int], engines: list[str], spelling: str, prefix: str) -> None:
    """Along any way through the engines every copy fits, captures the same streams, and holds the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        files = healthy()
        files.config["eagle_aux_hidden_state_layer_ids"] = indexes
        files.rename("midlayer.", spelling)
        files.prefix(prefix)
        pair = Pair(Path(folder), files)
        start = convert(pair.drafter, Path(folder) / "start", pair.target, load(OLD_SGLANG)).out
        place = start
        for step, engine in enumerate([*engines, OLD_SGLANG]):
            before = open_pairing(pair.target, place, load([OLD_SGLANG, *engines][step]))
            place = convert(
                place, Path(folder) / f"{step}", pair.target, load(engine), trained_on=before.resolution.captured
            ).out
            after = open_pairing(pair.target, place, load(engine))
            assert after.resolution.captured == tuple(indexes)
            assert judge(after).verdict.startswith("Fits")
        assert sorted(value for value in contents(start).values()) == sorted(contents(pair.drafter).values())
        assert {name.removeprefix("model.") for name in contents(place)} == set(drafter_files().tensors)
        assert sorted(contents(place).values()) == sorted(contents(start).values())


def test_an_existing_folder_is_replaced_only_when_asked_and_only_by_what_fits(tmp_path: Path) -> None:
    pair = Pair(tmp_path, healthy())
    pair.convert(SGLANG)
    with pytest.raises(Refused, match="exists"):
        pair.convert(SGLANG)
    (pair.out / "mark").touch()
    pair.convert(SGLANG, force=True)
    assert not (pair.out / "mark").exists()
    assert pair.left_behind() == {"out"}
    (pair.out / "mark").touch()
    with pytest.raises(Refused):
        pair.convert(VLLM, trained_on=(LAYERS + 5, 1, 2), force=True)
    assert (pair.out / "mark").exists()
    assert pair.left_behind() == {"out"}


def test_a_folder_that_holds_something_else_is_never_replaced(tmp_path: Path) -> None:
    pair = Pair(tmp_path, healthy())
    pair.out.mkdir()
    (pair.out / "thesis.tex").touch()
    with pytest.raises(Refused, match="holds no checkpoint"):
        pair.convert(SGLANG, force=True)
    assert (pair.out / "thesis.tex").exists()


@pytest.mark.parametrize("out", ["drafter", "drafter/copy", "target", "."])
def test_a_copy_over_its_own_sources_is_refused(tmp_path: Path, out: str) -> None:
    pair = Pair(tmp_path, healthy())
    with pytest.raises(Refused, match="overlap"):
        convert(pair.drafter, tmp_path / out, pair.target, load(SGLANG), force=True)


def test_the_command_says_what_it_changed_or_why_it_did_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = healthy()
    files.config["architectures"] = ["LlamaForCausalLM"]
    pair = Pair(tmp_path, files)
    arguments = [str(pair.drafter), str(pair.out), "--target", str(pair.target), "--engine"]
    assert main([*arguments, SGLANG]) == 0
    assert "architectures: ['LlamaForCausalLM'] -> ['LlamaForCausalLMEagle3']" in capsys.readouterr().out
    assert main([*arguments, SGLANG]) == 1
    assert "--force" in capsys.readouterr().err
    (pair.drafter / "model.safetensors").write_bytes(b"")
    assert main([*arguments, SGLANG, "--force"]) == 2
    assert "zero bytes" in capsys.readouterr().err
