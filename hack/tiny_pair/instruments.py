"""More tiny pairs, for the probe: other families, shapes, seeds and settings than the first pair's, trained by the
worker's own modules in a few minutes each.

    python -m tiny_pair.instruments --out examples/probe-pairs [NAME ...]

They predict less well than the first pair does, which is enough to tell wirings apart. What each of them is for:

    norms     the first pair's target; features so large that the side of a norm shows
    ordinary  no separation and no whitening: neighbouring streams look alike and margins are small, as in real models
    latent    a nested config, latent attention and experts, as in Kimi-K2.5; a Llama-style drafter
    deep      other depth, rope, norm side; a tied target; an embedding of the drafter's own
    normed    EAGLE-3.1's norms, the whole vocabulary, a Qwen3 target, layers that no default names

`deep` and `normed` were not looked at while the rules of the diagnosis were made.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from tandem_worker.checkpoint import Target, open_checkpoint, read_drafter, read_target
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.families import FAMILIES
from tandem_worker.models.llama import Llama
from tandem_worker.models.load import load_target
from tandem_worker.models.teacher_forced import UnrolledAttention
from tiny_pair.corpus import documents
from tiny_pair.learning import Stream, initialise, optimise, whitening

FIRST_PAIR = Path(__file__).parents[2] / "examples" / "tiny-pair"
CHARACTERS = 3_000_000
CONTEXT, BATCH, UNROLLED_STEPS, STEP_DECAY = 128, 8, 3, 0.8
IDS = "eagle_aux_hidden_state_layer_ids"

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
LATENT = SHAPE | {
    "model_type": "kimi_k2",
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_hidden_layers": 7,
}


@dataclass(frozen=True)
class Instrument:
    seed: int
    drafter: Mapping[str, Any]  # what its config says beside SHAPE
    target: Mapping[str, Any] | None = None  # None: the first pair's
    separation: float = 0.3  # as in `learning.Recipe`
    whitening_floor: float | None = 0.005
    feature_scale: float = 0.08
    own_embedding: bool = False
    target_steps: int = 500
    drafter_steps: int = 350
    prefix: str = ""  # before the names of the target's tensors


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {IDS: list(ids), "use_aux_hidden_state": True}}


FIRST = {"hidden_size": 96, "head_dim": 32, "intermediate_size": 192}
INSTRUMENTS: Mapping[str, Instrument] = {
    "norms": Instrument(11, FIRST | nested(1, 3, 4), feature_scale=4.0),
    "ordinary": Instrument(
        12,
        nested(1, 3, 4),
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 8, **SHAPE},
        separation=0.0,
        whitening_floor=None,
        feature_scale=1.0,
    ),
    "latent": Instrument(
        13,
        nested(1, 2, 3),
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "text_config": LATENT,
            "vision_config": {"hidden_size": 32, "vocab_size": 9},
        },
        prefix="language_model.",
    ),
    "deep": Instrument(
        14,
        {"rope_theta": 1e6, "norm_before_residual": True, **nested(1, 4, 6)},
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 10,
            "tie_word_embeddings": True,
            **(SHAPE | {"rope_theta": 1e6}),
        },
        feature_scale=0.5,
        own_embedding=True,
    ),
    "normed": Instrument(
        15,
        {"fc_norm": True, "norm_output": True, "draft_vocab_size": 512, **nested(0, 3, 7)},
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 9, **SHAPE},
        feature_scale=0.3,
    ),
}


@dataclass
class Workshop:
    """What all pairs are trained on."""

    out: Path
    tokenizer: Tokenizer = field(init=False)
    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(FIRST_PAIR / "target" / "tokenizer.json"))
        self.stream = Stream(self.tokenizer, documents(1, CHARACTERS))

    def batch(self, generator: torch.Generator, rows: int = BATCH) -> Tensor:
        """[rows, CONTEXT + 1]"""
        return self.stream.batch(generator, rows)[:, : CONTEXT + 1]


def make(name: str, shop: Workshop) -> dict[str, float]:
    made, folder = INSTRUMENTS[name], shop.out / name
    torch.manual_seed(made.seed)
    generator = torch.Generator().manual_seed(made.seed)
    if made.target is None:
        checkpoint = open_checkpoint(FIRST_PAIR / "target")
        llama = load_target(checkpoint, read_target(checkpoint), torch.float32, torch.device("cpu"))
    else:
        llama = train_target(name, made, _described(folder / "target", made.target), shop, generator)
        save(llama, folder / "target", made.prefix)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(FIRST_PAIR / "target" / file, folder / "target" / file)
    eagle3, hits = train_drafter(name, made, folder / "drafter", llama, shop, generator)
    save(eagle3, folder / "drafter", "", () if made.own_embedding else ("embed_tokens.weight",))
    return {f"hits at position {k}": round(hit, 3) for k, hit in enumerate(hits)}


def _described(folder: Path, config: Mapping[str, Any]) -> Target:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return read_target(open_checkpoint(folder, weights_expected=False))


def train_target(name: str, made: Instrument, target: Target, shop: Workshop, generator: torch.Generator) -> Llama:
    llama = FAMILIES[target.family](target)
    initialise(llama)
    for parameter, weight in llama.named_parameters():
        if parameter.endswith("e_score_correction_bias"):
            nn.init.zeros_(weight)
    if target.tie_word_embeddings:
        nn.init.normal_(llama.model.embed_tokens.weight, std=0.1)

    def loss_of_step() -> tuple[Tensor, str]:
        tokens = shop.batch(generator)
        logits, streams = llama.whole(tokens[:, :-1])
        entropy = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        alike = torch.stack([F.cosine_similarity(a, b, dim=-1) for a, b in pairwise(streams)]).square().mean()
        return entropy + made.separation * alike, f"cross-entropy {entropy:.3f}  cosine^2 {alike:.3f}"

    optimise(llama, loss_of_step, made.target_steps, 5e-3, f"{name} target")
    return llama.bfloat16().float().requires_grad_(False)


def train_drafter(
    name: str, made: Instrument, folder: Path, llama: Llama, shop: Workshop, generator: torch.Generator
) -> tuple[Eagle3, list[float]]:
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}
    config |= SHAPE | {"draft_vocab_size": 256, "norm_before_residual": False} | dict(made.drafter)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    described = read_drafter(open_checkpoint(folder, weights_expected=False), llama.target)
    eagle3 = Eagle3(described)
    initialise(eagle3)
    counts = torch.bincount(shop.stream.tokens, minlength=described.vocab_size)
    ids = counts.topk(described.draft_vocab_size).indices.sort().values
    eagle3.d2t = ids - torch.arange(len(ids))
    eagle3.t2d = torch.zeros(described.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    eagle3.embed_tokens.weight = nn.Parameter(llama.model.embed_tokens.weight.clone(), made.own_embedding)
    with torch.no_grad():
        sample = joined(eagle3, llama.whole(shop.batch(generator, 64)[:, :-1])[1])
        white = made.feature_scale * whitening(sample.flatten(0, 1), made.whitening_floor)
    told: list[list[float]] = []

    def loss_of_step() -> tuple[Tensor, str]:
        loss, hits = draft_loss(eagle3, llama, white, shop.batch(generator)[:, :-1])
        told.append(hits)
        return loss, "hits " + " ".join(f"{hit:.2f}" for hit in hits)

    optimise(eagle3, loss_of_step, made.drafter_steps, 3e-3, f"{name} drafter")
    with torch.no_grad():
        eagle3.fc.weight.copy_(eagle3.fc.weight @ white)  # white is symmetric
    last = torch.tensor(told[-20:]).mean(0).tolist()
    return eagle3.bfloat16().float().requires_grad_(False), last


def joined(eagle3: Eagle3, streams: list[Tensor]) -> Tensor:
    """What enters fc, [B, T, 3H]."""
    seen = [streams[i] for i in eagle3.drafter.capture_indexes]
    if eagle3.fc_norm is not None:
        seen = [norm(stream) for norm, stream in zip(eagle3.fc_norm, seen, strict=True)]
    return torch.cat(seen, -1)


def draft_loss(eagle3: Eagle3, llama: Llama, white: Tensor, tokens: Tensor) -> tuple[Tensor, list[float]]:
    """As `learning.draft_loss`: soft cross-entropy over unrolled draft steps, tokens [B, T]."""
    with torch.no_grad():
        logits, streams = llama.whole(tokens)
        wanted = logits[..., eagle3.target_ids].softmax(-1)
        inside = torch.isin(logits.argmax(-1), eagle3.target_ids)
    feature, attend = F.linear(joined(eagle3, streams) @ white, eagle3.fc.weight), UnrolledAttention()
    loss, hits = torch.zeros(()), []
    for j in range(UNROLLED_STEPS):
        newest = F.embedding(tokens.roll(-1 - j, 1), eagle3.embed_tokens.weight)
        positions = (torch.arange(tokens.shape[1]) + j).expand_as(tokens)
        feature = eagle3.step(newest, feature, positions, attend)
        end = tokens.shape[1] - 1 - j
        drafted, want, mask = eagle3.head(feature)[:, :end], wanted[:, 1 + j :], inside[:, 1 + j :]
        entropy = -(want * drafted.log_softmax(-1)).sum(-1)
        loss = loss + STEP_DECAY**j * entropy[mask].mean()
        hits.append(float((drafted.argmax(-1) == want.argmax(-1))[mask].float().mean()))
    return loss, hits


def save(model: nn.Module, folder: Path, prefix: str, without: tuple[str, ...] = ()) -> None:
    """Weights as bf16. A tied head is not written."""
    whole_vocabulary = isinstance(model, Eagle3) and model.drafter.draft_vocab_size == model.drafter.vocab_size
    skipped = {*without, *(("d2t", "t2d") if whole_vocabulary else ())}
    if isinstance(model, Llama) and model.target.tie_word_embeddings:
        skipped.add("lm_head.weight")
    tensors = {
        prefix + name: (x.bfloat16() if x.is_floating_point() else x).contiguous().clone()
        for name, x in model.state_dict().items()
        if name not in skipped
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="*", help="default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    shop = Workshop(args.out)
    for name in args.names or INSTRUMENTS:
        reached = make(name, shop)
        (args.out / name / "training.json").write_text(json.dumps(reached, indent=1) + "\n")
        print(name, reached, flush=True)


if __name__ == "__main__":
    main()
