"""Hot-token files of FR-Spec: read where that is safe, named where it is not, and judged as d2t is."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from static import targets
from static.build import spread, write_shard
from static.judging import Seen, judged
from static.makers import named

OWN = spread(32000, 128256)  # what the drafter's d2t leads to
Writer = Callable[[Path, Sequence[int]], Path]


def as_json(folder: Path, ids: Sequence[int]) -> Path:
    file = folder / "hot.json"
    file.write_text(json.dumps(list(ids)))
    return file


def as_safetensors(folder: Path, ids: Sequence[int]) -> Path:
    file = folder / "hot.safetensors"
    write_shard(file, {"ids": ("I64", [len(ids)])}, {"ids": struct.pack(f"<{len(ids)}q", *ids)})
    return file


def check(folder: Path, file: Path | str, algorithm: str = "EAGLE3") -> Seen:
    arguments = f"--speculative-algorithm {algorithm} --speculative-token-map {file}"
    options = ("--engine", "sglang@0.5.23", "--engine-args", arguments)
    return judged(folder, targets.llama_8b(), named(), *options)


@pytest.mark.parametrize("write", [as_json, as_safetensors])
@pytest.mark.parametrize(
    ("ids", "code", "says"),
    [
        (OWN, "", "looked at all the same"),
        ([*OWN[:-1], 128256], "OUT-OF-RANGE", "entry 31999 is 128256, the vocabulary has 128256"),
        ([-1, *OWN[1:]], "OUT-OF-RANGE", "entry 0 is -1"),
        ([*OWN[:-1], OWN[0]], "DUPLICATES", "such as 0"),
        ([OWN[1], OWN[0], *OWN[2:]], "NOT-RISING", "do not rise"),
        (range(16000), "AGAINST-D2T", "lists 16000 tokens, which are not the 32000"),
        ([], "MALFORMED", "no token"),
    ],
)
def test_ids_are_judged_as_d2t_is(tmp_path: Path, write: Writer, ids: Sequence[int], code: str, says: str) -> None:
    seen = check(tmp_path, write(tmp_path, ids))
    assert seen.verdict == "FitsWithWarnings", "the engine ignores the file"
    wanted = {"TDM-TOKEN-MAP"} | ({f"TDM-TOKEN-MAP-{code}"} if code else set())
    assert wanted <= seen.codes
    assert says in seen.text


def test_where_the_engine_reads_the_file_its_mistakes_are_errors(tmp_path: Path) -> None:
    seen = check(tmp_path, as_json(tmp_path, [0, 1, 10**9]), algorithm="EAGLE")
    assert set(seen.errors) == {"TDM-ALGORITHM", "TDM-TOKEN-MAP-OUT-OF-RANGE"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"ids": [1]}', "not one list of whole numbers"),
        ("[1, 2.5]", "not one list of whole numbers"),
        ("[1, true]", "not one list of whole numbers"),
        ("[1, 1e400]", "not one list of whole numbers"),
        ("[1" + "0" * 30 + "]", "numbers that no token has"),
        ("[1,", "line 1"),
        ("", "line 1"),
    ],
)
def test_json_of_another_kind_is_named(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "hot.json"
    file.write_text(content)
    seen = check(tmp_path, file)
    assert "TDM-TOKEN-MAP-MALFORMED" in seen.codes
    assert says in seen.text


def test_safetensors_that_hold_something_else_are_named(tmp_path: Path) -> None:
    file = tmp_path / "hot.safetensors"
    write_shard(file, {"a": ("BF16", [4]), "b": ("I64", [4])}, {})
    assert "a BF16 [4], b I64 [4]" in check(tmp_path, file).text


def test_a_damaged_file_is_named_and_nothing_else_stops(tmp_path: Path) -> None:
    file = tmp_path / "hot.safetensors"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    seen = check(tmp_path, file)
    assert seen.verdict == "FitsWithWarnings"
    assert "hot.safetensors" in seen.text


def test_a_pickle_is_named_and_never_opened(tmp_path: Path) -> None:
    file = tmp_path / "freq_32768.pt"
    file.write_bytes(b"\x80\x04\x95 a pickle")
    file.chmod(0)
    seen = check(tmp_path, file)
    assert seen.codes == {"TDM-TOKEN-MAP"}
    assert "was not opened" in seen.text


def test_a_file_on_the_hub_is_not_looked_for(tmp_path: Path) -> None:
    assert check(tmp_path, "thunlp/some-fr-spec/freq_32768.json").codes == {"TDM-TOKEN-MAP"}
