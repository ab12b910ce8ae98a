"""How target and drafter learn.

The pair is a measuring instrument: every wiring mistake must show in the acceptance. Two choices make it do so:

* The target is trained with a penalty on the cosine between neighbouring residual streams. In a small model they are
  otherwise so alike (cosine 0.9) that layer ids which are one off cost almost nothing.
* The drafter's fc is trained on whitened streams and the whitening is folded into fc.weight afterwards. Plain
  training leans on the few directions of large variance, which neighbouring layers share.

A third keeps the instrument steady on text it was not trained on: half of what the drafter learns from is the
target's own greedy text, continued from beginnings in which some tokens were replaced at random.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from tiny_pair.config import BOS, CAPTURE, EOS, DrafterConfig, TargetConfig
from tiny_pair.model import Drafter, KeysValues, Target

BATCH, CONTEXT = 8, 256  # sequences and tokens per sequence of a training step
UNROLLED_STEPS, STEP_DECAY = 4, 0.8  # draft steps in training, weight of each against the one before
OWN_TEXT_BATCH = 64  # rows written at a time; more fall out of the processor's cache


@dataclass(frozen=True)
class Recipe:
    target_steps: int = 1400
    target_lr: float = 4e-3
    separation: float = 0.3  # weight of the mean squared cosine of neighbouring streams; 0: ordinary training
    drafter_steps: int = 1600
    drafter_lr: float = 3e-3
    whitening_floor: float | None = 0.005  # as a share of the strongest direction; None: plain fc
    # Size of the fused features at the start. Small, so that drafts hang on the layer and not on fc -> lm_head alone.
    feature_scale: float = 0.08
    own_text_rows: int = 2048  # greedy text of the target; 0: learn from the corpus alone
    own_text_prompt_tokens: int = 64
    own_text_noise: float = 0.1  # share of the prompt's tokens that are replaced


class Stream:
    """The corpus as one row of tokens, documents between BOS and EOS, and random windows of it."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str]) -> None:
        encoded = [encoding.ids + [EOS] for encoding in tokenizer.encode_batch(texts)]
        self.tokens = torch.tensor([token for ids in encoded for token in ids])
        starts = (self.tokens == BOS).nonzero().flatten()
        self.starts = starts[starts < len(self.tokens) - CONTEXT]

    def batch(self, generator: torch.Generator, rows: int = BATCH) -> Tensor:
        """[rows, CONTEXT + 1]; the first half of the rows starts with a document, the others anywhere."""
        aligned = self.starts[torch.randint(len(self.starts), (rows // 2,), generator=generator)]
        anywhere = torch.randint(len(self.tokens) - CONTEXT, (rows - rows // 2,), generator=generator)
        return torch.stack([self.tokens[i : i + CONTEXT + 1] for i in torch.cat([aligned, anywhere])])


def initialise(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            continue
        std = 1.0 if "embed_tokens" in name else 0.02 if "lm_head" in name else weight.shape[1] ** -0.5
        nn.init.normal_(weight, std=std)


def optimise(
    model: nn.Module, loss_of_step: Callable[[], tuple[Tensor, str]], steps: int, lr: float, label: str
) -> None:
    """AdamW without weight decay; short warm-up, then linearly to zero. `loss_of_step()` -> loss, figures to print."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min(1, (s + 1) / 40) * (1 - s / steps))
    begin = time.monotonic()
    for step in range(1, steps + 1):
        loss, figures = loss_of_step()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            took = time.monotonic() - begin
            print(f"{label:16} step {step:5} of {steps}  {figures}  {took:4.0f} s", flush=True)


def train_target(stream: Stream, recipe: Recipe, seed: int, label: str) -> Target:
    """The result is rounded to bf16: the drafter has to learn from what will be stored."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    target = Target(TargetConfig())
    initialise(target)

    def loss_of_step() -> tuple[Tensor, str]:
        tokens = stream.batch(generator)  # [B, T + 1]
        logits, streams = target(tokens[:, :-1])
        entropy = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        cosines = [F.cosine_similarity(a, b, dim=-1) for a, b in pairwise(streams)]  # n of [B, T]
        alike = torch.stack(cosines).square().mean()
        return entropy + recipe.separation * alike, f"cross-entropy {entropy:.3f}  cosine^2 {alike:.3f}"

    optimise(target, loss_of_step, recipe.target_steps, recipe.target_lr, label)
    return target.bfloat16().float().requires_grad_(False)


def fuse(streams: list[Tensor]) -> Tensor:
    """-> [B, T, 3H]"""
    return torch.cat([streams[i] for i in CAPTURE], -1)


def whitening(features: Tensor, floor: float | None) -> Tensor:
    """features [N, 3H] -> symmetric S [3H, 3H] so that features @ S has about unit second moments in all directions.

    Directions weaker than `floor` times the strongest are not raised to the full, lest rounding be raised with them;
    None: only the overall size is set. No mean is subtracted: fc has no bias that could absorb it.
    """
    if floor is None:
        return torch.eye(features.shape[1]) / features.square().mean().sqrt()
    variance, directions = torch.linalg.eigh(features.T @ features / len(features))
    deviation = variance.clamp_min(0).sqrt()
    return directions @ torch.diag(1 / (deviation + floor * deviation[-1])) @ directions.T


@torch.no_grad()
def own_text(target: Target, stream: Stream, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Greedy text of the target after noisy beginnings -> [rows, CONTEXT + 1]."""
    rows: list[Tensor] = []
    known = recipe.own_text_prompt_tokens
    while len(rows) * OWN_TEXT_BATCH < recipe.own_text_rows:
        prompts = stream.batch(generator, OWN_TEXT_BATCH)[:, :known]
        noise = stream.tokens[torch.randint(len(stream.tokens), prompts.shape, generator=generator)]
        replaced = torch.rand(prompts.shape, generator=generator) < recipe.own_text_noise
        rows.append(target.greedy(torch.where(replaced, noise, prompts), CONTEXT + 1 - known))
    return torch.cat(rows)


def draft_loss(drafter: Drafter, target: Target, white: Tensor, tokens: Tensor) -> tuple[Tensor, str]:
    """tokens [B, T]. Soft cross-entropy over the unrolled draft steps, and hits per step as text."""
    logits, streams = target(tokens)
    vocabulary = drafter.d2t + torch.arange(len(drafter.d2t))  # [Vd]
    wanted = logits[..., vocabulary].softmax(-1)  # [B, T, Vd]: what the target says after position t
    inside = drafter.t2d[logits.argmax(-1)]  # [B, T]: no loss where the target's choice cannot be drafted
    feature, loss, hits = drafter.fc(fuse(streams) @ white), torch.zeros(()), []
    cache: list[KeysValues] = []
    for j in range(UNROLLED_STEPS):
        # Position t knows the stream of token t and tokens up to t + 1 + j; it drafts token t + 2 + j.
        feature, drafted = drafter.step(target.model.embed_tokens(tokens.roll(-1 - j, 1)), feature, cache)
        end = tokens.shape[1] - 1 - j  # beyond it the rolled tokens are not the next ones
        want, mask = wanted[:, 1 + j :], inside[:, 1 + j :]
        entropy = -(want * drafted[:, :end].log_softmax(-1)).sum(-1)  # [B, end]
        loss = loss + STEP_DECAY**j * entropy[mask].mean()
        hits.append((drafted[:, :end].argmax(-1) == want.argmax(-1))[mask].float().mean())
    return loss, "hits " + " ".join(f"{hit:.2f}" for hit in hits)


def train_drafter(target: Target, stream: Stream, recipe: Recipe, seed: int, label: str) -> Drafter:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 100)
    drafter = Drafter(DrafterConfig())
    initialise(drafter)
    counts = torch.bincount(stream.tokens, minlength=target.config.vocab_size)
    drafter.set_draft_vocabulary(counts.topk(drafter.config.draft_vocab_size).indices.sort().values)
    sample = target(stream.batch(generator, 64)[:, :-1])[1]
    white = recipe.feature_scale * whitening(fuse(sample).flatten(0, 1), recipe.whitening_floor)
    begin = time.monotonic()
    own = own_text(target, stream, recipe, generator) if recipe.own_text_rows else None
    print(f"{label:16} own text written in {time.monotonic() - begin:.0f} s", flush=True)

    def loss_of_step() -> tuple[Tensor, str]:
        if own is None:
            tokens = stream.batch(generator)
        else:
            chosen = own[torch.randint(len(own), (BATCH // 2,), generator=generator)]
            tokens = torch.cat([stream.batch(generator, BATCH // 2), chosen])
        return draft_loss(drafter, target, white, tokens[:, :-1])

    optimise(drafter, loss_of_step, recipe.drafter_steps, recipe.drafter_lr, label)
    with torch.no_grad():
        drafter.fc.weight.copy_(drafter.fc.weight @ white)  # white is symmetric: fc(x @ white) = (fc @ white)(x)
    return drafter.bfloat16().float().requires_grad_(False)
