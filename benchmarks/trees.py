"""Would trees of drafts pay? The tiny pair's acceptance by rank, against what rows cost on an H200: `make bench-trees`.

At every position of the target's greedy text of the held-out prompts, the drafter is led along that text for DEPTH
steps and its ranks of the target's tokens are noted; and it grows the tree of EAGLE-2 (arXiv 2406.16858): BEAM nodes
expanded at each depth, of each its BEAM best children, the N likeliest of all kept. Rounds are then replayed over the
texts, for chains, for the best fixed tree (chosen on the other half of the texts) and for the grown one. Seconds come
from results/h200-llama8b.json (see `tree_model`), so tokens per second are a forecast and no measurement.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import tree_model as model
from provenance import provenance
from tiny_pair.measure import Pair
from tiny_pair.prompts import read_prompts
from tiny_pair.replay import Wiring, greedy_texts
from tiny_pair.wirings import right_wiring

ROOT = Path(__file__).parents[1]
PAIR, RESULTS = ROOT / "examples" / "tiny-pair", ROOT / "benchmarks" / "results"
NEW_TOKENS = 96
DEPTH, RANKS, BEAM = 8, 4, 4
NODES = (*range(1, 17), 20, 24, 28, 32, 40, 48, 63)
BATCHES = (1, 2, 4, 8, 16, 32)  # 1, 8 and 32 were measured; the others lie between
ASSUMED = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9)
"""Chances of the first choice at every position, given those before it."""


class Drafted(NamedTuple):
    """Of one text, at each position where a round could begin."""

    paths: list[model.Path]  # ranks of the target's tokens, up to the first that is not among the RANKS best
    places: Tensor  # [depth, T, DEPTH]: place among a grown tree's nodes, were it so deep, of the text's own


def led(wiring: Wiring, tokens: Tensor, truth: Tensor) -> Tensor:
    """tokens [1, T + 1], truth [DEPTH, T] -> ranks of the truth [DEPTH, T], the drafter fed with it."""
    steps, feature, newest = Steps(wiring), fused(wiring, tokens), tokens[:, 1:]
    ranks = []
    for true in truth:
        feature, logits = steps(newest, feature)  # logits [1, T, V]
        ranks.append((logits > logits.gather(-1, true[None, :, None])).sum(-1)[0])
        newest = true[None]
    return torch.stack(ranks)


def grown(wiring: Wiring, tokens: Tensor, truth: Tensor) -> Tensor:
    """tokens [1, T + 1], truth [DEPTH, T] -> `Drafted.places`; large where the tree has not the truth."""
    steps, feature = Steps(wiring), fused(wiring, tokens)  # [W, T, H], W beams
    newest, on_path = tokens[:, 1:], torch.ones(1, truth.shape[1], dtype=torch.bool)
    scores = torch.zeros(1, truth.shape[1])  # [W, T] log of a beam's chance
    every, own = [], []
    for true in truth:
        feature, logits = steps(newest, feature)
        best = logits.log_softmax(-1).topk(BEAM, -1)
        children = (scores[..., None] + best.values).permute(0, 2, 1).flatten(0, 1)  # [W BEAM, T]
        ids = best.indices.permute(0, 2, 1).flatten(0, 1)
        right = on_path.repeat_interleave(BEAM, 0) & (ids == true)
        every.append(children)
        own.append(torch.where(right, children, -torch.inf).amax(0))
        scores, chosen = children.topk(min(BEAM, len(children)), 0)
        newest, on_path = ids.gather(0, chosen), right.gather(0, chosen)
        feature = steps.keep(chosen // BEAM, feature)
    places = [
        torch.stack([(torch.cat(every[: depth + 1]) > one).sum(0) + 10**6 * one.isinf() for one in own], -1)
        for depth in range(DEPTH)
    ]
    return torch.stack(places)


class Steps:
    """The drafter's steps from all positions of a text at once, for several beams."""

    def __init__(self, wiring: Wiring) -> None:
        self.drafter, self.embedding = wiring.drafter, wiring.target.model.embed_tokens.weight
        self.ids = self.drafter.d2t + torch.arange(len(self.drafter.d2t))
        self.cache: list[tuple[Tensor, Tensor]] = []

    def __call__(self, newest: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """newest [W, T], feature [W, T, H] -> the next feature and logits of the target's vocabulary [W, T, V]."""
        feature, logits = self.drafter.step(F.embedding(newest, self.embedding), feature, self.cache)
        whole = torch.full((*logits.shape[:2], len(self.embedding)), -torch.inf)
        whole[..., self.ids] = logits
        return feature, whole

    def keep(self, parents: Tensor, feature: Tensor) -> Tensor:
        """parents [W', T]: the beam that each new one goes on from. Returns its feature."""

        def of_parents(x: Tensor) -> Tensor:  # [W, heads, T, D]
            return x.gather(0, parents[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))

        self.cache[:] = [(of_parents(keys), of_parents(values)) for keys, values in self.cache]
        return of_parents(feature[:, None])[:, 0]


def fused(wiring: Wiring, tokens: Tensor) -> Tensor:
    _, streams = wiring.target(tokens[:, :-1])
    return wiring.drafter.fc(torch.cat([streams[i] for i in wiring.capture], -1))


def drafted(wiring: Wiring, text: list[int], prompt: int) -> Drafted:
    tokens = torch.tensor([text])
    ahead = tokens[0].unfold(0, DEPTH + 1, 1)[1:, 1:].T  # [DEPTH, T]: tokens t + 2 ... of positions t = 0, 1, ...
    tokens = tokens[:, : ahead.shape[1] + 1]
    ranks, places = led(wiring, tokens, ahead), grown(wiring, tokens, ahead)
    first = prompt - 1  # the first round begins when the prompt and one token more are known
    paths = []
    for column in ranks.T[first:].tolist():
        paths.append(tuple(column[: next((n for n, rank in enumerate(column) if rank >= RANKS), DEPTH)]))
    return Drafted(paths, places[:, first:])


def by_rank(texts: Sequence[Drafted]) -> list[dict[str, Any]]:
    """How often the target's token is the drafter's first, second, ... choice where all before it were first ones."""
    rows = []
    for depth in range(DEPTH):
        reached = [path[depth : depth + 1] for text in texts for path in text.paths if path[:depth] == (0,) * depth]
        counts = Counter(reached)
        missed = len(reached) - counts[(0,)]
        others = [round(counts[(rank,)] / missed, 4) for rank in range(1, RANKS)]
        rows.append({"tried": len(reached), "first": round(counts[(0,)] / len(reached), 4), "of_missed": others})
    return rows


def fixed(halves: Sequence[Sequence[Drafted]], nodes: int, depth: int) -> tuple[float, frozenset[model.Path]]:
    """Accept length of the best tree; of two, chosen on one half and tried on the other, the first is returned."""
    accepted, trees = [], []
    for learnt, tried in (halves, halves[::-1]):
        trees.append(model.likeliest(model.path_chances(text.paths for text in learnt), nodes, depth))
        accepted += [[model.followed(trees[-1], path) for path in text.paths] for text in tried]
    return model.accept_length(accepted), trees[0]


def of_grown(texts: Sequence[Drafted], nodes: int, depth: int) -> float:
    there = [text.places[depth - 1, :, :depth] < nodes for text in texts]
    return model.accept_length([each.long().cumprod(-1).sum(-1).tolist() for each in there])


Rated = tuple[float, dict[str, Any]]


def forecast(costs: model.RoundCosts, batch: int, nodes: int, steps: Sequence[int], tokens: float) -> Rated:
    ms = costs.round_ms(batch, nodes, steps)
    about = {"nodes": nodes, "depth": len(steps), "accept_length": round(tokens, 3), "round_ms": round(ms, 3)}
    return batch * tokens / ms * 1000, about | {"tokens_per_second": round(batch * tokens / ms * 1000)}


def compared(kinds: dict[str, Callable[[int], list[Rated]]], plain: model.Points) -> list[dict[str, Any]]:
    """The best of each kind at each batch."""
    rows = []
    for batch in BATCHES:
        best = {name: max(rate(batch), key=lambda rated: rated[0])[1] for name, rate in kinds.items()}
        chain = best["chain"]["tokens_per_second"]
        for name in set(best) - {"chain"}:
            best[name]["gain"] = round(best[name]["tokens_per_second"] / chain - 1, 4)
        off = round(batch / model.along(plain, batch) * 1000)
        rows.append({"batch": batch, "off_tokens_per_second": off, **best})
    return rows


def measured_levels(texts: Sequence[Drafted], costs: model.RoundCosts, plain: model.Points) -> dict[str, Any]:
    halves = texts[::2], texts[1::2]
    chain = {k: fixed_chain(texts, k) for k in range(1, DEPTH + 1)}
    trees = {(n, d): fixed(halves, n, d) for n in NODES for d in range(2, DEPTH + 1)}
    beams = {(n, d): of_grown(texts, n, d) for n in NODES for d in range(2, DEPTH + 1)}
    kinds: dict[str, Callable[[int], list[Rated]]] = {
        "chain": lambda b: [forecast(costs, b, k, [1] * k, tau) for k, tau in chain.items()],
        "fixed_tree": lambda b: [forecast(costs, b, n, model.steps_of(t), a) for (n, _), (a, t) in trees.items()],
        "grown_tree": lambda b: [
            forecast(costs, b, n, [1, *[min(BEAM, n)] * (d - 1)], tau) for (n, d), tau in beams.items()
        ],
    }
    same_rows = {
        n: {
            "chain": round(chain[min(n, DEPTH)], 3),
            "fixed_tree": round(max(tau for (nodes, _), (tau, _) in trees.items() if nodes == n), 3),
            "grown_tree": round(max(tau for (nodes, _), tau in beams.items() if nodes == n), 3),
        }
        for n in (2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 63)
    }
    return {"by_rank": by_rank(texts), "accept_length_by_nodes": same_rows, "best": compared(kinds, plain)}


def fixed_chain(texts: Sequence[Drafted], length: int) -> float:
    chain = frozenset((0,) * n for n in range(1, length + 1))
    return model.accept_length([[model.followed(chain, path) for path in text.paths] for text in texts])


def assumed_level(
    first: float, others: Sequence[float], costs: model.RoundCosts, plain: model.Points
) -> dict[str, Any]:
    chances = model.independent(first, others, DEPTH)

    def rated(batch: int, tree: frozenset[model.Path]) -> Rated:
        tokens = 1 + sum(chances[path] for path in tree)
        return forecast(costs, batch, len(tree), model.steps_of(tree), tokens)

    chains = [frozenset((0,) * n for n in range(1, k + 1)) for k in range(1, DEPTH + 1)]
    trees = [model.likeliest(chances, n, d) for n in NODES for d in range(2, DEPTH + 1)]
    kinds: dict[str, Callable[[int], list[Rated]]] = {
        "chain": lambda batch: [rated(batch, chain) for chain in chains],
        "fixed_tree": lambda batch: [rated(batch, tree) for tree in trees],
    }
    return {"first": first, "of_missed": list(others), "best": compared(kinds, plain)}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "trees.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    h200 = json.loads((RESULTS / "h200-llama8b.json").read_text())
    costs, plain = model.RoundCosts.of(h200), model.points(h200["plain_step_ms"])
    pair = Pair.load(PAIR)
    wiring = right_wiring(pair.target, pair.drafter)
    prompts = [pair.tokenizer.encode(prompt.prompt).ids for prompt in read_prompts(PAIR / "prompts.jsonl")]
    texts = greedy_texts(pair.target, prompts, NEW_TOKENS)
    found = [drafted(wiring, text, len(prompt)) for text, prompt in zip(texts, prompts, strict=True)]
    measured = measured_levels(found, costs, plain)
    others = measured["by_rank"][0]["of_missed"]
    report = {
        "command": "make bench-trees",
        **provenance("torch"),
        "costs_of": {"file": "benchmarks/results/h200-llama8b.json", "commit": h200["commit"], "card": h200["card"]},
        "verify_ms_by_rows": [(rows, round(ms, 3)) for rows, ms in costs.verify],
        "tiny_pair": measured,
        "assumed": [assumed_level(first, others, costs, plain) for first in ASSUMED],
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
