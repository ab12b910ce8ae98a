"""Every kernel against plain torch, in Triton's interpreter and in float32, at shapes that fill no tile.

This proves indices, masks, page look-ups and the state that moves from round to round. It says nothing about bfloat16
bits or about the order in which the matrix unit adds: `make gpu-check` compares those on a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tandem_worker.kernels import attention
from tandem_worker.kernels.attention import Partials, suits_hopper_form
from tandem_worker.kernels.choice import COLUMNS, FORCED, Best, accept, largest, take
from tandem_worker.kernels.embed import embed, join_first, join_next
from tandem_worker.kernels.linear import Linear, Role, Tile
from tandem_worker.kernels.norm import add_norm
from tandem_worker.kernels.rope import rotate
from tandem_worker.kernels.tiling import ATOM, GROUP, Placing, Span, Tiling
from tandem_worker.models.quantised import Kept

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning",  # of padding, which nobody stores
    "ignore:All-NaN:RuntimeWarning",
)

PAGE = 64
EPS = 1e-5


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a.double() - b.double()).abs().max() < 1e-4)


@pytest.mark.parametrize("rows", [1, 17, 37])
@pytest.mark.parametrize(
    "tile",
    [None, Tile(32, 16, 32, 1, tail=16), Tile(64, 16, 64, 1, both=True), Tile(32, 16, 32, 1, tail=16, both=True)],
)
@pytest.mark.parametrize(("role", "n", "k"), [(Role.OUT, 72, 512), (Role.HEAD, 72, 100), (Role.GATE_UP, 2 * 40, 96)])
def test_product(role: Role, n: int, k: int, rows: int, tile: Tile | None) -> None:
    linear = Linear(torch.randn(n, k) / k**0.5, role)
    x = torch.randn(40, k)
    x[rows:] = float("nan")  # behind the rows: read, and never seen
    y = torch.full((2, rows, linear.outputs), float("nan"))
    parts = linear(x, rows, y, tile)
    expected = F.linear(x[:rows], linear.weight)
    if role is Role.GATE_UP:
        gate, up = expected.chunk(2, -1)
        expected = F.silu(gate) * up
    assert linear.splits == (2 if role is Role.OUT else 1)
    assert parts == (1 if tile and tile.both else linear.splits)
    assert close(y[:parts].sum(0), expected)
    assert y[parts:].isnan().all()


@pytest.mark.parametrize("tile", [None, Tile(64, 16, 128, 1, tail=16, both=True)])
@pytest.mark.parametrize(
    ("role", "n", "k", "blocks", "dtype"),
    [
        (Role.OUT, 40, 512, 4, torch.float8_e4m3fn),
        (Role.GATE_UP, 2 * 40, 384, 3, torch.float8_e4m3fn),
        (Role.DOWN, 40, 304, 1, torch.float8_e5m2),
        (Role.QKV, 40, 512, 1, torch.int8),
    ],
)
def test_product_by_8_bits_is_that_by_the_weights_they_stand_for(
    role: Role, n: int, k: int, blocks: int, dtype: torch.dtype, tile: Tile | None
) -> None:
    weight = Kept((torch.randn(n, k) * 30).to(dtype), (torch.rand(blocks, n) + 0.5) / 30 / k**0.5)
    rows, x = 17, torch.randn(20, k)
    x[rows:] = float("nan")
    linear = Linear(weight.values, role, weight.scale)
    y = torch.full((2, rows, linear.outputs), float("nan"))
    parts = linear(x, rows, y, tile)
    expected = F.linear(x[:rows], weight.restored(torch.float32))
    if role is Role.GATE_UP:
        gate, up = expected.chunk(2, -1)
        expected = F.silu(gate) * up
    assert close(y[:parts].sum(0), expected)
    assert y[parts:].isnan().all()


def test_norm_adds_partials_gathers_and_captures() -> None:
    width, rows = 72, 5
    partials, source, gain = torch.randn(2, rows, width), torch.randn(9, width), torch.rand(width)
    residual, out, streams = torch.zeros(rows, width), torch.zeros(rows, width), torch.zeros(rows, 3 * width)
    picked = ints(8, 0, 3, 3, 1)
    slot = streams[:, width : 2 * width]
    add_norm(partials, 2, residual, gain, EPS, out, rows, source=source, source_rows=picked, stream=slot)
    expected = source[picked.long()] + partials.sum(0)
    assert close(residual, expected)
    assert close(slot, expected)
    assert close(out, F.rms_norm(expected, (width,), gain, EPS))
    assert not streams[:, :width].any()
    assert not streams[:, 2 * width :].any()
    add_norm(partials, 1, residual, gain, EPS, out, rows)
    assert close(residual, expected + partials[0])


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 16), (4, 4, 32)])
def test_rope_rotates_and_fills_the_right_slots_of_the_right_pages(heads: int, kv_heads: int, head_dim: int) -> None:
    positions, owners, tables = ints(70, 3, 128, 63), ints(1, 0, 1, 0), ints(4, 7, 0, 2, 5, 6).view(2, 3)
    rows, half = 4, head_dim // 2
    partials = torch.randn(2, rows, (heads + 2 * kv_heads) * head_dim)
    angles = torch.arange(200)[:, None] * 100.0 ** (-torch.arange(half) / half)
    q = torch.zeros(rows, heads * head_dim)
    keys, values = torch.zeros(2, 8, kv_heads, PAGE, head_dim)
    placing = Placing(positions, owners, tables)
    rotate(partials, 2, q, keys, values, placing, (angles.cos(), angles.sin()), rows, kv_heads)
    x = partials.sum(0).view(rows, heads + 2 * kv_heads, head_dim)
    low, high = x[..., :half], x[..., half:]
    cos, sin = angles.cos()[positions.long(), None], angles.sin()[positions.long(), None]
    turned = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
    assert close(q.view(rows, heads, head_dim), turned[:, :heads])
    for row, (position, owner) in enumerate(zip(positions.tolist(), owners.tolist(), strict=True)):
        page = tables[owner, position // PAGE]
        assert close(keys[page, :, position % PAGE], turned[row, heads:-kv_heads])
        assert close(values[page, :, position % PAGE], x[row, -kv_heads:])
    assert int((keys != 0).any(-1).sum()) == rows * kv_heads


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_a_number_breaks_the_rows_that_see_it_and_no_others(broken: float) -> None:
    """Three rows of a tile; the middle one's value is broken, and so is what a page's last owner left behind them."""
    heads, kv_heads, head_dim, rows = 4, 2, 16, 3
    partials = torch.randn(1, 5, (heads + 2 * kv_heads) * head_dim)
    angles = torch.zeros(8, head_dim // 2)
    placing = Placing(ints(0, 1, 2, 3, 4), ints(0, 0, 0, 0, 0), ints(1).view(1, 1))

    def attended_rows(partials: Tensor) -> Tensor:
        q, out = torch.zeros(2, 5, heads * head_dim)
        keys, values = torch.zeros(2, 2, kv_heads, PAGE, head_dim)
        rotate(partials, 1, q, keys, values, placing, (angles.cos(), angles.sin()), 5, kv_heads)
        assert values.isfinite().all()
        tiling = Tiling(ints(0), ints(rows), 1, rows, context=rows)
        attention.attend(q, keys, values, placing, tiling, Partials(torch.device("cpu")), out, kv_heads)
        return out[:rows].view(rows, heads, head_dim)

    expected = attended_rows(partials)
    partials[:, [1, 3, 4], -1] = broken  # the last key head's value
    seen = attended_rows(partials)
    assert torch.equal(seen[0], expected[0])
    assert torch.equal(seen[:, : heads // 2], expected[:, : heads // 2])  # who read another key head
    assert not seen[1:, heads // 2 :].isfinite().any()


def attended(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q [Hq, D] of the last position over keys and values [positions, Hk, D]."""
    group = q.shape[0] // keys.shape[1]
    k, v = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("hd,phd->hp", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hp,phd->hd", scores.softmax(-1), v)


@pytest.mark.parametrize("span", list(Span))
@pytest.mark.parametrize("heads", [2, 6])
def test_attention_over_pages(span: Span, heads: int) -> None:
    """Four tiles: a decoded row, a verification, two neighbouring pieces of a prompt; contexts across atoms and
    groups."""
    kv_heads, head_dim = 2, 16
    starts, counts, owners = [0, ATOM + 3, GROUP - 2, GROUP + 2], [1, 4, 4, 3], [0, 1, 2, 2]
    pages = [[3], [9, 1], [5, 2, 8]]
    tables = ints(*[page for owned in pages for page in (*owned, 0, 0)[:3]]).view(3, 3)
    firsts = [0, 1, 5, 9]
    rows = 12
    positions = ints(*[start + i for start, count in zip(starts, counts, strict=True) for i in range(count)])
    owner = ints(*[who for who, count in zip(owners, counts, strict=True) for _ in range(count)])
    q = torch.randn(rows, heads * head_dim)
    keys, values = torch.randn(2, 10, kv_heads, PAGE, head_dim)
    out = torch.full((rows, heads * head_dim), float("nan"))
    tiling = Tiling(ints(*firsts), ints(*counts), 4, 4, context=2 * GROUP)
    placing = Placing(positions, owner, tables)
    room = Partials(torch.device("cpu"))
    attention.attend(q, keys, values, placing, tiling, room, out, kv_heads, span=span)
    for row, (position, who) in enumerate(zip(positions.tolist(), owner.tolist(), strict=True)):
        k, v = (x[pages[who]].transpose(1, 2).flatten(0, 1)[: position + 1] for x in (keys, values))
        assert close(out[row].view(heads, head_dim), attended(q[row].view(heads, head_dim), k, v)), row
    some = Tiling(ints(4, 10), ints(1, 1), 2, 1, context=2 * GROUP, compact=True)
    compact = torch.full((2, heads * head_dim), float("nan"))
    attention.attend(q, keys, values, placing, some, room, compact, kv_heads, span=span)
    assert close(compact, out[[4, 10]])


MEASURED: dict[str, Any] = {
    "span": Span.ALL, "tokens": 32, "group": 4, "page": 64, "head_dim": 128, "dtype": torch.bfloat16, "compact": False,
    "filled": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("other", "suits"),
    [
        ({}, True),
        ({"filled": False}, False),
        ({"span": Span.GROUP}, False),
        ({"span": Span.ATOM}, False),
        ({"tokens": 16}, False),
        ({"tokens": 16, "group": 8}, False),
        ({"tokens": 32, "group": 3}, False),
        ({"page": 128}, False),
        ({"head_dim": 64}, False),
        ({"dtype": torch.float16}, False),
        ({"compact": True}, False),
    ],
    ids=str,
)
def test_hopper_form_of_attention_is_taken_for_what_it_was_measured_with(other: dict[str, Any], suits: bool) -> None:
    case = MEASURED | other
    tiling = Tiling(ints(0), ints(1), 64, case["tokens"], 2048, case["compact"], case["filled"])
    keys = torch.empty(1, 8, case["page"], case["head_dim"], dtype=case["dtype"])
    assert suits_hopper_form(case["span"], tiling, case["group"], keys) is suits


def test_largest_takes_the_first_of_equals_and_reports_broken_logits() -> None:
    vocab = 2 * COLUMNS + 100
    logits = torch.randn(4, vocab)
    logits[0, [300, 2 * COLUMNS + 99]] = 9.0
    logits[1, -1] = 9.0
    logits[2, COLUMNS + 5] = float("nan")
    logits[3] = -5.0
    best = Best(torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.int32))
    largest(logits, 4, best)
    out = torch.zeros(4, 2, dtype=torch.int32)
    take(best, 4, out[:, 0])
    assert out[:, 0].tolist() == [300, vocab - 1, -1, 0]
    assert not out[:, 1].any()


