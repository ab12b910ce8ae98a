"""An EAGLE-3 drafter for a chat model, trained on what the model itself says.

    python -m smollm2.train --target build/smollm2/target --out build/smollm2/drafter --device cuda

1. The model writes the users' turns, too: after the chat header it is sampled at temperature 1 up to the end of the
   turn, then it answers, one text in three greedily (Magpie, arXiv 2406.08464). No data set is needed. One text in
   fifty is held out.
2. The draft vocabulary is the most frequent tokens of the answers.
3. The drafter learns from the target's true streams and, as in service, from its own hidden states: STEPS unrolled
   draft steps, soft cross-entropy against the target's distribution on the draft vocabulary, step j weighted by 0.8**j
   (training-time test, arXiv 2503.01840).
4. Measured is the accept length of greedy answers to the held-out prompts, by the engine that serves.

The defaults are meant for ten minutes on one H200 and have not been tried. That the script runs shows within a minute
on a CPU with `--target examples/tiny-pair/target --device cpu --texts 6 --steps 3 --rows 2 --batch 6 --answer-tokens 24
--draft-vocab 64`; what it trains then is worth nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from tandem_worker.checkpoint import open_checkpoint, read_target
from tandem_worker.checkpoint.description import Drafter, Target
from tandem_worker.contract import Origin
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.record import NoRecord
from tandem_worker.engine.request import Finish, Listener, Request, Sampling
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.load import load_target
from tandem_worker.models.teacher_forced import UnrolledAttention
from tiny_pair.learning import optimise

USER, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
USER_TOKENS = 96
CONTEXT, STEPS, STEP_DECAY, DRAFT_LENGTH = 512, 5, 0.8, 5
LEARNING_RATE = 1e-3


class Accepted(NoRecord):
    """Sums over drafts."""

    def __init__(self) -> None:
        self.drafts, self.tokens = 0, 0

    def drafted(self, origin: Origin, length: int, accepted: int) -> None:
        self.drafts += 1
        self.tokens += accepted


def written(engine: Engine, asked: Sequence[tuple[list[int], Sampling]]) -> list[list[int]]:
    """What the model says after each prompt, end token included."""
    texts: list[list[int]] = [[] for _ in asked]

    def listener(text: list[int]) -> Listener:
        def listen(tokens: list[int], finish: Finish | None) -> None:
            text.extend(tokens)

        return listen

    for (prompt, sampling), text in zip(asked, texts, strict=True):
        engine.submit(Request(tuple(prompt), sampling, listener(text)))
    while not engine.idle:
        engine.step()
    return texts


def talks(engine: Engine, tokenizer: Tokenizer, count: int, longest: int) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) of so many conversations. longest: tokens of an answer."""
    user, assistant = (tokenizer.encode(part).ids for part in (USER, ASSISTANT))
    asked = [(user, Sampling(min(USER_TOKENS, longest), 1.0, seed=i)) for i in range(count)]
    prompts = [[*user, *_without_end(turn, engine), *assistant] for turn in written(engine, asked)]
    answering = [(p, Sampling(longest, 0.0 if i % 3 == 0 else 1.0, seed=i)) for i, p in enumerate(prompts)]
    return list(zip(prompts, written(engine, answering), strict=True))


def _without_end(turn: list[int], engine: Engine) -> list[int]:
    return turn[:-1] if turn and turn[-1] in engine.eos_token_ids else turn


