"""How often the probe names the right cause: random wiring mistakes, and right pairs, on every tiny pair.

    python -m tiny_pair.causes --mistakes 200 --right 200 --out benchmarks/results/probe-causes.json

A mistake is made in the engine's wiring and not in the files, so that one pass of the target serves them all. One or
two things are wrong at a time; where one of them alone costs less than `LEAST_LOSS` of overlap the mistake is drawn
anew, since there is little to find. It counts as found when the wiring that the diagnosis proposes is the right one in
every respect.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch

from tandem_worker.checkpoint import read_target
from tandem_worker.checks.judge import open_pairing
from tandem_worker.checks.pairing import Pairing
from tandem_worker.engines import load
from tandem_worker.probe.build import Parts, load_parts
from tandem_worker.probe.captured import Captured, captured
from tandem_worker.probe.described import describe_drafter
from tandem_worker.probe.diagnosis import explanation
from tandem_worker.probe.hypotheses import Choices
from tandem_worker.probe.prompts import Prompt, read_prompts, tokenize
from tandem_worker.probe.resolved import choices_of, engine_wiring, tensors_of
from tandem_worker.probe.run import searched
from tandem_worker.probe.score import score
from tandem_worker.probe.stream import stream
from tandem_worker.probe.wiring import DraftIds, Pairs, View, Wiring, differences, taken_back

EXAMPLES = Path(__file__).parents[2] / "examples"
FIRST_PAIR, MORE = EXAMPLES / "tiny-pair", EXAMPLES / "probe-pairs"
HELD_OUT = ("deep", "normed")
LEAST_LOSS = 0.03
MIDLAYER = frozenset(f"midlayer.{name}.weight" for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"))


@dataclass(frozen=True)
class Bench:
    """A pair with one pass of its target, and the wiring that is right."""

    name: str
    pairing: Pairing
    seen: Captured
    parts: Parts
    right: Wiring
    choices: Choices

    def proposed(self, wiring: Wiring) -> Wiring | None:
        """What the diagnosis holds the drafter to be made for when the engine does this; None: no wiring is better."""
        lost = wiring.random & self.parts.tensors.keys()
        offered = replace(self.choices, restorable=lost)
        table, nothing = searched(self.seen, self.parts, wiring, offered)
        best = explanation(table, nothing)
        return best.wiring if best else None

    def overlap(self, wiring: Wiring) -> float:
        found = score(self.seen, self.parts, [wiring])[wiring]
        return sum(found.overlap) / sum(found.counts)


def names() -> list[str]:
    return ["tiny-pair", *sorted(folder.name for folder in MORE.iterdir() if folder.is_dir())]


def open_bench(
    name: str,
    prompts: Sequence[Prompt],
    tokens: int = 96,
    drafter: Path | None = None,
    dtype: torch.dtype | None = None,
) -> Bench:
    folder = FIRST_PAIR if name == "tiny-pair" else MORE / name
    target_folder = folder / "target" if (folder / "target").exists() else FIRST_PAIR / "target"
    pairing = open_pairing(target_folder, drafter or folder / "drafter", load("builtin"))
    target = read_target(pairing.target.checkpoint)
    rows = tokenize(prompts, pairing.target.checkpoint, target.vocab_size, tokens)
    streamed = stream(target_folder, [torch.tensor(row) for row in rows], range(target.layers + 1))
    seen, right = captured(streamed, [0] * len(rows)), engine_wiring(pairing)
    choices = choices_of(pairing, right)
    parts = load_parts(describe_drafter(pairing, target, choices.states), tensors_of(pairing), streamed)
    if dtype is not None:  # rounded as that type would, in float32 arithmetic
        rounded = {k: v.to(dtype).to(v.dtype) if v.is_floating_point() else v for k, v in parts.tensors.items()}
        parts = replace(parts, tensors=rounded)
    return Bench(name, pairing, seen, parts, right, choices)


def held_out_prompts() -> tuple[Prompt, ...]:
    return read_prompts(FIRST_PAIR / "prompts.jsonl")


# --- mistakes --------------------------------------------------------------------------------------------------------


def _capture(rng: random.Random, wiring: Wiring, layers: int) -> Wiring:
    now = list(wiring.capture)
    kind = rng.randrange(5)
    if kind == 0:
        step = rng.choice((-1, 1))
        now = [i + step for i in now]
    elif kind == 1:
        now = [0, *now[:-1]]
    elif kind == 2:
        rng.shuffle(now)
    else:
        slot = rng.randrange(len(now))
        now[slot] = rng.randrange(layers + 1)
    if not all(0 <= i <= layers for i in now) or tuple(now) == wiring.capture:
        return _capture(rng, wiring, layers)
    return replace(wiring, capture=tuple(now))


def _ids(rng: random.Random, wiring: Wiring, bench: Bench) -> Wiring:
    others = [ids for ids in (DraftIds.IDS, DraftIds.IGNORED) if wiring.ids is DraftIds.OFFSETS]
    return replace(wiring, ids=rng.choice(others)) if others else wiring


def mistaken(rng: random.Random, bench: Bench) -> Wiring:
    """The right wiring with one or two things wrong."""
    layers, right = bench.choices.layers, bench.right
    makes: list[Callable[[Wiring], Wiring]] = [
        lambda w: _capture(rng, w, layers) if w.fused else w,
        lambda w: _capture(rng, w, layers) if w.fused else w,
        lambda w: _ids(rng, w, bench),
        lambda w: replace(w, fused=False, capture=(layers,), view=rng.choice((View.FINAL_NORM, View.STREAM))),
        lambda w: replace(w, view=rng.choice((View.FINAL_NORM, View.INPUT_NORM))) if w.fused else w,
        lambda w: replace(w, norm_before_residual=not w.norm_before_residual),
        lambda w: replace(w, rope_theta=rng.choice((100.0, 1000.0, 500_000.0, 1_000_000.0))),
        lambda w: replace(w, rope_pairs=Pairs.INTERLEAVED),
        lambda w: replace(w, random=MIDLAYER),
    ]
    while True:
        wiring = right
        for make in rng.sample(makes, rng.choice((1, 2))):
            wiring = make(wiring)
        alone = [taken_back(right, wiring, aspect) for aspect in differences(right, wiring)]
        if alone and all(bench.overlap(one) <= bench.overlap(right) - LEAST_LOSS for one in alone):
            return wiring


# --- counts ----------------------------------------------------------------------------------------------------------


@dataclass
class Count:
    tried: int = 0
    found: int = 0


def count_mistakes(benches: Sequence[Bench], many: int, seed: int) -> tuple[dict[str, Count], list[str]]:
    rng, counts, missed = random.Random(seed), {bench.name: Count() for bench in benches}, []
    for number in range(many):
        bench = benches[number % len(benches)]
        wiring = mistaken(rng, bench)
        proposed = bench.proposed(wiring)
        counts[bench.name].tried += 1
        counts[bench.name].found += proposed == bench.right
        if proposed != bench.right:
            left = differences(proposed, bench.right) if proposed else "nothing proposed"
            missed.append(f"{bench.name}: {differences(wiring, bench.right)} {wiring.capture}: left {left}")
        _tell(number, many, missed)
    return counts, missed


def count_right(many: int, texts: int, seed: int) -> tuple[dict[str, Count], list[str]]:
    """Right pairs on other texts and in other dtypes; `found` counts those that are let be."""
    rng, known, counts, wronged = random.Random(seed), held_out_prompts(), Counter[str](), []
    tried: dict[str, Count] = {name: Count() for name in names()}
    for number in range(many):
        name = names()[number % len(names())]
        dtype = rng.choice((torch.float32, torch.bfloat16, torch.float16))
        bench = open_bench(name, rng.sample(known, texts), rng.choice((48, 64, 96)), dtype=dtype)
        proposed = bench.proposed(bench.right)
        tried[name].tried += 1
        tried[name].found += proposed is None
        counts[str(dtype)] += 1
        if proposed is not None:
            wronged.append(f"{name} {dtype}: {differences(bench.right, proposed)} {proposed.capture}")
        _tell(number, many, wronged)
    return tried, wronged


def _tell(number: int, many: int, wrong: Sequence[str]) -> None:
    if (number + 1) % 10 == 0:
        print(f"{number + 1} of {many}, {len(wrong)} wrong", *wrong[-1:], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mistakes", type=int, default=200)
    parser.add_argument("--right", type=int, default=200)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    benches = [open_bench(name, held_out_prompts()[: args.texts]) for name in names()]
    mistakes, missed = count_mistakes(benches, args.mistakes, args.seed)
    right, wronged = count_right(args.right, args.texts, args.seed)
    result = {
        "command": f"python -m tiny_pair.causes --mistakes {args.mistakes} --right {args.right} --texts {args.texts} "
        f"--seed {args.seed}",
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "held_out": [name for name in HELD_OUT if name in names()],
        "mistakes": {name: vars(count) for name, count in mistakes.items()},
        "mistakes_right": sum(c.found for c in mistakes.values()) / max(args.mistakes, 1),
        "missed": missed,
        "right_pairs": {name: vars(count) for name, count in right.items()},
        "right_pairs_let_be": sum(c.found for c in right.values()) / max(args.right, 1),
        "wronged": wronged,
        "seconds": round(time.monotonic() - began),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"causes right: {result['mistakes_right']:.3f}; right pairs let be: {result['right_pairs_let_be']:.3f}")


if __name__ == "__main__":
    main()