def best_of(tokens: list[int]) -> Best:
    """As if these were the largest logits."""
    return Best(torch.zeros(len(tokens), 1), ints(*tokens).view(-1, 1))


def state_of(tokens: Tensor, lengths: Tensor, limit: int, forced: list[int]) -> SimpleNamespace:
    batch, width = tokens.shape
    pattern = torch.full((FORCED,), -1, dtype=torch.int32)
    pattern[: len(forced)] = ints(*forced)
    zeros = torch.zeros(batch, 2 * width, dtype=torch.int32)
    return SimpleNamespace(
        tokens=tokens, lengths=lengths, chosen=zeros[:, :width].clone(), last_rows=zeros[:, 0].clone(),
        result=zeros.clone(), forced=pattern, turns=zeros[:, 0].clone(), limit=limit,
    )  # fmt: skip


def test_accept_keeps_the_longest_run_that_the_target_confirms_and_moves_on() -> None:
    drafted = ints(5, 10, 11, 6, 20, 21, 7, 30, 31).view(3, 3)
    chosen = [10, 11, 12, 20, 99, 55, 98, 31, 56]  # all confirmed; one; none, though a later one agrees
    state = state_of(drafted.clone(), ints(40, 50, 60), 1000, [])
    accept(best_of(chosen), state, 3, 2)
    assert state.result[:, :4].tolist() == [[2, 10, 11, 12], [1, 20, 99, 55], [0, 98, 31, 56]]
    assert state.tokens[:, 0].tolist() == [12, 99, 98]
    assert state.tokens[:, 1:].tolist() == drafted[:, 1:].tolist()
    assert state.lengths.tolist() == [43, 52, 61]
    assert state.last_rows.tolist() == [2, 4, 6]
    assert state.chosen.flatten().tolist() == chosen


