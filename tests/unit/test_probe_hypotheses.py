"""Which wirings are tried: every mistake of the field is one step away, and none is tried twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tandem_worker.checks.judge import open_pairing
from tandem_worker.checks.pairing import Pairing
from tandem_worker.engines import load
from tandem_worker.probe.hypotheses import Choices, neighbours, readings
from tandem_worker.probe.resolved import choices_of, engine_wiring
from tandem_worker.probe.wiring import Aspect, DraftIds, Pairs, Source, View, Wiring, differences, taken_back
from unit.pairs import TINY_PAIR, copy_of, drafter_files, target_files

RIGHT = Wiring(capture=(2, 4, 5))
CHOICES = Choices(layers=8, states=3, readings=((2, 4, 5), (1, 3, 4)), ids=tuple(DraftIds))
UNFUSED = replace(RIGHT, fused=False, capture=(8,), view=View.FINAL_NORM)

MISTAKES = {
    "ids one too high": replace(RIGHT, capture=(3, 5, 6)),
    "ids one too low": replace(RIGHT, capture=(1, 3, 4)),
    "embedding in front": replace(RIGHT, capture=(0, 2, 4)),
    "slots reversed": replace(RIGHT, capture=(5, 4, 2)),
    "slots rotated": replace(RIGHT, capture=(4, 5, 2)),
    "one slot elsewhere": replace(RIGHT, capture=(2, 7, 5)),
    "d2t as ids": replace(RIGHT, ids=DraftIds.IDS),
    "d2t ignored": replace(RIGHT, ids=DraftIds.IGNORED),
    "fc skipped": UNFUSED,
    "after the final norm": replace(RIGHT, view=View.FINAL_NORM),
    "after the input norm": replace(RIGHT, view=View.INPUT_NORM),
    "flipped norm": replace(RIGHT, norm_before_residual=True),
    "theta of Llama 3": replace(RIGHT, rope_theta=500_000.0),
    "interleaved": replace(RIGHT, rope_pairs=Pairs.INTERLEAVED),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_the_right_wiring_is_one_step_from_every_mistake(mistake: Wiring) -> None:
    assert RIGHT in set(neighbours(mistake, CHOICES))
    assert len(differences(mistake, RIGHT)) == 1


def test_a_state_that_skips_fc_may_be_one_before_the_final_norm() -> None:
    before = replace(UNFUSED, view=View.STREAM)
    for one, other in ((UNFUSED, before), (before, UNFUSED)):
        assert other in set(neighbours(one, CHOICES))
        assert differences(one, other) == (Aspect.VIEW,)


def test_no_wiring_is_tried_twice_and_none_out_of_range() -> None:
    tried = list(neighbours(RIGHT, CHOICES))
    assert RIGHT not in tried
    assert len(set(tried)) == len(tried)
    assert all(0 <= index <= 8 for wiring in tried for index in wiring.capture)
    fed = {wiring.capture for wiring in tried}
    assert all((2, layer, 5) in fed for layer in range(9) if layer != 4)
    assert not any(wiring.capture == (2, 8, 5) for wiring in neighbours(RIGHT, CHOICES, every_slot=False))


def test_lists_are_read_under_every_convention_and_the_training_run_first() -> None:
    assert readings(((1, 3, 4),), (2, 4, 6), layers=8, states=3) == ((2, 4, 6), (1, 3, 4), (2, 4, 5), (0, 2, 3))
    assert readings(((7, 8, 9),), None, layers=8, states=3) == ((6, 7, 8), (2, 4, 5))
    assert readings(((2, 4),), None, layers=8, states=3) == ((2, 4, 5),)


def test_differences_are_told_by_the_change_that_mends_them() -> None:
    assert differences(UNFUSED, RIGHT) == (Aspect.FUSION,)
    both = replace(UNFUSED, ids=DraftIds.IDS)
    assert differences(both, RIGHT) == (Aspect.FUSION, Aspect.IDS)
    assert taken_back(RIGHT, both, Aspect.FUSION) == UNFUSED
    assert taken_back(RIGHT, both, Aspect.IDS) == replace(RIGHT, ids=DraftIds.IDS)


# --- from files and tables -------------------------------------------------------------------------------------------


def pairing(drafter: Path, engine: str, target: Path = TINY_PAIR / "target") -> Pairing:
    return open_pairing(target, drafter, load(engine))


@pytest.mark.parametrize(
    ("engine", "captured"), [("builtin", (2, 4, 5)), ("sglang@0.5.23", (2, 4, 5)), ("vllm@0.33.0", (2, 4, 5))]
)
def test_the_engines_own_wiring_comes_from_its_table(engine: str, captured: tuple[int, ...]) -> None:
    wiring = engine_wiring(pairing(TINY_PAIR / "drafter", engine))
    assert wiring == Wiring(capture=captured)


def test_one_checkpoint_is_another_wiring_for_another_version(tmp_path: Path) -> None:
    """SGLang up to 0.5.11 has no parameter for `layers.0.*`: the draft layer stays random."""
    drafter = drafter_files()
    drafter.config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
    del drafter.config["eagle_aux_hidden_state_layer_ids"]
    drafter.rename("midlayer.", "layers.0.")
    folder, target = drafter.write(tmp_path / "drafter"), target_files().write(tmp_path / "target")
    old, new = (pairing(folder, f"sglang@{version}", target) for version in ("0.5.11", "0.5.23"))
    assert engine_wiring(new).random == frozenset()
    lost = engine_wiring(old).random
    assert "midlayer.self_attn.q_proj.weight" in lost
    assert choices_of(old, engine_wiring(old)).restorable == lost


def test_a_state_taken_without_fc_is_the_last_one_behind_the_final_norm(tmp_path: Path) -> None:
    drafter = copy_of("drafter", tmp_path, eagle_config={"use_aux_hidden_state": False})
    pair = pairing(drafter, "vllm@0.33.0")
    assert engine_wiring(pair) == UNFUSED
    assert choices_of(pair, UNFUSED).states == 3


def test_an_embedding_that_the_engine_overwrites_may_be_the_drafters_own(tmp_path: Path) -> None:
    drafter, target = drafter_files(), target_files()
    drafter.tensors["embed_tokens.weight"] = target.tensors["model.embed_tokens.weight"] + 1
    folder, other = drafter.write(tmp_path / "drafter"), target.write(tmp_path / "target")
    sglang, vllm = pairing(folder, "sglang@0.5.23", other), pairing(folder, "vllm@0.33.0", other)
    assert engine_wiring(sglang).embedding is Source.TARGET
    assert Source.OWN in choices_of(sglang, engine_wiring(sglang)).embeddings
    assert engine_wiring(vllm).embedding is Source.OWN
