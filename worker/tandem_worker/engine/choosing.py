"""From the rows of a step to tokens, with the host in between: what requests ask for becomes the tensors of `sampling`.

`drawing` does the same on a GPU.

Shapes: M rows, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tandem_worker.engine import sampling
from tandem_worker.engine.request import Logprob, Request, Sampling
from tandem_worker.engine.sampling import Changes, Settings
from tandem_worker.engine.scheduler import Work

BROKEN = -1
"""Instead of a token where logits are not finite."""

TOLD_AT_ONCE = 8
"""Rows whose log probabilities are computed together; each takes some 30 bytes for a token of the vocabulary."""


class Row(NamedTuple):
    """A row of logits that decides the token behind a request's tokens and some drafted ones."""

    request: Request
    drafted: tuple[int, ...]

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling

    @property
    def tells(self) -> bool:
        return self.sampling.logprobs is not None

    @property
    def position(self) -> int:
        """Of the token that is decided."""
        return len(self.request.tokens) + len(self.drafted)


class Choice(NamedTuple):
    token: int  # BROKEN: nothing can be chosen
    logprob: Logprob | None = None  # where it was asked for


def rows_of(works: Sequence[Work]) -> list[Row]:
    """The deciding rows of a step: after the last known row, and after each proposal."""
    return [
        Row(work.request, work.proposals[:i]) for work in works if work.decides for i in range(len(work.proposals) + 1)
    ]


def by_work(works: Sequence[Work], choices: Sequence[Choice]) -> list[list[Choice]]:
    """The choices of `rows_of`, handed out."""
    left = iter(choices)
    return [[next(left) for _ in range(len(work.proposals) + 1)] if work.decides else [] for work in works]


def choose(logits: Tensor, rows: Sequence[Row]) -> list[Choice]:
    """The target's tokens. logits [M, V] float32."""
    finite = logits.sum(-1).isfinite()
    tokens: list[int] = torch.where(finite, logits.argmax(-1), BROKEN).tolist()
    drawn = [i for i, row in enumerate(rows) if not row.sampling.greedy and tokens[i] != BROKEN]
    if drawn:
        for i, token in zip(drawn, _draw(logits[drawn], [rows[i] for i in drawn]), strict=True):
            tokens[i] = token
    return with_logprobs(logits, rows, tokens)


def with_logprobs(logits: Tensor, rows: Sequence[Row], tokens: Sequence[int]) -> list[Choice]:
    """The chosen tokens, with log probabilities where they were asked for. logits [M, V]."""
    asked = [i for i, (row, token) in enumerate(zip(rows, tokens, strict=True)) if row.tells and token != BROKEN]
    if not asked:
        return [Choice(token) for token in tokens]
    counts = [rows[i].sampling.logprobs or 0 for i in asked]
    told = dict(zip(asked, _logprobs(logits, asked, [tokens[i] for i in asked], counts), strict=True))
    return [Choice(token, told.get(i)) for i, token in enumerate(tokens)]


def _draw(logits: Tensor, rows: Sequence[Row]) -> list[int]:
    vocab, device = logits.shape[-1], logits.device
    settings = Settings.of([row.sampling for row in rows], vocab, device)
    positions = torch.tensor([row.position for row in rows], device=device)
    changed = any(row.sampling.changes_logits for row in rows)
    changes = _changes(rows, vocab, device) if changed else None
    cut = any(row.sampling.cuts for row in rows)
    tokens: list[int] = sampling.choose(logits, settings, positions, changes, cut).tolist()
    return tokens


def _changes(rows: Sequence[Row], vocab: int, device: torch.device) -> Changes:
    """Rows that ask for none are zero."""
    bias = np.zeros((len(rows), vocab), dtype=np.float32)
    generated = np.zeros((len(rows), vocab), dtype=np.int32)
    prompt = np.zeros((len(rows), vocab), dtype=bool)
    for i, row in enumerate(rows):
        for token, value in row.sampling.logit_bias:
            bias[i, token] = value
        if row.sampling.penalises:
            np.add.at(generated[i], [*row.request.tokens[len(row.request.prompt) :], *row.drafted], 1)
            prompt[i, list(row.request.prompt)] = True
    return Changes(*(torch.from_numpy(x).to(device) for x in (bias, generated, prompt)))


def _logprobs(logits: Tensor, rows: list[int], tokens: list[int], counts: list[int]) -> list[Logprob]:
    """By the model itself: before bias, penalties, temperature and cuts.

    In portions that are made up to one size: memory of that size is used again and again. One wait in the end."""
    most, found, missing = max(counts), [], -len(rows) % TOLD_AT_ONCE
    asked = torch.tensor([rows + rows[:1] * missing, tokens + tokens[:1] * missing], device=logits.device)
    for index, own in asked.split(TOLD_AT_ONCE, 1):
        x = logits[index]
        top, total = x.topk(most), x.double().logsumexp(-1, keepdim=True)
        values = torch.cat([x.gather(-1, own[:, None]), top.values], -1).double() - total
        found.append(torch.cat([values, top.indices.double()], -1))  # so large a float has all ids
    lines: list[list[float]] = torch.cat(found).tolist()
    return [
        Logprob(token, line[0], tuple(zip(map(int, line[1 + most :][:count]), line[1 : 1 + count], strict=True)))
        for token, count, line in zip(tokens, counts, lines[: len(rows)], strict=True)
    ]