def test_forced_acceptance_replaces_only_the_count() -> None:
    drafted = ints(5, 10, 11, 6, 20, 21).view(2, 3)
    state = state_of(drafted.clone(), ints(40, 58), 60, [2, 0])
    for count, newest, lengths in ((2, [3, 6], [43, 60]), (0, [1, 4], [44, 60])):  # never beyond the limit
        accept(best_of([1, 2, 3, 4, 5, 6]), state, 2, 2)
        assert state.result[:, :4].tolist() == [[count, 1, 2, 3], [count, 4, 5, 6]]
        assert state.tokens[:, 0].tolist() == newest
        assert state.lengths.tolist() == lengths
    assert state.turns.tolist() == [2, 2]


def test_a_broken_logit_reaches_the_host_and_no_table() -> None:
    state = state_of(ints(5, 10).view(1, 2), ints(4), 60, [])
    accept(best_of([-1, -1]), state, 1, 1)
    assert state.result[0, 1:3].tolist() == [-1, -1]
    assert state.tokens.min() >= 0
    assert state.chosen.min() >= 0


def test_embedding_of_a_round_finds_positions_from_lengths() -> None:
    width, vocab = 24, 50
    table, gain, tokens = torch.randn(vocab, width), torch.rand(width), ints(3, 49, 0, 7, 7, 1)
    residual, out, stream = torch.zeros(3, 6, width)
    positions = torch.zeros(6, dtype=torch.int32)
    lengths = ints(10, 200)
    embed(
        tokens, table, residual, gain, EPS, out, 6, positions=positions, lengths=lengths, per_request=3, stream=stream
    )
    assert positions.tolist() == [10, 11, 12, 200, 201, 202]
    assert torch.equal(residual, table[tokens.long()])
    assert torch.equal(stream, residual)
    assert close(out, F.rms_norm(residual, (width,), gain, EPS))
    embed(tokens, table, residual, gain, EPS, out, 2, positions=positions)
    assert positions[0] == 10