def describe(target: Target, draft_vocab: int) -> Drafter:
    """One layer of the target's shape, on the streams that engines capture by default."""
    n = target.layers
    return Drafter(
        architecture="LlamaForCausalLMEagle3",
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab,
        target_hidden_size=target.hidden_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        max_position_embeddings=target.max_position_embeddings,
        norm_before_residual=False,
        dtype="bfloat16",
        declared_layer_ids=None,
        declared_at="default",
        capture_indexes=(2, n // 2, n - 3),
    )


def make_drafter(llama: Llama, kept: Tensor, device: torch.device) -> Eagle3:
    """kept [Vd], ascending: the target's ids that can be drafted. The head begins as the target's own rows of them."""
    eagle3 = Eagle3(describe(llama.target, len(kept))).to(device)
    for name, weight in eagle3.named_parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        else:
            nn.init.ones_(weight)
        weight.requires_grad_("embed_tokens" not in name)
    eagle3.d2t.copy_(kept - torch.arange(len(kept), device=device))
    eagle3.get_buffer("t2d")[kept] = True
    eagle3.lm_head.weight.data.copy_(llama.lm_head.weight[kept].float())
    eagle3.embed_tokens.weight.data.copy_(llama.model.embed_tokens.weight.float())
    return eagle3


def draft_loss(eagle3: Eagle3, llama: Llama, tokens: Tensor) -> tuple[Tensor, str]:
    """tokens [B, T]. Over the unrolled draft steps; hits per step as text."""
    with torch.no_grad():
        logits, streams = llama.whole(tokens)
        wanted = logits[..., eagle3.target_ids].float().softmax(-1)  # [B, T, Vd]: what the target says after t
        inside = eagle3.get_buffer("t2d")[logits.argmax(-1)]  # [B, T]: no loss where its choice can not be drafted
        captured = [streams[i].float() for i in eagle3.drafter.capture_indexes]
    feature, attend = eagle3.fuse(captured), UnrolledAttention()
    loss, hits = torch.zeros((), device=tokens.device), []
    for j in range(STEPS):
        # Position t knows the streams of token t and tokens up to t + 1 + j; it drafts token t + 2 + j.
        following = tokens.roll(-1 - j, 1)
        positions = torch.arange(j, j + tokens.shape[1], device=tokens.device).expand_as(tokens)
        feature = eagle3.step(F.embedding(following, eagle3.embed_tokens.weight), feature, positions, attend)
        drafted = eagle3.head(feature)
        end = tokens.shape[1] - 1 - j  # beyond it the rolled tokens are not the next ones
        want, mask = wanted[:, 1 + j :], inside[:, 1 + j :]
        entropy = -(want * drafted[:, :end].float().log_softmax(-1)).sum(-1)  # [B, end]
        loss = loss + STEP_DECAY**j * entropy[mask].mean()
        hits.append((drafted[:, :end].argmax(-1) == want.argmax(-1))[mask].float().mean())
    return loss, "hits " + " ".join(f"{hit:.2f}" for hit in hits)


def save(eagle3: Eagle3, target: Target, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    state = eagle3.state_dict()
    del state["embed_tokens.weight"]  # the target's
    halves = {name: x.to(torch.bfloat16) if x.is_floating_point() else x for name, x in state.items()}
    save_file({name: x.cpu().contiguous() for name, x in halves.items()}, out / "model.safetensors", {"format": "pt"})
    drafter = eagle3.drafter
    config = {
        "architectures": [drafter.architecture],
        "model_type": "llama",
        "hidden_size": drafter.hidden_size,
        "intermediate_size": drafter.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": drafter.heads,
        "num_key_value_heads": drafter.kv_heads,
        "head_dim": drafter.head_dim,
        "vocab_size": drafter.vocab_size,
        "draft_vocab_size": drafter.draft_vocab_size,
        "rms_norm_eps": drafter.rms_norm_eps,
        "rope_theta": drafter.rope_theta,
        "max_position_embeddings": drafter.max_position_embeddings,
        "eos_token_id": list(target.eos_token_ids),
        "torch_dtype": "bfloat16",
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--texts", type=int, default=40000)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rows", type=int, default=64, help="windows of 512 tokens in a step")
    parser.add_argument("--answer-tokens", type=int, default=384)
    parser.add_argument("--draft-vocab", type=int, default=16384)
    parser.add_argument("--batch", type=int, default=256, help="texts written at once")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    checkpoint = open_checkpoint(args.target)
    target = read_target(checkpoint)
    llama = load_target(checkpoint, target, dtype, device)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    room = args.batch * (USER_TOKENS + args.answer_tokens + 64)
    options = EngineOptions(DRAFT_LENGTH, args.batch, room, 2048, dtype=dtype, device=args.device)

    begun = time.monotonic()
    writer = Engine(llama, None, options)
    writer.prepare()
    said = talks(writer, tokenizer, args.texts, args.answer_tokens)
    held_out, learnt = said[::50], [talk for i, talk in enumerate(said) if i % 50]
    tokens = torch.tensor([token for prompt, answer in learnt for token in (*prompt, *answer)], device=device)
    print(f"{len(said)} texts, {len(tokens)} tokens to learn from, {time.monotonic() - begun:.0f} s", flush=True)
    del writer

    answers = torch.tensor([token for _, answer in learnt for token in answer])
    counts = torch.bincount(answers, minlength=target.vocab_size)
    kept = counts.topk(args.draft_vocab).indices.sort().values.to(device)
    print(f"draft vocabulary: {counts[kept.cpu()].sum() / counts.sum():.4f} of the answers' tokens", flush=True)
    eagle3 = make_drafter(llama, kept, device)
    context = min(CONTEXT, len(tokens) - 1)

    def loss_of_step() -> tuple[Tensor, str]:
        starts = torch.randint(len(tokens) - context, (args.rows,)).tolist()
        batch = torch.stack([tokens[start : start + context] for start in starts])
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return draft_loss(eagle3, llama, batch)

    optimise(eagle3, loss_of_step, args.steps, LEARNING_RATE, "drafter")
    eagle3.requires_grad_(False)
    save(eagle3, target, args.out)

    accepted = Accepted()
    eagle3.to(dtype).embed_tokens = llama.model.embed_tokens
    engine = Engine(llama, eagle3, replace(options, max_batch=min(32, args.batch)), accepted)
    written(engine, [(prompt, Sampling(args.answer_tokens)) for prompt, _ in held_out])
    length = 1 + accepted.tokens / max(1, accepted.drafts)
    print(f"accept length {length:.3f} at draft length {DRAFT_LENGTH}, greedy, {len(held_out)} held-out prompts")


if __name__ == "__main__":
    main()
