"""Every family computes what transformers computes, layer by layer, from checkpoints that transformers wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem_worker.checkpoint import CheckpointError, Drafter, open_checkpoint, read_target
from tandem_worker.checkpoint.describe import ARCHITECTURES
from tandem_worker.checks.builtin import unserved
from tandem_worker.finding import Verdict
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.families import FAMILIES
from tandem_worker.models.load import load_target
from tandem_worker.probe.generate import continue_greedily
from tandem_worker.probe.stream import stream
from unit.pairs import target_files
from unit.serving import CPU, accepted, generate, make_engine

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
KIMI_YARN = {
    **YARN,
    "rope_theta": 50000.0,
    "factor": 64.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LATENT: dict[str, Any] = {
    **SIZES,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "num_mtp_layers": 0,
}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
ANY_JSON: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-3, 100) | st.floats() | st.text(max_size=4) | st.just([])
)
GPT_OSS: dict[str, Any] = {
    **SIZES,
    "hidden_size": 64,
    "intermediate_size": 32,
    "head_dim": 10,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "swiglu_limit": 0.7,
    "rope_parameters": {**YARN, "truncate": False},
}
MODELS_CONFIGS: dict[str, Callable[[], dict[str, Any]]] = {
    "kimi-k2": lambda: {
        "architectures": ["DeepseekV3ForCausalLM"],
        **LATENT,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": KIMI_YARN,
    },
    "llama3": lambda: {"architectures": ["LlamaForCausalLM"], **SIZES, "rope_parameters": LLAMA3},
    "gpt-oss": lambda: {"architectures": ["GptOssForCausalLM"], **GPT_OSS},
}
Make = Callable[[], "transformers.PreTrainedModel"]  # nothing of it is loaded before it is used: that takes seconds
MODELS: dict[str, Make] = {
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, head_dim=10, tie_word_embeddings=True)
    ),
    "llama3": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "llama-yarn": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, rope_parameters=YARN, attention_bias=True)
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=12)),
    "qwen3-moe": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, norm_topk_prob=True, mlp_only_layers=[1])
    ),
    "qwen3-moe-as-they-are": lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SIZES, **EXPERTS)),
    "deepseek-v3": lambda: transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            **LATENT, n_group=4, topk_group=2, routed_scaling_factor=2.5, rope_parameters=YARN
        )
    ),
    "deepseek-v3-plain": lambda: transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            **{**LATENT, "q_lora_rank": None, "n_shared_experts": 2},
            n_group=2,
            topk_group=1,
            norm_topk_prob=False,
            rope_interleave=False,
        )
    ),
    "gpt-oss": lambda: transformers.GptOssForCausalLM(transformers.GptOssConfig(**GPT_OSS)),
    "kimi-k2": lambda: transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            **LATENT, n_group=1, topk_group=1, routed_scaling_factor=2.827, rope_parameters=KIMI_YARN
        )
    ),
}


def written(make: Make, folder: Path) -> transformers.PreTrainedModel:
    """A model whose every parameter matters, saved as its authors would."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name:
                tensor.uniform_(0.5, 1.5)
            elif name.endswith(("weight", "_proj", "bias", "sinks")):
                tensor.normal_(0, 1.0 if "embed" in name else 0.2)
    model.save_pretrained(folder)
    return model


def nested_as_kimi(folder: Path) -> None:
    """As Kimi-K2.5 is published: the language model behind a prefix, its config inside another."""
    config = json.loads((folder / "config.json").read_text())
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": config}
    (folder / "config.json").write_text(json.dumps(outer))
    tensors = load_file(folder / "model.safetensors")
    tensors = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file({**tensors, "vision_tower.patch_embed.proj.weight": torch.zeros(3)}, folder / "model.safetensors")


@pytest.mark.parametrize("name", [*MODELS, "kimi-k2.5"])
def test_streams_and_choices_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = written(MODELS[name.removesuffix(".5")], tmp_path)
    if name.endswith(".5"):
        nested_as_kimi(tmp_path)
    prompt = torch.randint(96, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        generate: Any = model.generate
        text = generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False)[0]
        rows = [text, text[:7]]
        expected = [model(row[None], output_hidden_states=True) for row in rows]
    layers = model.config.num_hidden_layers
    streamed = stream(tmp_path, rows, range(layers + 1))
    logits = streamed.logits(streamed.final)
    for r, reference in enumerate(expected):
        for i in range(layers):
            close(streamed.rows(streamed.states[i])[r], reference.hidden_states[i][0])
        close(streamed.rows(streamed.final)[r], reference.hidden_states[layers][0])
        close(streamed.rows(logits)[r], reference.logits[0])
    choices = streamed.rows(logits.argmax(-1))[0]
    assert torch.equal(choices[len(prompt[0]) - 1 : -1], text[len(prompt[0]) :])  # the text that it wrote by itself


