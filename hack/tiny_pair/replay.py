"""Acceptance of a wiring, by replaying draft rounds over the target's greedy text.

Speculation is lossless: every wiring, however wrong, yields the target's own greedy text and differs only in how much
of it was drafted. So the text is made once, all drafts from all positions are made in one pass, and the rounds are
counted on it. `chain_decode` does it round by round as an engine would, to prove the replay right.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tiny_pair.model import Drafter, KeysValues, Target


def as_it_is(stream: Tensor, index: int) -> Tensor:
    return stream


@dataclass(frozen=True)
class Wiring:
    """How an engine joins drafter and target. The defaults with the right `capture` are right."""

    target: Target
    drafter: Drafter
    capture: tuple[int, ...]
    view: Callable[[Tensor, int], Tensor] = as_it_is  # what is captured of a stream
    fused: bool = True  # False: fc skipped, the feature is the one captured stream
    draft_to_target: Tensor | None = None  # [Vd]; None: draft id + d2t
    embedding: Tensor | None = None  # [V, H]; None: the target's

    def draft(self, tokens: Tensor, length: int) -> Tensor:
        """tokens [B, T + 1] -> [length, B, T]: what is drafted after each position t, whose next token is known.

        Entry [k, b, t] is a proposal for token t + 2 + k of sequence b.
        """
        embedding = self.target.model.embed_tokens.weight if self.embedding is None else self.embedding
        offsets = self.drafter.d2t
        mapped = offsets + torch.arange(len(offsets)) if self.draft_to_target is None else self.draft_to_target
        _, streams = self.target(tokens[:, :-1])
        feature = torch.cat([self.view(streams[i], i) for i in self.capture], -1)
        feature = self.drafter.fc(feature) if self.fused else feature
        newest, proposals = tokens[:, 1:], []
        cache: list[KeysValues] = []
        for _ in range(length):
            feature, logits = self.drafter.step(F.embedding(newest, embedding), feature, cache)
            newest = mapped[logits.argmax(-1)]
            proposals.append(newest)
        return torch.stack(proposals)


@dataclass(frozen=True)
class PromptTally:
    """Counts over the rounds of one prompt."""

    drafts: int
    accepted: tuple[int, ...]  # per position


@dataclass(frozen=True)
class Tally:
    """Counts over all prompts."""

    prompts: tuple[PromptTally, ...]

    @property
    def drafts(self) -> int:
        return sum(prompt.drafts for prompt in self.prompts)

    @property
    def accepted(self) -> tuple[int, ...]:
        return tuple(sum(column) for column in zip(*(prompt.accepted for prompt in self.prompts), strict=True))

    @property
    def accept_length(self) -> float:
        return 1 + sum(self.accepted) / self.drafts

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance per position, as shares of all drafts."""
        return tuple(count / self.drafts for count in self.accepted)


def count_rounds(text: list[int], known: int, drafted: list[list[int]]) -> PromptTally:
    """Replay rounds over `text`, of which `known` tokens are there at first.

    drafted[t] are the K proposals that follow token t + 1; they are made when t + 2 tokens are known.
    """
    length = len(drafted[0])
    drafts, accepted_at = 0, [0] * length
    while known + length < len(text):
        accepted = 0
        for k, token in enumerate(drafted[known - 2]):
            if token != text[known + k]:
                break
            accepted_at[k] += 1
            accepted += 1
        drafts += 1
        known += accepted + 1
    return PromptTally(drafts, tuple(accepted_at))


def greedy_texts(target: Target, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    return [target.greedy(torch.tensor([prompt]), new_tokens)[0].tolist() for prompt in prompts]


def replay(wiring: Wiring, texts: list[list[int]], starts: list[int], length: int) -> Tally:
    """`starts`: sizes of the prompts, in tokens. The first new token comes from the prompt's own forward."""
    rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    proposals = wiring.draft(rows, length).permute(1, 2, 0).tolist()  # [B][T][length]
    return Tally(
        tuple(
            count_rounds(text, start + 1, drafted)
            for text, start, drafted in zip(texts, starts, proposals, strict=True)
        )
    )


def chain_decode(wiring: Wiring, prompt: list[int], new_tokens: int, length: int) -> tuple[list[int], PromptTally]:
    """Speculative decoding as an engine does it: draft, verify all drafts in one target forward, accept, add one."""
    text, drafts, accepted_at = list(prompt), 0, [0] * length
    text.append(int(wiring.target(torch.tensor([text]))[0][0, -1].argmax()))
    while len(text) + length < len(prompt) + new_tokens:
        drafted = wiring.draft(torch.tensor([text]), length)[:, 0, -1].tolist()
        verdict = wiring.target(torch.tensor([text + drafted]))[0][0, len(text) - 1 :].argmax(-1).tolist()
        accepted = 0
        while accepted < length and drafted[accepted] == verdict[accepted]:
            accepted_at[accepted] += 1
            accepted += 1
        drafts += 1
        text += verdict[: accepted + 1]
    return text, PromptTally(drafts, tuple(accepted_at))
