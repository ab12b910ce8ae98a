"""Which wirings are worth measuring: a pure function of what the files declare and of the engines' tables.

Each neighbour of a wiring differs from it in one aspect, as mistakes do that were seen in public reports: ids that are
counted another way, the embedding in a slot, slots in another order, one slot at another layer, d2t read in another
sense, fc skipped, a norm on the other side, another rotary setting, a table taken from the wrong model, tensors dropped
under their names. Two mistakes at once are found by going on from the best neighbours (`search`).

The order is the order of likelihood: of wirings that measure alike, the first one is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from tandem_worker.checks.layer_rules import RULES, Indexes, default_indexes
from tandem_worker.probe.wiring import DraftIds, Pairs, Source, View, Wiring

COMMON_THETAS = (10_000.0, 50_000.0, 500_000.0, 1_000_000.0)
"""Of EAGLE's training code and early Llama; Kimi-K2; Llama 3; Qwen2 and 3."""
MOST_PERMUTED = 4  # slots; of more, the order is only turned round and rotated


@dataclass(frozen=True)
class Choices:
    """What this pair leaves open."""

    layers: int  # n of the target: streams 0 to n
    states: int  # fc's slots; 0 without fc
    readings: tuple[Indexes, ...]  # capture indexes that the config may mean, likeliest first
    ids: tuple[DraftIds, ...] = (DraftIds.OFFSETS,)
    flags: tuple[str, ...] = ("norm_before_residual",)  # that may be the other way round and show at position 0
    embeddings: tuple[Source, ...] = (Source.TARGET,)
    heads: tuple[Source, ...] = (Source.OWN,)
    thetas: tuple[float, ...] = COMMON_THETAS
    pairs: tuple[Pairs, ...] = tuple(Pairs)
    unfused: bool = True  # the last stream is as wide as the drafter, so fc may be skipped
    restorable: frozenset[str] = frozenset()  # parameters at random whose values lie in the files under another name


def readings(
    declared: tuple[Indexes, ...], trained_on: Indexes | None, layers: int, states: int
) -> tuple[Indexes, ...]:
    """What the training run says, what the lists of the config mean under each convention, the default of all."""
    meant = [trained_on] if trained_on is not None else []
    for ids in declared:
        meant += [rule(ids, layers) for rule in RULES.values()]
        meant += [tuple(i - 1 for i in ids)]
    meant.append(default_indexes(layers))
    return tuple(dict.fromkeys(c for c in meant if len(c) == states and all(0 <= i <= layers for i in c)))


def neighbours(wiring: Wiring, choices: Choices, every_slot: bool = True) -> Iterator[Wiring]:
    """Distinct, never the wiring itself. `every_slot` False leaves out the map of slots by layers."""
    seen = {wiring}
    for other in _all(wiring, choices, every_slot):
        if other not in seen:
            seen.add(other)
            yield other


def _all(wiring: Wiring, choices: Choices, every_slot: bool) -> Iterator[Wiring]:
    if wiring.random & choices.restorable:
        yield replace(wiring, random=wiring.random - choices.restorable)
    yield from (replace(wiring, ids=ids) for ids in choices.ids)
    yield from _captures(wiring, choices)
    yield from (replace(wiring, head=head) for head in choices.heads)
    yield from (replace(wiring, embedding=embedding) for embedding in choices.embeddings)
    for flag in choices.flags:
        changed: dict[str, Any] = {flag: not getattr(wiring, flag)}
        yield replace(wiring, **changed)
    yield from (replace(wiring, rope_theta=theta) for theta in choices.thetas)
    yield from (replace(wiring, rope_pairs=pairs) for pairs in choices.pairs)
    yield from _fusions(wiring, choices)
    views = View if wiring.fused else (View.FINAL_NORM, View.STREAM)
    yield from (replace(wiring, view=view) for view in views)
    if every_slot and wiring.fused:
        for slot in range(len(wiring.capture)):
            for layer in range(choices.layers + 1):
                yield replace(wiring, capture=wiring.capture[:slot] + (layer,) + wiring.capture[slot + 1 :])


def _captures(wiring: Wiring, choices: Choices) -> Iterator[Wiring]:
    now, layers = wiring.capture, choices.layers
    if not wiring.fused:
        return
    lists = [*choices.readings, tuple(i + 1 for i in now), tuple(i - 1 for i in now), (0, *now[:-1])]
    lists += _orders(now)
    lists += [(*now[1:], last) for last in range(now[-1] + 1, layers + 1)]  # undoes an embedding put first
    yield from (replace(wiring, capture=c) for c in lists if all(0 <= i <= layers for i in c))


def _orders(capture: Indexes) -> list[Indexes]:
    if len(capture) <= MOST_PERMUTED:
        return list(permutations(capture))
    return [capture[::-1], *(capture[i:] + capture[:i] for i in range(1, len(capture)))]


def _fusions(wiring: Wiring, choices: Choices) -> Iterator[Wiring]:
    if wiring.fused and choices.unfused:
        for view in (View.FINAL_NORM, View.STREAM):
            yield replace(wiring, fused=False, capture=(choices.layers,), view=view)
    elif not wiring.fused and choices.states:
        for capture in choices.readings:
            yield replace(wiring, fused=True, capture=capture, view=View.STREAM)
