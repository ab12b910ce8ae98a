"""A pair of any size whose weights are random, whose cost is real, and whose acceptance is known beforehand.

Tokens stand alone or in couples (`following`): the target says a lone token again and again, and the tokens of a couple
in turn. For that its attention and MLPs add next to nothing to the residual stream, which so stays the embedding of the
newest token, and row f(x) of its head is the embedding of x. All products are as dense as in any model.

The drafter's feature of position t is that embedding too, through `fc`, and stays so from step to step. Its head says
f(f(x)) = x, which is right at each position of a lone token and at the first one of a couple, except for couples that
it got wrong. Of ten tokens six are alone, two a couple, two a couple that it got wrong: a text that begins with any of
them has its first drafted token accepted with chance 0.8, each further one with chance 0.75.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from random_checkpoint import SCALE, random_weight, write_drafter, write_target

FAINT = 1e-4
ALONE, COUPLE = 6, 8
"""Of ten tokens the first six; and the two after them. The last two are the couple that the drafter gets wrong."""


def following(token: int) -> int:
    """f, its own inverse."""
    digit = token % 10
    return token if digit < ALONE else token + 1 if digit % 2 == 0 else token - 1


def accepted(token: int, length: int) -> int:
    """Of a draft of so many tokens, in a text that goes on from this one."""
    digit = token % 10
    return length if digit < ALONE else min(1, length) if digit < COUPLE else 0


def write_pair(folder: Path, shape: Mapping[str, int], draft_vocab_size: int, device: str = "cpu") -> None:
    """target/ and drafter/. `shape`: fields of Target that differ from the tiny pair's, a vocabulary of whole tens."""
    vocab, hidden = shape["vocab_size"], shape["hidden_size"]
    embedding = torch.empty(vocab, hidden, dtype=torch.bfloat16, device=device).uniform_(-SCALE, SCALE).cpu()
    follows = torch.tensor([following(token) for token in range(vocab)])
    said = embedding[:draft_vocab_size].clone()
    wrong = torch.arange(draft_vocab_size) % 10 >= COUPLE
    said[wrong] = said[wrong].roll(1, 0)
    fuse = torch.cat([torch.eye(hidden), torch.zeros(hidden, 2 * hidden)], 1).bfloat16()

    def filled(own: Mapping[str, Tensor], name: str, parameter: nn.Parameter) -> Tensor:
        for end, value in own.items():
            if name.endswith(end):
                return value
        weight = random_weight(name, parameter, device)
        return weight * FAINT if name.endswith(("o_proj.weight", "down_proj.weight")) else weight

    target = {"embed_tokens.weight": embedding, "lm_head.weight": embedding[follows]}
    drafter = {"fc.weight": fuse, "lm_head.weight": said}
    described = write_target(folder / "target", shape, device, lambda name, x: filled(target, name, x))
    sizes = {name: value for name, value in shape.items() if name not in ("layers", "max_position_embeddings")}
    sizes |= {"draft_vocab_size": draft_vocab_size}
    write_drafter(folder / "drafter", described, sizes, device, lambda name, x: filled(drafter, name, x))
