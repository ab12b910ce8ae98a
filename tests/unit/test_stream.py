"""The streamed forward computes what the whole one does, in the memory of one layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem_worker.checkpoint import CheckpointError
from tandem_worker.finding import Verdict
from tandem_worker.probe.stream import Progress, stream
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
    assert (streamed.embed(rows[0]) == llama.model.embed_tokens.weight[rows[0]]).all()


def test_progress_is_told_layer_by_layer() -> None:
    told: list[Progress] = []
    stream(TARGET, [torch.tensor(prompts()[0])], (), on_progress=told.append)
    assert [progress.layer for progress in told] == list(range(1, 9))
    assert all(progress.bytes_per_second > 0 for progress in told)
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
