"""The streamed forward computes what the whole one does, in the memory of one layer."""

from __future__ import annotations

import gc
import io
import json
import logging
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tandem_worker.checkpoint import CheckpointError, open_checkpoint, read_target
from tandem_worker.finding import Verdict
from tandem_worker.probe import progress, stream_state
from tandem_worker.probe.stream import Progress, arithmetic, stream
from tandem_worker.validate import Mode, Request, validate
from unit.pairs import TINY_PAIR, copy_of, overwrite
from unit.serving import prompts, tiny_pair

TARGET = TINY_PAIR / "target"


def test_states_and_logits_are_those_of_the_whole_model() -> None:
    llama, _ = tiny_pair()
    rows = [torch.tensor(prompt) for prompt in prompts()[:3]]
    streamed = stream(TARGET, rows, {0, 4, 8})
    assert streamed.states.keys() == {0, 4, 8}
    logits = streamed.logits(streamed.final)
    for r, row in enumerate(rows):
        expected, streams = llama.whole(row[None])
        for i, state in streamed.states.items():
            assert (streamed.rows(state)[r] - streams[i][0]).abs().max() < 1e-4
        assert (streamed.rows(logits)[r] - expected[0]).abs().max() < 1e-3
        assert (streamed.rows(logits)[r].argmax(-1) == expected[0].argmax(-1)).all()
    assert torch.equal(streamed.embedding.float(), llama.model.embed_tokens.weight)


def test_rows_of_the_head_are_those_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    llama, _ = tiny_pair()
    monkeypatch.setattr("tandem_worker.probe.streamed.HEAD_BLOCK_BYTES", 96 * 4 * 50)  # blocks of 50 rows
    streamed = stream(TARGET, [torch.tensor([1, 2])], ())
    ids = torch.tensor([511, 0, 49, 50, 300, 0])
    assert torch.equal(streamed.head_rows(ids), llama.lm_head.weight[ids])
    assert torch.allclose(streamed.logits(streamed.final), streamed.final @ llama.lm_head.weight.T, atol=1e-4)


def test_progress_is_told_layer_by_layer() -> None:
    told: list[Progress] = []
    stream(TARGET, [torch.tensor(prompts()[0])], (), on_progress=told.append)
    assert [one.layer for one in told] == list(range(1, 9))
    assert all(one.bytes_per_second > 0 for one in told)
    assert told[-1].bytes_done == told[-1].bytes_total
    assert told[-1].seconds_left == 0


def head_of(target: Path) -> torch.Tensor:
    streamed = stream(target, [torch.tensor([0, 5, 9])], ())
    return streamed.logits(streamed.final)


@pytest.mark.parametrize(
    "tensor", ["model.embed_tokens.weight", "model.layers.3.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"]
)
def test_weights_that_are_not_a_number_are_named(tmp_path: Path, tensor: str) -> None:
    target = copy_of("target", tmp_path)
    overwrite(target, tensor, b"\xc0\x7f")
    with pytest.raises(CheckpointError) as caught:
        head_of(target)
    assert caught.value.finding.where == tensor
    assert caught.value.verdict is Verdict.DOES_NOT_FIT
    assert "1 values" in caught.value.finding.message


def test_where_nobody_looks_at_a_terminal_progress_is_lines_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with progress.shown_progress() as shown:
        shown(Progress(1, 8, 10, 80, 1.5e9, 20.4))
        assert not caplog.messages, "the first ten seconds say nothing"
        monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
        shown(Progress(3, 8, 30, 80, 1.5e9, 20.4))
    assert caplog.messages == ["The target's pass: layer 3 of 8, 1.50 GB/s, 20 s left"]


# --- going on where a probe was killed -------------------------------------------------------------------------------


class Killed(Exception):
    pass


def killed_at(layer: int) -> Callable[[Progress], None]:
    def stop(progress: Progress) -> None:
        if progress.layer == layer:
            raise Killed

    return stop


def some_rows() -> list[torch.Tensor]:
    return [torch.tensor(prompt) for prompt in prompts()[:2]]


