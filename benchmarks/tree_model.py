"""What a tree of drafts would bring, in plain numbers; `trees` measures what goes in.

A tree's node is a path of ranks: (0, 2) is the drafter's third choice after its first. The target's text follows one
path, so the expected tokens of a round are one and the sum, over the tree's nodes, of the chance that the text takes
that path. A chain is the tree whose nodes are (0,), (0, 0), ... The best tree of N nodes is the N likeliest paths
(Sequoia, arXiv 2402.12374): a path is never likelier than its beginning, so they hang together.

A round's time is that of its drafting steps and of the rows that are verified. Both are read from measured rounds of
chains. What a tree costs beside them (a mask, moving the accepted rows, choosing the drafter's k best) is left out, so
trees look better here than they would be.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[int, ...]
Points = tuple[tuple[float, float], ...]
"""(rows, milliseconds), ascending."""


def points(by_rows: Mapping[str, float]) -> Points:
    return tuple(sorted((float(rows), ms) for rows, ms in by_rows.items()))


def along(line: Points, rows: float) -> float:
    """Straight lines between measured points; before the first as there, behind the last as steep as before it."""
    at = min(bisect_left([at for at, _ in line], rows), len(line) - 1)
    if at == 0:
        return line[0][1]
    (x0, y0), (x1, y1) = line[at - 1], line[at]
    return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


@dataclass(frozen=True)
class RoundCosts:
    verify: Points  # of so many rows in all; with the drafter's step 0, which every round has
    draft: Points  # of a further drafting step of so many rows in all

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> RoundCosts:
        """From results/h200-llama8b.json: a round of K is verification of K + 1 rows each and K - 1 further steps."""
        draft = points(report["draft_token_ms"])
        verify = {
            float(int(batch) * (k + 1)): ms - (k - 1) * along(draft, float(batch))
            for k in (3, 5, 7)
            for batch, ms in report[f"round_k{k}_ms"].items()
        }
        return cls(tuple(sorted(verify.items())), draft)

    def round_ms(self, batch: int, nodes: int, steps: Sequence[int]) -> float:
        """steps: rows of one request in each drafting step, of which the first is one."""
        further = sum(along(self.draft, batch * rows) for rows in steps[1:])
        return along(self.verify, batch * (nodes + 1)) + further


def steps_of(tree: Iterable[Path]) -> list[int]:
    """Drafting steps: the root's children come from one row, those of deeper nodes from a row of each parent."""
    parents = {path[:-1] for path in tree}
    return list(Counter(len(parent) for parent in sorted(parents, key=len)).values())


def likeliest(chances: Mapping[Path, float], nodes: int, depth: int) -> frozenset[Path]:
    """The tree of at most so many nodes, no deeper than `depth`, by the chances of whole paths."""
    allowed = (path for path in chances if len(path) <= depth)
    return frozenset(heapq.nsmallest(nodes, allowed, key=lambda path: (-chances[path], len(path), path)))


def path_chances(texts: Iterable[Sequence[Path]]) -> dict[Path, float]:
    """Of every beginning of the paths that texts took, as a share of all."""
    taken = [path for text in texts for path in text]
    counts = Counter(path[:n] for path in taken for n in range(1, len(path) + 1))
    return {path: count / len(taken) for path, count in counts.items()}


def independent(first: float, others: Sequence[float], depth: int) -> dict[Path, float]:
    """Chances of paths when every position is alike: the first choice is right with `first`, the others share the rest
    as `others` says. Unlikely paths are left out."""
    by_rank = [first, *((1 - first) * share for share in others)]
    chances: dict[Path, float] = {}
    level: dict[Path, float] = {(): 1.0}
    for _ in range(depth):
        level = {(*path, r): p * q for path, p in level.items() for r, q in enumerate(by_rank) if p * q > 2e-4}
        chances |= level
    return chances


def followed(tree: frozenset[Path], path: Path) -> int:
    """Accepted tokens of a round whose text takes this path."""
    return next((n for n in range(len(path)) if path[: n + 1] not in tree), len(path))


def accept_length(accepted: Iterable[Sequence[int]]) -> float:
    """Tokens per round, of rounds that follow one another through each text; accepted[text][t]: were one to begin at
    t. Ends where a text does."""
    rounds = tokens = 0
    for text in accepted:
        at = 0
        while at < len(text):
            rounds, tokens, at = rounds + 1, tokens + text[at] + 1, at + text[at] + 1
    return tokens / rounds
