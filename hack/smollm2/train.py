"""An EAGLE-3 drafter for a chat model, trained on what the model itself says.

    python -m smollm2.train --target build/smollm2/target --out build/smollm2/drafter --device cuda

1. The model writes the users' turns, too: after the chat template's opening it is sampled at temperature 1 up to the
   end of the turn, then it answers, half of them greedily (Magpie, arXiv 2406.08464). No data set is needed. One prompt
   in fifty is held out, and is in no text to learn from.
2. The draft vocabulary is the most frequent tokens of the answers.
3. The drafter learns from the target's true streams and, as in service, from its own hidden states: STEPS unrolled
   draft steps, soft cross-entropy against the target's distribution on the draft vocabulary, step j weighted by 0.8**j
   (training-time test, arXiv 2503.01840).
4. Measured is the accept length of greedy answers, by the engine that serves: to the held-out prompts, and to the
   English questions of the probe's calibration text, which people wrote.

With the defaults it takes six minutes on one H200. That the script runs shows within a minute on a CPU with `--device
cpu --texts 60 --steps 3 --rows 2 --batch 60 --answer-tokens 24 --draft-vocab 64`; what it trains then is worth nothing.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from smollm2.writing import write
from tandem_worker.checkpoint import Checkpoint, open_checkpoint, read_target
from tandem_worker.checkpoint.description import Drafter, Target
from tandem_worker.contract import Origin
from tandem_worker.engine.engine import Engine, EngineOptions
from tandem_worker.engine.record import NoRecord
from tandem_worker.engine.request import Request, Sampling
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.load import load_target
from tandem_worker.models.teacher_forced import UnrolledAttention
from tandem_worker.probe.prompts import SHIPPED
from tandem_worker.probe.template import Sandbox, read_template
from tiny_pair.learning import optimise

USER_TOKENS = 96
GREEDY_OF, HELD_OUT_OF = 2, 50
ASKED_KINDS = ("chat", "code", "maths")
MARK = "USER_TURN"
CONTEXT, STEPS, STEP_DECAY, DRAFT_LENGTH = 512, 5, 0.8, 5
MEASURED_BATCH, MEASURED_TOKENS = 32, 256
LEARNING_RATE = 1e-3


class Accepted(NoRecord):
    """Sums over drafts."""

    def __init__(self) -> None:
        self.drafts, self.tokens = 0, 0

    def drafted(self, origin: Origin, length: int, accepted: int) -> None:
        self.drafts += 1
        self.tokens += accepted


class Talk(NamedTuple):
    user: list[int]  # what the user says
    prompt: list[int]  # that within the template's text, up to where the answer begins
    answer: list[int]  # end token included, if it came to that


class Chat:
    """The target's template around one user's turn."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        template, sandbox = read_template(checkpoint), Sandbox()
        assert template is not None
        text = sandbox.render(template, [[{"role": "user", "content": MARK}]], add_generation_prompt=True)[0]
        sandbox.close()
        self.tokenizer = Tokenizer.from_file(str(checkpoint.path / "tokenizer.json"))
        self.before, self.behind = (self.tokenizer.encode(part).ids for part in text.split(MARK))

    def prompt(self, user: list[int]) -> list[int]:
        return [*self.before, *user, *self.behind]


def talks(llama: Llama, chat: Chat, count: int, longest: int, batch: int) -> list[Talk]:
    """So many conversations, `batch` written at once. longest: tokens of an answer."""
    said: list[Talk] = []
    while len(said) < count:
        size = min(batch, count - len(said))
        turns = write(llama, [chat.before] * size, [False] * size, min(USER_TOKENS, longest))
        users = [_without_end(turn, llama) for turn in turns]
        prompts = [chat.prompt(user) for user in users]
        answers = write(llama, prompts, [i % GREEDY_OF == 0 for i in range(size)], longest)
        said += map(Talk, users, prompts, answers)
        print(f"{len(said)} of {count} texts", flush=True)
    return said


