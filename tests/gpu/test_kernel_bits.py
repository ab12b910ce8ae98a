"""A row has the same bits alone, in any batch, at any place and in any tile. Shapes of Llama-3.1-8B, bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tandem_worker.kernels import attention
from tandem_worker.kernels.attention import Partials
from tandem_worker.kernels.linear import PREFILL, TILES, Linear, Role, for_8_bits
from tandem_worker.kernels.norm import add_norm
from tandem_worker.kernels.rope import rotate
from tandem_worker.kernels.tiling import GROUP, Placing, Span, Tiling
from tandem_worker.models.random_pair import rounded

if TYPE_CHECKING:
    from gpu.conftest import Count

DEVICE, BF16 = torch.device("cuda"), torch.bfloat16
SHAPES = {
    "qkv": (Role.QKV, 6144, 4096),
    "out": (Role.OUT, 4096, 4096),
    "gate_up": (Role.GATE_UP, 28672, 4096),
    "down": (Role.DOWN, 4096, 14336),
    "draft qkv": (Role.QKV, 6144, 8192),
    "fc": (Role.OUT, 4096, 12288),
    "draft head": (Role.HEAD, 32000, 4096),
    "head": (Role.HEAD, 128256, 4096),
}
ROWS = 600
LAUNCHES = [
    (1, Span.ATOM, 4, 3),
    (1, Span.GROUP, 2, 2),
    (1, Span.ALL, 8, 2),
    (4, Span.ATOM, 8, 2),
    (4, Span.ALL, 4, 3),
    (8, Span.ATOM, 4, 1),
    (8, Span.GROUP, 4, 1),
    (8, Span.ALL, 4, 1),
    (32, Span.ATOM, 8, 2),
    (32, Span.GROUP, 8, 2),
    (32, Span.ALL, 8, 2),
]
"""Of attention: tokens of a tile, span, warps, stages."""


def heavy(*shape: int) -> Tensor:
    """Values over many binary orders of magnitude: alignment inside the matrix unit matters."""
    x = torch.randn(*shape, device=DEVICE)
    return (x * torch.exp(2.5 * torch.randn(*shape, device=DEVICE))).to(BF16)


def product(linear: Linear, x: Tensor, rows: int, tile: object = None) -> Tensor:
    gated_or_head = linear.role in (Role.GATE_UP, Role.HEAD)
    y = torch.full((2 * rows * linear.outputs,), float("nan"), device=DEVICE, dtype=BF16 if gated_or_head else None)
    count = linear(x, rows, y, tile)  # type: ignore[arg-type]
    parts = y[: count * rows * linear.outputs].view(count, rows, -1)
    return parts[0] if count == 1 else parts[0] + parts[1]


@pytest.mark.parametrize("inputs", ["normal", "heavy"])
@pytest.mark.parametrize("name", SHAPES)
def test_products(name: str, inputs: str, count: Count) -> None:
    torch.manual_seed(1)
    role, n, k = SHAPES[name]
    if inputs == "normal":
        weight = torch.empty(n, k, device=DEVICE, dtype=BF16).uniform_(-0.02, 0.02)
        x = torch.randn(ROWS, k, device=DEVICE, dtype=BF16)
    else:
        weight, x = heavy(n, k), heavy(ROWS, k)
    linear = Linear(weight, role)
    whole = product(linear, x, ROWS, PREFILL[role])
    if inputs == "normal" and role is not Role.GATE_UP:
        exact = F.linear(x[:64].float(), weight.float())
        assert (whole[:64].float() - exact).norm() / exact.norm() < 3e-3
    differing = compared = 0
    few = n * k > 2e8
    for rows in [1, 2, 6, 8, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 191, 192, 193, 256, 257, ROWS]:
        if few and rows not in (1, 8, 32, 48, 128, 192, 256, ROWS):
            continue
        picked = torch.randperm(ROWS, device=DEVICE)[:rows]
        y = product(linear, x[picked].contiguous(), rows)
        differing += int((y != whole[picked]).sum())
        compared += y.numel()
    for bucket in TILES:  # every tile, also where it would not be chosen
        if bucket < 192 or not few:
            y = product(linear, x[:40].contiguous(), 40, TILES[bucket][role])
            differing += int((y != whole[:40]).sum())
            compared += y.numel()
    count("rows, places, tiles", differing, compared)


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [(None, torch.float8_e4m3fn), (128, torch.float8_e4m3fn), (None, torch.int8)],
    ids=["fp8 by output", "fp8 by block", "int8 by output"],
)
@pytest.mark.parametrize("name", ["qkv", "out", "gate_up", "down"])
def test_products_of_8_bits(name: str, columns: int | None, dtype: torch.dtype, count: Count) -> None:
    """The bits of the bfloat16 weights that they stand for: alone, among others, in any tile."""
    torch.manual_seed(1)
    role, n, k = SHAPES[name]
    weight, x = rounded(heavy(n, k), columns, dtype), heavy(ROWS, k)
    whole = product(Linear(weight.restored(BF16), role), x, ROWS, PREFILL[role])
    eight = Linear(weight.values, role, weight.scale)
    differing = compared = 0
    for rows in (1, 2, 6, 8, 16, 17, 32, 48, 64, 65, 96, 128, 129, 192, 256, 257, ROWS):
        picked = torch.randperm(ROWS, device=DEVICE)[:rows]
        y = product(eight, x[picked].contiguous(), rows)
        differing += int((y != whole[picked]).sum())
        compared += y.numel()
    for tiles in (*TILES.values(), PREFILL):  # every tile, also where it would not be chosen
        y = product(eight, x[:40].contiguous(), 40, for_8_bits(tiles[role]))
        differing += int((y != whole[:40]).sum())
        compared += y.numel()
    count("against bfloat16 weights", differing, compared)


def test_norm(count: Count) -> None:
    torch.manual_seed(2)
    many = 1025
    partials, residual = torch.randn(2, many, 4096, device=DEVICE), torch.randn(many, 4096, device=DEVICE, dtype=BF16)
    gain = torch.rand(4096, device=DEVICE).to(BF16)

    def normed(rows: Tensor) -> Tensor:
        kept, out = residual[rows].contiguous(), torch.empty(len(rows), 4096, device=DEVICE, dtype=BF16)
        add_norm(partials[:, rows].contiguous(), 2, kept, gain, 1e-5, out, len(rows))
        return torch.cat([kept, out], -1)

    whole = normed(torch.arange(many, device=DEVICE))
    differing = sum(int((normed(rows) != whole[rows]).sum()) for rows in torch.arange(many, device=DEVICE).split(3))
    count("rows of 3 against 1025", differing, whole.numel())


def test_rope(count: Count) -> None:
    torch.manual_seed(4)
    rows, heads, kv_heads, head_dim, page = 768, 32, 8, 128, 64
    partials = torch.randn(2, rows, (heads + 2 * kv_heads) * head_dim, device=DEVICE)
    angles = torch.arange(rows, device=DEVICE)[:, None] * 500000.0 ** (-torch.arange(64, device=DEVICE) / 64)
    places = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    tables = torch.arange(rows // page, dtype=torch.int32, device=DEVICE)[None]

    def rotated(step: int) -> Tensor:
        q = torch.empty(rows, heads * head_dim, device=DEVICE, dtype=BF16)
        keys, values = torch.empty(2, rows // page, kv_heads, page, head_dim, device=DEVICE, dtype=BF16)
        for first in range(0, rows, step):
            some = slice(first, first + step)
            placing = Placing(places[some], torch.zeros_like(places[some]), tables)
            part = partials[:, some].contiguous()
            rotate(part, 2, q[some], keys, values, placing, (angles.cos(), angles.sin()), step, kv_heads)
        return torch.cat([q.flatten(), keys.flatten(), values.flatten()])

    whole = rotated(rows)
    differing = sum(int((rotated(step) != whole).sum()) for step in (1, 32, 64))
    count("rows at once", differing, 3 * whole.numel())


def test_attention(count: Count) -> None:
    """Decoded, verified and prompt rows; spans, warps, stages and sizes of tiles; alone and among others."""
    torch.manual_seed(3)
    heads, kv_heads, head_dim, page, pages = 32, 8, 128, 64, 24
    keys, values = torch.randn(2, 8 * pages + 1, kv_heads, page, head_dim, device=DEVICE, dtype=BF16)
    tables = (1 + torch.randperm(8 * pages, device=DEVICE)).int().view(8, pages)
    room = Partials(DEVICE)
    differing = compared = 0
    worst = 0.0

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    rows = 32
    for start in (0, 1, 58, 123, 125, 255, 384, 507, 511, 760, 1019, 1400):
        q = torch.randn(8 * rows, heads * head_dim, device=DEVICE, dtype=BF16)
        positions = ints([start + t for _ in range(8) for t in range(rows)])
        placing = Placing(positions, ints([b for b in range(8) for _ in range(rows)]), tables)

        def attended(
            tokens: int,
            span: Span,
            warps: int = 4,
            stages: int = 2,
            requests: range = range(8),
            q: Tensor = q,
            placing: Placing = placing,
            context: int = start + rows,
        ) -> Tensor:
            firsts = [first for request in requests for first in range(request * rows, (request + 1) * rows, tokens)]
            out = torch.full_like(q, float("nan"))
            tiling = Tiling(ints(firsts), ints([tokens] * len(firsts)), len(firsts), tokens, context)
            launch = {"span": span, "warps": warps, "stages": stages}
            attention.attend(q, keys, values, placing, tiling, room, out, kv_heads, **launch)
            return out

        whole = attended(32, Span.ALL)
        for tokens, span, warps, stages in LAUNCHES:
            differing += int((attended(tokens, span, warps, stages) != whole).sum())
            compared += whole.numel()
        alone = slice(5 * rows, 6 * rows)
        differing += int((attended(1, Span.ATOM, requests=range(5, 6))[alone] != whole[alone]).sum())
        k, v = (x[tables[5].long()].transpose(1, 2).flatten(0, 1)[: start + rows].double() for x in (keys, values))
        mask = (
            torch.arange(start + rows, device=DEVICE)[None] <= torch.arange(start, start + rows, device=DEVICE)[:, None]
        )
        exact = F.scaled_dot_product_attention(
            q[alone].view(rows, heads, head_dim).transpose(0, 1).double(),
            k.repeat_interleave(4, 1).transpose(0, 1),
            v.repeat_interleave(4, 1).transpose(0, 1),
            attn_mask=mask,
        )
        seen = whole[alone].view(rows, heads, head_dim).transpose(0, 1).double()
        worst = max(worst, ((seen - exact).norm() / exact.norm()).item())
    assert worst < 5e-3
    assert GROUP == 512
    count("shapes of launch", differing, compared)


PROMPTS: dict[str, list[tuple[int, int]]] = {
    "a whole prompt": [(0, 2048)],
    "a chunk from the middle of a page on": [(700, 1300)],
    "several requests": [(0, 100), (513, 333), (1500, 64), (5, 45), (4000, 700)],
    "ends around borders of pages and atoms": [(0, rows) for rows in (1, 63, 64, 65, 127, 128, 129, 191, 192, 193)],
    "ends around borders of groups": [(480, rows) for rows in (31, 32, 33)] + [(992, rows) for rows in (31, 32, 33)],
    "one row around borders": [(at, 1) for at in (0, 62, 63, 64, 126, 127, 128, 510, 511, 512, 1023, 1024, 1535)],
    "tiles that are not full": [(at, rows) for at in (100, 112, 500) for rows in (1, 2, 15, 16, 17, 31)],
    "fewer tiles than multiprocessors": [(300, 40)],
}
"""First position and rows of each request."""


needs_hopper_form = pytest.mark.skipif(
    not attention.has_hopper_form(), reason="not run: this form needs Hopper and Triton 3.6"
)


@needs_hopper_form
@pytest.mark.parametrize("name", PROMPTS)
def test_attention_of_prompts_on_hopper(name: str, count: Count) -> None:
    """Against `attention`. Pages in any order; behind the contexts stand keys that are no numbers and large values."""
    torch.manual_seed(5)
    heads, kv_heads, head_dim, page, tokens = 32, 8, 128, 64, 32
    requests = PROMPTS[name]
    ends = [start + rows for start, rows in requests]
    width = max(-(-end // page) for end in ends) + 1
    order = (1 + torch.randperm(len(requests) * width)).tolist()
    keys, values = torch.randn(2, 1 + len(order), kv_heads, page, head_dim, device=DEVICE, dtype=BF16)
    keys[0] = float("nan")
    tables = list[list[int]]()
    positions, owners, firsts, counts = list[int](), list[int](), list[int](), list[int]()
    for owner, ((start, rows), end) in enumerate(zip(requests, ends, strict=True)):
        own = [order.pop() for _ in range(-(-end // page))]
        if end % page:
            keys[own[-1], :, end % page :] = float("nan")
            values[own[-1], :, end % page :] = 1e30
        tables.append(own + [0] * (width - len(own)))
        for first in range(0, rows, tokens):
            firsts.append(len(positions) + first)
            counts.append(min(tokens, rows - first))
        positions += range(start, end)
        owners += [owner] * rows

    def ints(values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    q = 3 * torch.randn(len(positions), heads * head_dim, device=DEVICE, dtype=BF16)
    placing = Placing(ints(positions), ints(owners), ints(tables))
    outs = []
    for filled in (False, True):
        tiling = Tiling(ints(firsts), ints(counts), len(firsts), tokens, max(ends), filled=filled)
        assert attention.suits_hopper_form(Span.ALL, tiling, heads // kv_heads, keys) is filled
        outs.append(torch.full_like(q, float("nan")))
        attention.attend(q, keys, values, placing, tiling, Partials(DEVICE), outs[-1], kv_heads, span=Span.ALL)
    usual, hopper = outs
    assert not usual.isnan().any()
    count("against the usual form", int((usual.view(torch.int16) != hopper.view(torch.int16)).sum()), usual.numel())


@needs_hopper_form
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_row_does_not_reach_earlier_rows_of_its_prompt_on_hopper(broken: float, count: Count) -> None:
    """Its values are read with those of the rows before it, in the same atom."""
    torch.manual_seed(6)
    heads, kv_heads, head_dim, rows, spoilt = 32, 8, 128, 640, 100
    partials = torch.randn(1, rows, (heads + 2 * kv_heads) * head_dim, device=DEVICE)
    angles = torch.zeros(rows, head_dim // 2, device=DEVICE)
    each = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    tables = torch.arange(rows // 64, dtype=torch.int32, device=DEVICE)[None]
    placing = Placing(each, torch.zeros_like(each), tables)
    tiling = Tiling(each[::32].contiguous(), torch.full_like(each[::32], 32), rows // 32, 32, rows, filled=True)
    outs = []
    for value in (1.0, broken):
        partials[0, spoilt, -kv_heads * head_dim :] = value
        q, out = torch.empty(2, rows, heads * head_dim, device=DEVICE, dtype=BF16)
        keys, values = torch.zeros(2, rows // 64, kv_heads, 64, head_dim, device=DEVICE, dtype=BF16)
        rotate(partials, 1, q, keys, values, placing, (angles.cos(), angles.sin()), rows, kv_heads)
        attention.attend(q, keys, values, placing, tiling, Partials(DEVICE), out, kv_heads, span=Span.ALL)
        outs.append(out)
    assert not outs[1][spoilt:].isfinite().any()
    count("rows before it", int((outs[0][:spoilt] != outs[1][:spoilt]).sum()), outs[0][:spoilt].numel())