@pytest.mark.parametrize("norm_first", [False, True])
def test_join_puts_embedding_and_feature_side_by_side(norm_first: bool) -> None:
    width, vocab, rows = 24, 50, 3
    table, gains = torch.randn(vocab, width), (torch.rand(width), torch.rand(width))
    partials, feature, out = torch.randn(2, rows, width), torch.zeros(rows, width), torch.zeros(rows, 2 * width)
    join_first(ints(3, 49, 0), table, partials, 2, feature, gains, norm_first, EPS, out, rows)
    total = partials.sum(0)
    normed = F.rms_norm(total, (width,), gains[1], EPS)
    assert close(out[:, :width], F.rms_norm(table[[3, 49, 0]], (width,), gains[0], EPS))
    assert close(out[:, width:], normed)
    assert close(feature, normed if norm_first else total)

    before, ids = feature.clone(), torch.arange(100, 130, dtype=torch.int32) - 90  # draft id d is token d + 10
    tokens, result = torch.zeros(rows, 5, dtype=torch.int32), torch.zeros(rows, 10, dtype=torch.int32)
    lengths, positions = ints(40, 50, 60), torch.zeros(rows, dtype=torch.int32)
    best = best_of([4, 0, 7])
    join_next(
        best, ids, tokens[:, 2], result[:, 7], lengths, positions, 2, table, feature, gains, norm_first, EPS, out, rows
    )  # fmt: skip
    assert tokens[:, 2].tolist() == result[:, 7].tolist() == [14, 10, 17]
    assert positions.tolist() == [41, 51, 61]
    assert close(out[:, :width], F.rms_norm(table[[14, 10, 17]], (width,), gains[0], EPS))
    assert close(out[:, width:], F.rms_norm(before, (width,), gains[1], EPS))
