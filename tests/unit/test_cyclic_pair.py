"""A pair whose acceptance is known beforehand does what it says, in the real engine."""

from __future__ import annotations

import pytest
import torch

from cyclic_pair import accepted, following, write_pair
from tandem_worker.checkpoint import open_checkpoint, read_drafter, read_target
from tandem_worker.contract import Origin
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.record import NoRecord
from tandem_worker.engine.request import Request, Sampling
from tandem_worker.models.load import load_drafter, load_target

SHAPE = {"hidden_size": 128, "intermediate_size": 256, "layers": 6, "heads": 4, "kv_heads": 2, "head_dim": 32}
LENGTH = 4


class Drafts(NoRecord):
    def __init__(self) -> None:
        self.accepted = list[int]()

    def drafted(self, origin: Origin, length: int, accepted: int) -> None:
        self.accepted.append(accepted)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("cyclic")
    write_pair(folder, {**SHAPE, "vocab_size": 500, "max_position_embeddings": 256}, 300)
    target, drafter = open_checkpoint(folder / "target"), open_checkpoint(folder / "drafter")
    described = read_target(target)
    llama = load_target(target, described, torch.float32, torch.device("cpu"))
    loaded = load_drafter(drafter, read_drafter(drafter, described), llama, torch.float32, torch.device("cpu"))
    return Engine(llama, loaded.drafter, EngineOptions(LENGTH))


@pytest.mark.parametrize("last", [120, 123, 125, 126, 127, 128, 129])
def test_text_and_acceptance_are_those_that_were_built_in(engine: Engine, last: int) -> None:
    engine.recorder = drafts = Drafts()
    request = Request((7, 211, 38, last), Sampling(24, ignore_eos=True), lambda tokens, finish: None)
    engine.submit(request)
    while not engine.idle:
        engine.step()
    text = request.tokens[3:]
    assert text[1:] == [following(token) for token in text[:-1]]
    whole_rounds = drafts.accepted[:-1]
    assert set(whole_rounds) == {accepted(last, LENGTH)}


def test_six_of_ten_tokens_are_alone() -> None:
    assert [following(token) for token in range(20, 30)] == [20, 21, 22, 23, 24, 25, 27, 26, 29, 28]
    assert [accepted(token, 5) for token in range(20, 30)] == [5] * 6 + [1] * 2 + [0] * 2
