"""Real libraries as judges: what safetensors and transformers read in a file is what Tandem reads in it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from static import targets
from static.build import Model, target
from tandem_worker.checkpoint import CheckpointError
from tandem_worker.checkpoint.class_defaults import CLASS_DEFAULTS
from tandem_worker.checkpoint.declared import DeclaredTarget, read_declared_target
from tandem_worker.checkpoint.folder import open_checkpoint
from tandem_worker.checkpoint.header import DTYPE_BITS, Shard, read_shard
from tandem_worker.checkpoint.tensors import read_tensor
from unit.pairs import with_header

# --- safetensors -----------------------------------------------------------------------------------------------------


DTYPES = st.sampled_from(["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "?"])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__"),
    DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)),
    min_size=1,
    max_size=4,
)


@contextmanager
def file_of(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.safetensors")
        file.write_bytes(data)
        yield file


def accepted(file: Path) -> Shard | None:
    try:
        return read_shard(file)
    except CheckpointError:
        return None


@given(TENSORS, st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2))
def test_a_file_that_the_library_wrote_is_read_with_the_same_names_shapes_dtypes_and_bytes(
    tensors: dict[str, np.ndarray], metadata: dict[str, str] | None
) -> None:
    with file_of(save(tensors, metadata)) as file, safe_open(file, "numpy") as library:
        ours = read_shard(file).tensors
        assert set(ours) == set(library.keys()) == set(tensors)
        for name, info in ours.items():
            theirs, stored = library.get_tensor(name), library.get_slice(name)
            assert (info.dtype, list(info.shape)) == (stored.get_dtype(), stored.get_shape())
            assert file.read_bytes()[info.start : info.end] == theirs.tobytes() == tensors[name].tobytes()
            assert (read_tensor(info).dtype, read_tensor(info).tobytes()) == (theirs.dtype, theirs.tobytes())


def opens(file: Path) -> set[str]:
    """Raises SafetensorError."""
    with safe_open(file, "numpy") as library:
        return set(library.keys())


def never_more_lenient(data: bytes) -> None:
    with file_of(data) as file:
        ours = accepted(file)
        if ours is not None:
            assert opens(file) == set(ours.tensors)


@given(TENSORS, st.data())
def test_a_damaged_file_that_is_accepted_is_one_that_the_library_opens(
    tensors: dict[str, np.ndarray], draw: st.DataObject
) -> None:
    data = bytearray(save(tensors))
    kind = draw.draw(st.sampled_from(["changed", "cut", "longer", "inserted"]))
    at = draw.draw(st.integers(0, len(data) - 1))
    if kind == "changed":
        data[at] = draw.draw(st.integers(0, 255))
    elif kind == "cut":
        del data[at:]
    elif kind == "longer":
        data += draw.draw(st.binary(min_size=1, max_size=9))
    else:
        data[at:at] = draw.draw(st.binary(min_size=1, max_size=3))
    never_more_lenient(bytes(data))


ONE_BYTE = b'"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
TWICE = b"{" + ONE_BYTE + b", " + ONE_BYTE + b"}"


@pytest.mark.parametrize(("header", "data", "names"), [(b"{}", b"", set()), (TWICE, b"x", {"a"})])
def test_a_file_without_tensors_or_with_a_key_twice_is_refused_here_and_opened_by_the_library(
    header: bytes, data: bytes, names: set[str]
) -> None:
    with file_of(with_header(header, data)) as file:
        assert accepted(file) is None
        assert opens(file) == names


SIZES = st.integers(-1, 5) | st.sampled_from([2**31, 2**63, 2**64, 1.0, True, None, "1"])
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "f32", "F31", "", None]),
        "shape": st.lists(SIZES, max_size=3),
        "data_offsets": st.lists(st.integers(0, 24), min_size=1, max_size=3),
    },
    optional={"more": st.integers()},
)


@given(
    st.dictionaries(st.text(max_size=6), ENTRY, max_size=3), st.binary(max_size=32), st.sampled_from(["", " ", "\n"])
)
def test_a_written_header_that_is_accepted_is_one_that_the_library_opens(
    header: dict[str, Any], data: bytes, padding: str
) -> None:
    never_more_lenient(with_header((json.dumps(header) + padding).encode(), data))


@given(st.sampled_from(sorted(DTYPE_BITS)), st.lists(st.integers(0, 8), max_size=3))
def test_both_take_the_same_dtypes_and_count_the_same_bytes(dtype: str, shape: list[int]) -> None:
    bits = int(np.prod(shape, dtype=np.int64)) * DTYPE_BITS[dtype]
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, bits // 8]}
    with file_of(with_header(json.dumps({"a": entry}).encode(), bytes(bits // 8))) as file:
        if bits % 8:
            assert accepted(file) is None
            with pytest.raises(SafetensorError):
                opens(file)
        else:
            assert accepted(file) is not None
            assert opens(file) == {"a"}


# --- transformers ----------------------------------------------------------------------------------------------------

FIELDS = {  # of config.json -> of the description
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
}
OPTIONAL = ("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "tie_word_embeddings")
ROPE = ("rope_theta", "rope_parameters")
# MLA has three sizes of heads; the library calls one of them head_dim, and nothing here asks for it.
MLA = ("deepseek_v2", "deepseek_v3", "kimi_k25", "longcat_flash")
OTHER_HEADS = (*MLA, "gemma4")  # gemma4 has one head_dim for each kind of attention

TARGETS: dict[str, Callable[[], Model]] = {
    maker.__name__: maker
    for maker in (
        targets.deepseek_v2_lite,
        targets.deepseek_v3,
        targets.gemma3_1b,
        targets.gemma3_27b,
        targets.gemma4_31b,
        targets.gpt_oss_120b,
        targets.gpt_oss_20b,
        targets.kimi_k25,
        targets.llama4_maverick,
        targets.llama4_scout,
        targets.llama_8b,
        targets.longcat_flash,
        targets.mistral_7b,
        targets.phi4,
        targets.qwen25_05b,
        targets.qwen25_7b,
        targets.qwen25_vl_7b,
        targets.qwen35_9b,
        targets.qwen3_14b,
        targets.qwen3_235b,
        targets.qwen3_4b,
        targets.qwen3_8b_fp8,
        targets.qwen3_next,
        targets.qwq_32b,
    )
}


def read_by_us(config: dict[str, Any]) -> DeclaredTarget:
    with tempfile.TemporaryDirectory() as folder:
        model = target(**config)
        model.config = config
        return read_declared_target(open_checkpoint(model.write(Path(folder, "target"))))


def read_by_transformers(config: dict[str, Any]) -> transformers.PreTrainedConfig:
    parsed: transformers.PreTrainedConfig = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(
        json.loads(json.dumps(config))
    )
    return parsed


def theta_of(config: transformers.PreTrainedConfig) -> float:
    parameters = config.rope_parameters
    theta: float = parameters.get("full_attention", parameters)["rope_theta"]
    return theta


def same(config: dict[str, Any]) -> None:
    """Equal wherever a value is told. Told or not: None stands for a size that nobody declared."""
    ours, whole = read_by_us(config), read_by_transformers(config)
    theirs = whole.get_text_config()
    for name, ours_name in FIELDS.items():
        value = getattr(ours, ours_name).value
        if name == "head_dim":
            if config["model_type"] in OTHER_HEADS:
                continue
            wanted = getattr(theirs, name, None) or theirs.hidden_size // theirs.num_attention_heads
        else:
            wanted = getattr(theirs, name)
        unknown = value is None and name in ("vocab_size", "max_position_embeddings", "intermediate_size")
        assert unknown or value == wanted, f"{name}: {getattr(ours, ours_name)}"
    assert ours.rope.theta.value == theta_of(theirs), str(ours.rope.theta)
    tied = theirs.tie_word_embeddings if hasattr(theirs, "tie_word_embeddings") else None
    assert bool(ours.tie.value) == bool(whole.tie_word_embeddings if tied is None else tied), str(ours.tie)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_is_read_as_transformers_reads_it(name: str) -> None:
    same(TARGETS[name]().config)


@pytest.mark.parametrize("absent", [*OPTIONAL, "rope"])
@pytest.mark.parametrize("name", TARGETS)
def test_what_a_config_leaves_out_is_what_transformers_fills_in(name: str, absent: str) -> None:
    config = TARGETS[name]().config
    for level in (config, config.get("text_config", {})):
        for field in ROPE if absent == "rope" else (absent,):
            level.pop(field, None)
    same(config)


@pytest.mark.parametrize("model_type", sorted(set(CLASS_DEFAULTS) - {"kimi_k2"}))
def test_each_default_that_is_told_is_that_of_the_class(model_type: str) -> None:
    config = transformers.CONFIG_MAPPING[model_type]()
    text = config.get_text_config()
    for name, value in CLASS_DEFAULTS[model_type].items():
        assert (theta_of(text) if name == "rope_theta" else getattr(text, name)) == value, name


def test_null_key_value_heads_are_as_many_as_heads_and_absent_ones_are_the_class_s() -> None:
    config = targets.qwen25_7b().config
    stated_null = config | {"num_key_value_heads": None}
    assert read_by_us(stated_null).kv_heads.value == read_by_transformers(stated_null).num_key_value_heads == 28
    del config["num_key_value_heads"]
    assert read_by_us(config).kv_heads.value == read_by_transformers(config).num_key_value_heads == 32