@pytest.mark.parametrize("layer", [1, 3, 8])
def test_a_killed_run_goes_on_at_its_layer_and_says_so(
    tmp_path: Path, layer: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    whole = stream(TARGET, some_rows(), {0, 2, 5})
    with pytest.raises(Killed):
        stream(TARGET, some_rows(), {0, 2, 5}, on_progress=killed_at(layer), resume=tmp_path)
    told: list[Progress] = []
    resumed = stream(TARGET, some_rows(), {0, 2, 5}, on_progress=told.append, resume=tmp_path)
    assert [one.layer for one in told] == list(range(layer, 9))  # its result was not kept yet
    (line,) = caplog.messages
    assert f"goes on behind layer {layer - 1} of 8, from {tmp_path}" in line
    assert torch.equal(resumed.final, whole.final)
    assert resumed.states.keys() == {0, 2, 5}
    assert all(torch.equal(resumed.states[i], whole.states[i]) for i in whole.states)


def test_a_run_that_had_ended_is_not_run_again(tmp_path: Path) -> None:
    first = stream(TARGET, some_rows(), {4}, resume=tmp_path)
    again = stream(TARGET, some_rows(), {4}, on_progress=killed_at(1), resume=tmp_path)
    assert torch.equal(again.final, first.final)
    assert torch.equal(again.states[4], first.states[4])
    assert len(list(tmp_path.iterdir())) == 2  # the stream that was wanted, and the last


@pytest.mark.parametrize("other", ["tokens", "wanted", "target"])
def test_what_another_run_has_left_is_not_taken(tmp_path: Path, other: str) -> None:
    rows, wanted, target, folder = some_rows(), {4}, TARGET, tmp_path / "state"
    with pytest.raises(Killed):
        stream(target, rows, wanted, on_progress=killed_at(6), resume=folder)
    if other == "tokens":
        rows = [rows[1], rows[0]]
    elif other == "wanted":
        wanted = {3}
    else:
        target = copy_of("target", tmp_path)
        overwrite(target, "model.layers.0.mlp.up_proj.weight", b"\x80\x3f")
    assert torch.equal(stream(target, rows, wanted, resume=folder).final, stream(target, rows, wanted).final)


def test_state_that_is_torn_or_lost_is_computed_anew(tmp_path: Path) -> None:
    whole = stream(TARGET, some_rows(), {2, 4})
    for damage in ("torn", "lost"):
        with pytest.raises(Killed):
            stream(TARGET, some_rows(), {2, 4}, on_progress=killed_at(7), resume=tmp_path)
        file = sorted(tmp_path.iterdir())[0]
        file.write_bytes(file.read_bytes()[:500]) if damage == "torn" else file.unlink()
        resumed = stream(TARGET, some_rows(), {2, 4}, resume=tmp_path)
        assert torch.equal(resumed.final, whole.final)
        assert torch.equal(resumed.states[2], whole.states[2])
        for left in tmp_path.iterdir():
            left.unlink()


def test_a_file_that_was_being_written_when_it_was_killed_is_removed(tmp_path: Path) -> None:
    (tmp_path / "stream-0007.partial").write_bytes(b"half of it")
    (tmp_path / "notes.partial").write_bytes(b"not the probe's")
    with pytest.raises(Killed):
        stream(TARGET, some_rows(), (), on_progress=killed_at(3), resume=tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"stream-0002.safetensors", "notes.partial"}


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/state can not be made to keep the probe's state in"):
        stream(TARGET, some_rows(), (), resume=tmp_path / "file" / "state")


def test_a_full_disk_ends_the_keeping_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stream_state, "save", full)
    assert torch.equal(stream(TARGET, some_rows(), {2}, resume=tmp_path).final, stream(TARGET, some_rows(), {2}).final)
    assert not list(tmp_path.iterdir())


def test_a_probe_that_is_asked_again_does_not_read_the_target_again(tmp_path: Path) -> None:
    told: list[Progress] = []
    asked = Request(TARGET, TINY_PAIR / "drafter", Mode.PROBE, 4, 1.3, on_progress=told.append, resume=tmp_path)
    first = validate(asked)
    assert len(told) == 8
    assert validate(asked) == first
    assert len(told) == 8


# --- memory ----------------------------------------------------------------------------------------------------------

LAYER_BYTES = 16 * 2**20


def deep_target(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Twelve layers of 16 MB as float32, or 8 as bfloat16, and next to nothing else."""
    wide = LAYER_BYTES // 4 // 3 // 64
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": wide,
        "num_hidden_layers": 12,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "rms_norm_eps": 1e-5,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    shapes = {f"mlp.{name}_proj": (wide, 64) for name in ("gate", "up")} | {"mlp.down_proj": (64, wide)}
    shapes |= {f"self_attn.{name}_proj": (64, 64) for name in "qkvo"}
    layer = {name: torch.randn(shape) * 0.02 for name, shape in shapes.items()}
    layer |= {name: torch.ones(64) for name in ("input_layernorm", "post_attention_layernorm")}
    tensors = {f"model.layers.{i}.{name}.weight": tensor.clone() for i in range(12) for name, tensor in layer.items()}
    tensors |= {"model.embed_tokens.weight": torch.randn(32, 64), "model.norm.weight": torch.ones(64)}
    tensors["lm_head.weight"] = torch.randn(32, 64)
    folder.mkdir()
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def memory_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(field))
    return int(line.split()[1]) * 1024


def test_memory_is_that_of_a_layer_and_of_one_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak of a process that does nothing else, not a count of what the code knows of: all twelve layers would be
    192 MB.

    What is freed goes back to the system at once, as it always does for tensors of a real size: glibc keeps pieces of
    up to 32 MB for its next use, in a pool for each thread, and how many lie there depends on who ran when.
    """
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**17))
    target = deep_target(tmp_path / "target")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        assert alone.submit(peak_bytes, target).result() < 3 * LAYER_BYTES


def peak_bytes(target: Path) -> int:
    """Of the memory that a second pass takes in this process."""
    rows = [torch.tensor([1, 2, 3])]
    stream(target, rows, ())  # whatever torch and the threads need once
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory_bytes("VmRSS")
    stream(target, rows, ())
    return memory_bytes("VmHWM") - before


@pytest.mark.parametrize(
    ("declared", "dtype"), [("bfloat16", torch.bfloat16), ("float16", torch.float16), ("float64", torch.float32)]
)
def test_a_gpu_computes_in_the_targets_dtype(declared: str, dtype: torch.dtype) -> None:
    checkpoint = open_checkpoint(TARGET)
    assert arithmetic(replace(read_target(checkpoint), dtype=declared), checkpoint) is dtype


def test_a_dtype_that_nothing_computes_in_is_named() -> None:
    checkpoint = open_checkpoint(TARGET)
    with pytest.raises(CheckpointError, match="dtype is fp8; a GPU computes in one of bfloat16"):
        arithmetic(replace(read_target(checkpoint), dtype="fp8"), checkpoint)
