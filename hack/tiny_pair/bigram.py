"""The drafter to beat: after each token the one that follows it most often in the training text."""

import torch
from torch import Tensor

from tiny_pair.replay import Tally, count_rounds


def bigram_table(tokens: Tensor, vocabulary: int) -> Tensor:
    """tokens [N] of the training text -> [V]: the most frequent follower of each token (the lowest id on a tie)."""
    pairs = torch.bincount(tokens[:-1] * vocabulary + tokens[1:], minlength=vocabulary**2)
    return pairs.view(vocabulary, vocabulary).argmax(1)


def bigram_tally(table: Tensor, texts: list[list[int]], starts: list[int], length: int) -> Tally:
    prompts = []
    for text, start in zip(texts, starts, strict=True):
        newest, chain = torch.tensor(text[1:]), []
        for _ in range(length):
            newest = table[newest]
            chain.append(newest)
        prompts.append(count_rounds(text, start + 1, torch.stack(chain, 1).tolist()))
    return Tally(tuple(prompts))
