"""Rows for `kernels.draw` with settings of all kinds, and what `engine.sampling`, in plain torch, takes from them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_worker.engine import sampling
from tandem_worker.engine.drawing import Drawing
from tandem_worker.engine.request import Request, Sampling
from tandem_worker.engine.sampling import Changes, Settings
from tandem_worker.kernels.choice import COLUMNS, Best, largest, take
from tandem_worker.kernels.cuts import AHEAD, BEHIND
from tandem_worker.kernels.draw import FORM, Form, Scratch, draw
from tandem_worker.kernels.launch import cdiv

KINDS = {"smooth": 3.0, "tied": 1.0, "flat": 0.01, "sharp": 8.0}


def logits_of(kind: str, rows: int, vocab: int, seed: int) -> Tensor:
    x = KINDS[kind] * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    return x.round() if kind == "tied" else x


def small(lanes: int, warps: int = 1) -> Form:
    """So that a few tokens are several blocks."""
    return Form(block=2 * lanes, steps=2, lanes=lanes, warps=warps)


def any_request(chance: random.Random, vocab: int) -> Request:
    """A quarter is greedy by its settings; every other setting comes with every other."""
    settings = {
        "temperature": chance.choice((0.0, 0.3, 0.7, 1.0, 1.5, 8.0)),
        "top_k": chance.choice((0, 0, 1, 2, 9, vocab // 2, 2 * vocab)),
        "top_p": chance.choice((1.0, 1.0, 0.05, 0.5, 0.9, 0.999)),
        "min_p": chance.choice((0.0, 0.0, 0.02, 0.5)),
        "presence_penalty": chance.choice((0.0, 0.0, -1.0, 1.5)),
        "frequency_penalty": chance.choice((0.0, 0.0, -0.4, 0.7)),
        "repetition_penalty": chance.choice((1.0, 1.0, 0.8, 1.3)),
        "logit_bias": chance.choice(((), tuple((chance.randrange(vocab), chance.uniform(-9, 9)) for _ in range(3)))),
        "seed": chance.getrandbits(64) - (1 << 63),
    }
    prompt = tuple(chance.choices(range(vocab), k=chance.randrange(1, 9)))
    request = Request(prompt, Sampling(99, **settings), lambda tokens, finish: None)  # type: ignore[arg-type]
    request.tokens += chance.choices(chance.choices(range(vocab), k=3), k=chance.randrange(20))  # some of them often
    return request


def drafts_of(requests: Sequence[Request], drafts: int, vocab: int, chance: random.Random) -> Tensor:
    """[B, T] newest and drafted tokens, which repeat what the texts hold already."""
    rows = [[one.tokens[-1], *chance.choices([*one.tokens, *range(vocab)], k=drafts)] for one in requests]
    return torch.tensor(rows, dtype=torch.int32)


def best_of(logits: Tensor) -> Best:
    tiles = cdiv(logits.shape[-1], COLUMNS)
    values = torch.zeros(len(logits), tiles, device=logits.device)
    best = Best(values, torch.zeros_like(values, dtype=torch.int32))
    largest(logits, len(logits), best)
    return best


def by_kernel(
    logits: Tensor,
    requests: Sequence[Request],
    tokens: Tensor,
    ahead: int = AHEAD,
    behind: int = BEHIND,
    form: Form = FORM,
) -> list[int]:
    """The tokens of rows [B * T, V]: T of each request."""
    (count, t), device, vocab = tokens.shape, logits.device, logits.shape[-1]
    drawing = Drawing(count, count * t, vocab, device)
    drawing.write(requests, count)
    rows = torch.arange(count * t, dtype=torch.int32, device=device)
    lengths = torch.tensor([len(one.tokens) - 1 for one in requests], dtype=torch.int32, device=device)
    best, chosen = best_of(logits), torch.zeros_like(rows)
    changes = (drawing.bias, drawing.generated, drawing.prompt)
    scratch = Scratch(vocab, count * t, device, ahead, behind, form)
    asked = (drawing.reals, drawing.wholes, changes)
    draw(logits, best, len(rows), rows // t, rows % t, tokens.to(device), lengths, *asked, scratch)
    take(best, len(rows), chosen)
    found: list[int] = chosen.tolist()
    return found


def by_torch(logits: Tensor, requests: Sequence[Request], tokens: Tensor) -> list[int]:
    """The same by the definition; -1 where a row is not finite."""
    device, vocab, found = logits.device, logits.shape[-1], list[int]()
    for row, x in enumerate(logits):
        request, nth = requests[row // tokens.shape[1]], row % tokens.shape[1]
        drafted = tokens[row // tokens.shape[1], 1 : nth + 1].tolist()
        bias = torch.zeros(1, vocab, device=device)
        for token, value in request.sampling.logit_bias:
            bias[0, token] = value
        held = torch.tensor([*request.tokens[len(request.prompt) :], *drafted], dtype=torch.int64)
        prompt = torch.zeros(1, vocab, dtype=torch.bool, device=device)
        prompt[0, list(request.prompt)] = True
        changes = Changes(bias, torch.bincount(held, minlength=vocab)[None].to(device), prompt)
        position = torch.tensor([len(request.tokens) + nth], device=device)
        settings = Settings.of([request.sampling], vocab, device)
        if not x.isfinite().all():
            found.append(-1)
        elif request.sampling.greedy:
            found.append(int(x.float().argmax()))
        else:
            found.append(int(sampling.choose(x[None].float(), settings, position, changes, cut=True)))
    return found