def _without_end(turn: list[int], llama: Llama) -> list[int]:
    return turn[:-1] if turn and turn[-1] in llama.target.eos_token_ids else turn


def accept_length(llama: Llama, eagle3: Eagle3, prompts: Sequence[list[int]], options: EngineOptions) -> float:
    """Of greedy answers to them."""
    accepted = Accepted()
    engine = Engine(llama, eagle3, options, accepted)
    for prompt in prompts:
        engine.submit(Request(tuple(prompt), Sampling(MEASURED_TOKENS), lambda tokens, finish: None))
    while not engine.idle:
        engine.step()
    return 1 + accepted.tokens / max(1, accepted.drafts)


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
        fc_norm=True,  # streams of different layers differ in size by far
        norm_output=True,
        dtype="bfloat16",
        declared_at="default",
        capture_indexes=(2, n // 2, n - 3),
    )


def make_drafter(llama: Llama, kept: Tensor, device: torch.device) -> Eagle3:
    """kept [Vd], ascending: the target's ids that can be drafted. Norm and head begin as the target's own."""
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
    eagle3.norm.weight.data.copy_(llama.model.norm.weight.float())
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
        drafted = eagle3.head(feature.flatten(0, 1)[None]).view(*feature.shape[:2], -1)  # in one block, for speed
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
        "norm_before_residual": drafter.norm_before_residual,
        "fc_norm": drafter.fc_norm,
        "norm_output": drafter.norm_output,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in drafter.capture_indexes]},
        "max_position_embeddings": drafter.max_position_embeddings,
        "eos_token_id": list(target.eos_token_ids),
        "torch_dtype": "bfloat16",
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def questions() -> list[str]:
    texts = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))["text"]
    return [text["question"] for text in texts if text["kind"] in ASKED_KINDS]


def keep_prompts(chat: Chat, held_out: Sequence[Talk], file: Path) -> None:
    """For other measurements (`make bench-service PAIR=...`)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    texts = [*questions(), *(chat.tokenizer.decode(talk.user) for talk in held_out)]
    lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in texts if text.strip()]
    file.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--texts", type=int, default=16000)
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--rows", type=int, default=64, help="windows of 512 tokens in a step")
    parser.add_argument("--answer-tokens", type=int, default=384)
    parser.add_argument("--draft-vocab", type=int, default=16384)
    parser.add_argument("--batch", type=int, default=4000, help="texts written at once")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    checkpoint = open_checkpoint(args.target)
    target = read_target(checkpoint)
    llama = load_target(checkpoint, target, dtype, device)
    chat = Chat(checkpoint)

    begun = time.monotonic()
    said = talks(llama, chat, args.texts, args.answer_tokens, args.batch)
    held_out = said[::HELD_OUT_OF]
    unseen = {tuple(talk.user) for talk in held_out}
    learnt = [talk for talk in said if tuple(talk.user) not in unseen]
    tokens = torch.tensor([token for talk in learnt for token in (*talk.prompt, *talk.answer)], device=device)
    print(f"{len(said)} texts, {len(tokens)} tokens to learn from, {time.monotonic() - begun:.0f} s", flush=True)
    keep_prompts(chat, held_out, args.out.parent / "prompts.jsonl")

    answers = torch.tensor([token for talk in learnt for token in talk.answer])
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

    eagle3.to(dtype).embed_tokens = llama.model.embed_tokens
    options = EngineOptions(DRAFT_LENGTH, MEASURED_BATCH, MEASURED_BATCH * 1024, 2048, dtype=dtype, device=args.device)
    asked = [chat.prompt(chat.tokenizer.encode(question).ids) for question in questions()]
    for name, prompts in (("held-out prompts", [talk.prompt for talk in held_out]), ("questions", asked)):
        length = accept_length(llama, eagle3, prompts, options)
        print(f"accept length {length:.3f} at draft length {DRAFT_LENGTH}, greedy, {len(prompts)} {name}", flush=True)


if __name__ == "__main__":
    main()
