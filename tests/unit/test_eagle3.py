"""The drafter's variants: each flag changes what is computed as its definition says; the loader takes its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tandem_worker.checkpoint import open_checkpoint, read_drafter, read_target
from tandem_worker.checkpoint.declared import read_declared_drafter, read_declared_target
from tandem_worker.checks import resolve, resolve_for
from tandem_worker.engines import load
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.layers import CausalAttention
from tandem_worker.models.load import LoadedDrafter, load_drafter, load_target
from tandem_worker.validate import _reported
from unit.drafting import draft_everywhere
from unit.pairs import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, WIDE, Files, drafter_files, target_files
from unit.serving import CPU, generate, make_engine, prompts, tiny_pair

EPS = 1e-5
ROWS = 7


def loaded(folder: Path, drafter: Files) -> LoadedDrafter:
    """The drafter beside the target that it borrows its embedding from; its wiring is what validation resolves."""
    ours = open_checkpoint(target_files().write(folder / "target"))
    theirs = open_checkpoint(drafter.write(folder / "drafter"))
    target = read_target(ours)
    described = read_drafter(theirs, target)
    result = load_drafter(theirs, described, load_target(ours, target, torch.float32, CPU), torch.float32, CPU)
    expected = resolve(target, described, ours, theirs)
    assert (
        _reported(resolve_for(read_declared_target(ours), read_declared_drafter(theirs), load("builtin"))) == expected
    )
    assert (result.loaded, result.missing, result.dropped) == (expected.loaded, expected.missing, expected.dropped)
    assert not result.missing
    assert not result.dropped
    return result


def with_fields(**fields: Any) -> Files:
    drafter = drafter_files()
    drafter.config |= fields
    return drafter


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def norm(x: Tensor, gain: Any = None) -> Tensor:
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    return scaled if gain is None else scaled * torch.as_tensor(gain)


STREAMS = [torch.from_numpy(random(1, ROWS, HIDDEN)) + i for i in range(3)]
JOINED = torch.cat(STREAMS, -1)
EMBEDDED = torch.from_numpy(random(1, ROWS, HIDDEN))
POSITIONS = torch.arange(ROWS)[None]


def step(drafter: Eagle3, feature: Tensor) -> Tensor:
    return drafter.step(EMBEDDED, feature, POSITIONS, CausalAttention())


# --- norms and biases around fc --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"norm_before_fc": True}, {"eagle_config": {"norm_before_fc": True}}])
def test_norm_before_fc_norms_all_states_as_one_vector(tmp_path: Path, fields: dict[str, Any]) -> None:
    files = with_fields(**fields)
    files.tensors["input_norm.weight"] = random(3 * HIDDEN)
    drafter = loaded(tmp_path, files).drafter
    expected = norm(JOINED, files.tensors["input_norm.weight"]) @ drafter.fc.weight.T
    assert torch.allclose(drafter.fuse(STREAMS), expected, atol=1e-5)
    drafter.norm_before_fc = False
    assert torch.allclose(drafter.fuse(STREAMS), JOINED @ drafter.fc.weight.T, atol=1e-5)


@pytest.mark.parametrize(("flag", "name"), [("fc_norm", "fc_norm.{}"), ("use_aux_norm", "aux_norm_{}")])
def test_fc_norm_norms_each_state_by_itself(tmp_path: Path, flag: str, name: str) -> None:
    files = with_fields(**{flag: True})
    slots = [0, 1, 2] if flag == "fc_norm" else ["low", "mid", "high"]
    gains = [random(HIDDEN) + i for i in range(3)]
    files.tensors |= {f"{name.format(slot)}.weight": gain for slot, gain in zip(slots, gains, strict=True)}
    drafter = loaded(tmp_path, files).drafter
    normed = torch.cat([norm(stream, gain) for stream, gain in zip(STREAMS, gains, strict=True)], -1)
    assert torch.allclose(drafter.fuse(STREAMS), normed @ drafter.fc.weight.T, atol=1e-5)


@pytest.mark.parametrize("flag", ["bias", "eagle_fc_bias"])
def test_the_bias_of_fc_is_added(tmp_path: Path, flag: str) -> None:
    files = with_fields(**{flag: True})
    files.tensors["fc.bias"] = random(HIDDEN)
    drafter = loaded(tmp_path, files).drafter
    expected = JOINED @ drafter.fc.weight.T + torch.from_numpy(files.tensors["fc.bias"])
    assert torch.allclose(drafter.fuse(STREAMS), expected, atol=1e-5)


def test_a_norm_that_is_switched_on_without_weights_has_ones(tmp_path: Path) -> None:
    drafter = loaded(tmp_path, drafter_files()).drafter
    drafter.norm_before_fc = True
    assert torch.allclose(drafter.fuse(STREAMS), norm(JOINED) @ drafter.fc.weight.T, atol=1e-5)


# --- what is fed back ------------------------------------------------------------------------------------------------


def test_norm_output_feeds_back_the_normed_state_and_changes_no_proposal_of_it(tmp_path: Path) -> None:
    plain = loaded(tmp_path / "a", drafter_files()).drafter
    normed = loaded(tmp_path / "b", with_fields(norm_output=True)).drafter
    feature = plain.fuse(STREAMS)
    fed_back = step(normed, feature)
    assert torch.allclose(fed_back, norm(step(plain, feature), plain.norm.weight), atol=1e-5)
    assert torch.allclose(normed.head(fed_back), plain.head(step(plain, feature)), atol=1e-4)


def test_norm_before_residual_carries_the_normed_feature(tmp_path: Path) -> None:
    drafter = loaded(tmp_path, with_fields(norm_before_residual=True)).drafter
    for name in ("o_proj", "down_proj"):  # with both silent only the residual is left
        module = drafter.midlayer.self_attn if name == "o_proj" else drafter.midlayer.mlp
        getattr(module, name).weight.zero_()
    feature = drafter.fuse(STREAMS)
    assert torch.allclose(step(drafter, feature), norm(feature, drafter.midlayer.hidden_norm.weight), atol=1e-5)


# --- layers ----------------------------------------------------------------------------------------------------------


def further_layer() -> dict[str, np.ndarray]:
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (WIDE, HIDDEN),
        "mlp.up_proj": (WIDE, HIDDEN),
        "mlp.down_proj": (HIDDEN, WIDE),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    return {f"layers.1.{name}.weight": random(*shape) for name, shape in shapes.items()}


def test_further_layers_are_plain_decoder_layers(tmp_path: Path) -> None:
    one = loaded(tmp_path / "a", drafter_files()).drafter
    files = with_fields(num_hidden_layers=2)
    files.tensors |= further_layer()
    two = loaded(tmp_path / "b", files).drafter
    feature = one.fuse(STREAMS)
    x = step(one, feature)
    layer: Any = two.layers["1"]
    x = x + layer.self_attn(1, norm(x, layer.input_layernorm.weight), two.rope(POSITIONS, x.dtype), CausalAttention())
    x = x + layer.mlp(norm(x, layer.post_attention_layernorm.weight))
    assert torch.allclose(step(two, feature), x, atol=1e-3)


def qwen3() -> Files:
    files = with_fields(model_type="qwen3")
    files.tensors |= {f"midlayer.self_attn.{name}_norm.weight": random(HEAD_DIM) for name in "qk"}
    return files


def biased() -> Files:
    files = with_fields(attention_bias=True)
    sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": HIDDEN}
    files.tensors |= {f"midlayer.self_attn.{name}_proj.bias": random(size) for name, size in sizes.items()}
    return files


def latent() -> Files:
    """As Eagle3DeepseekV2ForCausalLM."""
    files = with_fields(
        architectures=["Eagle3DeepseekV2ForCausalLM"],
        q_lora_rank=10,
        kv_lora_rank=8,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale_all_dim": 1.0},
    )
    for name in "qkvo":
        del files.tensors[f"midlayer.self_attn.{name}_proj.weight"]
    shapes = {
        "q_a_proj": (10, 2 * HIDDEN),
        "q_a_layernorm": (10,),
        "q_b_proj": (HEADS * 10, 10),
        "kv_a_proj_with_mqa": (12, 2 * HIDDEN),
        "kv_a_layernorm": (8,),
        "kv_b_proj": (HEADS * 11, 8),
        "o_proj": (HIDDEN, HEADS * 5),
    }
    files.tensors |= {f"midlayer.self_attn.{name}.weight": random(*shape) for name, shape in shapes.items()}
    return files


def speculators() -> Files:
    """The config that the speculators library writes: the layer nested, the flags outside."""
    files = drafter_files()
    outside = ("architectures", "draft_vocab_size", "norm_before_residual", "eagle_aux_hidden_state_layer_ids")
    layer = {name: value for name, value in files.config.items() if name not in outside}
    files.config = {name: files.config[name] for name in outside} | {"norm_before_fc": True}
    files.config |= {"speculators_model_type": "eagle3", "transformer_layer_config": {**layer, "model_type": "llama"}}
    files.tensors["input_norm.weight"] = random(3 * HIDDEN)
    files.rename("midlayer.", "layers.0.")
    return files


@pytest.mark.parametrize("files", [qwen3, biased, latent, speculators])
def test_every_kind_of_drafter_is_loaded_whole_and_drafts(tmp_path: Path, files: Callable[[], Files]) -> None:
    """Drafts from all positions at once are those of a step by step chain."""
    drafter = loaded(tmp_path, files()).drafter
    tokens = torch.randint(64, (1, ROWS + 1), generator=torch.Generator().manual_seed(0))
    everywhere = draft_everywhere(drafter, tokens, STREAMS, 3)  # [3, 1, ROWS]
    text, feature = tokens[:, 1:], drafter.fuse(STREAMS)
    features = feature
    for j in range(3):
        embedding = F.embedding(text, drafter.embed_tokens.weight)
        hidden = drafter.step(embedding, features, torch.arange(text.shape[1])[None], CausalAttention())
        newest = drafter.target_ids[drafter.head(hidden[:, -1:]).argmax(-1)]
        assert int(newest) == int(everywhere[j, 0, -1])
        features = torch.cat([features, hidden[:, -1:]], 1)
        text = torch.cat([text, newest], 1)


# --- in the engine ---------------------------------------------------------------------------------------------------


def test_speculation_with_every_flag_changes_no_text() -> None:
    llama, right = tiny_pair()
    described = replace(right.drafter, norm_before_fc=True, fc_norm=True, norm_output=True, layers=2, fc_bias=True)
    torch.manual_seed(0)
    drafter = Eagle3(described).requires_grad_(False).eval()
    drafter.load_state_dict(right.state_dict(), strict=False)
    some = prompts()[:3]
    plain = generate(make_engine(speculate=False), some, 12)
    assert generate(make_engine(pair=(llama, drafter)), some, 12) == plain
