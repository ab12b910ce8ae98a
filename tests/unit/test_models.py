"""The target computes what transformers computes; the drafter's files are taken by name, wholly or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from tandem_worker.checkpoint import CheckpointError, open_checkpoint, read_drafter, read_target
from tandem_worker.checks import resolve
from tandem_worker.engine.sampling import confirmed
from tandem_worker.models.load import load_drafter, load_target
from unit.drafting import draft_everywhere
from unit.pairs import TINY_PAIR, copy_of, drafter_files, target_files
from unit.serving import CPU, accepted, generate, load_pair, make_engine, prompts, tiny_pair


def test_target_equals_transformers_on_the_tiny_pair() -> None:
    llama, _ = tiny_pair()
    reference = transformers.LlamaForCausalLM.from_pretrained(TINY_PAIR / "target", dtype=torch.float32).eval()
    tokens = torch.tensor([prompts()[0][:48], prompts()[1][:48]])
    with torch.no_grad():
        expected = reference(tokens, output_hidden_states=True)
        logits, streams = llama.whole(tokens)
    assert (logits - expected.logits).abs().max() < 1e-4
    for index in range(llama.target.layers):  # transformers' last hidden state has passed the final norm
        assert (streams[index] - expected.hidden_states[index]).abs().max() < 1e-4
    assert torch.equal(llama.head(streams[-1]), logits)


@pytest.mark.parametrize("tied", [False, True])
def test_target_equals_transformers_with_grouped_heads_of_their_own_size(tmp_path: Path, tied: bool) -> None:
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        head_dim=10,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    reference = transformers.LlamaForCausalLM(config).eval()
    reference.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    llama = load_target(checkpoint, read_target(checkpoint), torch.float32, CPU)
    tokens = torch.randint(50, (2, 30))
    with torch.no_grad():
        assert (llama.whole(tokens)[0] - reference(tokens).logits).abs().max() < 1e-4
    assert (llama.lm_head.weight is llama.model.embed_tokens.weight) == tied


def test_greedy_text_equals_transformers() -> None:
    reference = transformers.LlamaForCausalLM.from_pretrained(TINY_PAIR / "target", dtype=torch.float32).eval()
    for prompt in prompts()[:4]:
        with torch.no_grad():
            text = reference.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
        assert generate(make_engine(), [prompt], 40) == [text[0, len(prompt) :].tolist()]


def test_parameters_are_named_as_in_the_files() -> None:
    llama, eagle3 = tiny_pair()
    assert set(dict(llama.named_parameters())) == set(open_checkpoint(TINY_PAIR / "target").tensors)
    assert set(eagle3.state_dict()) - {"embed_tokens.weight"} == set(open_checkpoint(TINY_PAIR / "drafter").tensors)


def test_loader_does_what_the_resolution_says() -> None:
    target_checkpoint, checkpoint = open_checkpoint(TINY_PAIR / "target"), open_checkpoint(TINY_PAIR / "drafter")
    llama, _ = tiny_pair()
    drafter = read_drafter(checkpoint, llama.target)
    loaded = load_drafter(checkpoint, drafter, llama, torch.float32, CPU)
    resolution = resolve(llama.target, drafter, target_checkpoint, checkpoint)
    assert loaded.loaded == resolution.loaded
    assert loaded.shared == resolution.shared == ("embed_tokens.weight",)
    assert loaded.missing == loaded.dropped == ()
    assert loaded.drafter.embed_tokens.weight is llama.model.embed_tokens.weight


def test_other_spellings_are_loaded_and_strangers_are_named(tmp_path: Path) -> None:
    target, files = target_files(), drafter_files()
    files.rename("midlayer.", "model.layers.0.")
    files.rename("model.layers.0.hidden_norm.weight", "hidden_norm_of_another_engine")
    target_checkpoint = open_checkpoint(target.write(tmp_path / "target"))
    checkpoint = open_checkpoint(files.write(tmp_path / "drafter"))
    llama = load_target(target_checkpoint, read_target(target_checkpoint), torch.float32, CPU)
    loaded = load_drafter(checkpoint, read_drafter(checkpoint, llama.target), llama, torch.float32, CPU)
    assert loaded.missing == ("midlayer.hidden_norm.weight",)
    assert loaded.dropped == ("hidden_norm_of_another_engine",)
    assert loaded.drafter.midlayer.hidden_norm.weight.is_meta  # not random: using it fails


def test_a_tensor_of_another_shape_than_the_config_says_is_named(tmp_path: Path) -> None:
    folder = copy_of("target", tmp_path, intermediate_size=100)
    with pytest.raises(CheckpointError, match=r"gate_proj.weight in model.safetensors is \[\d+, 96\].*\[100, 96\]"):
        load_pair(folder, TINY_PAIR / "drafter")


def test_a_target_with_too_few_layers_in_its_files_is_refused(tmp_path: Path) -> None:
    folder = copy_of("target", tmp_path, num_hidden_layers=12)
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.8\."):
        load_pair(folder, TINY_PAIR / "drafter")


def test_drafts_at_every_position_are_those_that_decoding_makes() -> None:
    """The probe's parallel drafts against the engine's chain: the same tokens accepted in every round."""
    llama, eagle3 = tiny_pair()
    length = 4
    for prompt in prompts()[:6]:
        engine = make_engine(draft_length=length)
        text = prompt + generate(engine, [prompt], 40)[0]
        tokens = torch.tensor([text])
        with torch.inference_mode():
            streams = llama.whole(tokens[:, :-1])[1]
            captured = [streams[i] for i in eagle3.drafter.capture_indexes]
            drafted = draft_everywhere(eagle3, tokens, captured, length)[:, 0].T.tolist()  # [T][length]
        known, expected = len(prompt) + 1, []
        while known + length < len(text):
            expected.append(confirmed(drafted[known - 2], text[known:]))
            known += expected[-1] + 1
        assert sum(expected) > 0
        assert accepted(engine)[: len(expected)] == expected