def close(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() < 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3-moe", "deepseek-v3", "gpt-oss"])
def test_the_whole_model_computes_and_writes_what_the_streamed_one_does(tmp_path: Path, name: str) -> None:
    written(MODELS[name], tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    model = load_target(checkpoint, read_target(checkpoint), torch.float32, CPU)
    with torch.inference_mode():
        (text,) = continue_greedily(model, [[3, 1, 4, 1, 5]], 12)
    streamed = stream(tmp_path, [torch.tensor(text)], ())
    assert streamed.logits(streamed.final).argmax(-1).tolist()[4:-1] == text[5:]
    tokens = torch.randint(96, (1, 12), generator=torch.Generator().manual_seed(2))
    streamed = stream(tmp_path, [tokens[0]], range(4))
    logits, streams = model.whole(tokens)
    close(logits[0], streamed.logits(streamed.final))
    for i, state in streamed.states.items():
        close(streams[i][0], state)


def test_every_architecture_that_is_read_has_a_family() -> None:
    assert {family.name for family in ARCHITECTURES.values()} == FAMILIES.keys()


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    files = target_files()
    files.config["architectures"] = ["Llama4ForConditionalGeneration"]
    with pytest.raises(CheckpointError, match="Llama4ForConditionalGeneration is not known") as caught:
        stream(files.write(tmp_path), [torch.tensor([1])], ())
    assert caught.value.verdict is Verdict.COULD_NOT_CHECK


@pytest.mark.parametrize(
    ("field", "value"),
    [("scoring_func", "softmax"), ("topk_method", "greedy"), ("moe_layer_freq", 2), ("attention_bias", True)],
)
def test_a_router_or_attention_of_another_kind_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    written(MODELS["kimi-k2"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(CheckpointError) as caught:
        stream(tmp_path, [torch.tensor([1])], ())
    assert (caught.value.finding.where, caught.value.verdict) == (field, Verdict.COULD_NOT_CHECK)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("kimi-k2", {"num_experts_per_tok": 9}),
        ("kimi-k2", {"n_group": 3}),
        ("kimi-k2", {"n_group": 8}),
        ("kimi-k2", {"n_group": 2, "topk_group": 3}),
        ("kimi-k2", {"n_routed_experts": 2**30}),
        ("kimi-k2", {"qk_rope_head_dim": 7}),
        ("kimi-k2", {"rope_parameters": {**KIMI_YARN, "rope_theta": 1.0}}),
        ("llama3", {"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}),
        ("gpt-oss", {"num_experts_per_tok": 7}),
    ],
)
def test_sizes_that_can_not_be_are_named(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    target = target_files()  # its tensors do not matter
    target.config = MODELS_CONFIGS[name]() | fields
    with pytest.raises(CheckpointError, match=r"that can not be: .*; expected") as caught:
        read_target(open_checkpoint(target.write(tmp_path)))
    assert caught.value.verdict is Verdict.COULD_NOT_CHECK


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.sampled_from(["kimi-k2", "gpt-oss", "llama3"]), st.data())
def test_any_value_in_any_field_gives_a_description_or_a_refusal(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    target = target_files()
    config = MODELS_CONFIGS[name]()
    changes = st.dictionaries(st.sampled_from(sorted(config)), ANY_JSON, min_size=1, max_size=2)
    scaling = st.dictionaries(st.sampled_from(sorted(KIMI_YARN | LLAMA3)), ANY_JSON, max_size=2)
    config |= {"rope_parameters": config["rope_parameters"] | data.draw(scaling)} | data.draw(changes)
    target.config = config
    try:
        described = read_target(open_checkpoint(target.write(tmp_path)))
    except CheckpointError as failure:
        json.dumps(asdict(failure.finding))
    else:
        assert described.layers > 0
        FAMILIES[described.family].rotary(described)(torch.arange(4)[None], torch.float32)


# --- served ----------------------------------------------------------------------------------------------------------

DRAFTER: dict[str, Any] = {
    "vocab_size": 96,
    "draft_vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "target_hidden_size": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "norm_before_residual": False,
    "dtype": "float32",
    "declared_at": "default",
    "capture_indexes": (0, 1, 2),
}


@pytest.mark.parametrize("name", ["llama3", "llama-yarn", "qwen2", "qwen3"])
def test_the_engine_serves_the_text_of_transformers_with_speculation(tmp_path: Path, name: str) -> None:
    model = written(MODELS[name], tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    target = load_target(checkpoint, read_target(checkpoint), torch.float32, CPU)
    drafter = Eagle3(Drafter(architecture="LlamaForCausalLMEagle3", **DRAFTER)).requires_grad_(False).eval()
    engine = make_engine(pair=(target, drafter), draft_length=3)
    prompt = torch.randint(96, (1, 20), generator=torch.Generator().manual_seed(3))
    generate_reference: Any = model.generate
    with torch.no_grad():
        text = generate_reference(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False)
    assert generate(engine, prompt.tolist(), 24) == [text[0, 20:].tolist()]
    assert len(accepted(engine)) > 0  # drafts were verified


def test_what_is_probed_and_not_served_is_told_before_a_worker_starts(tmp_path: Path) -> None:
    written(MODELS["kimi-k2"], tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    (finding,) = unserved(read_target(checkpoint), None, checkpoint, None)
    assert finding.code == "TDM-NOT-SERVED"
    assert "latent attention and experts" in finding.message
    assert "SGLang or vLLM" in finding.action
