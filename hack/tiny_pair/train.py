"""Train a tiny target and two EAGLE-3 drafters on CPU in one go.

    python -m tiny_pair.train --out examples/tiny-pair

writes target/, drafter/ (fits the target and predicts it), drafter-foreign/ (same shapes, trained on another target
that is thrown away: fits on paper and predicts nothing), prompts.jsonl (held out) and training.json.

The two pairs are trained side by side by two processes of one thread each: sums then do not depend on the number of
cores, and neither does the result.
"""

import argparse
import multiprocessing
import platform
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import TypeAdapter
from tokenizers import Tokenizer

from tiny_pair import grammar
from tiny_pair.config import CAPTURE
from tiny_pair.corpus import documents
from tiny_pair.learning import Recipe, Stream, train_drafter, train_target
from tiny_pair.model import Drafter, Target, save
from tiny_pair.prompts import make_prompts, write_prompts
from tiny_pair.replay import Tally, Wiring, greedy_texts, replay
from tiny_pair.tokenizer import train_tokenizer, write_tokenizer

TRAIN_SEED = 1
TRAIN_CHARACTERS = 8_000_000
TOKENIZER_DOCUMENTS = 1500
PROMPTS, NEW_TOKENS, DRAFT_LENGTH = 64, 96, 4


@dataclass(frozen=True)
class Pair:
    """One of the two pairs to train."""

    name: str
    seed: int
    target_folder: str | None  # None: the target is thrown away
    drafter_folder: str
    recipe: Recipe


OWN = Pair("own", 1, "target", "drafter", Recipe())
# It has to predict its own target well, not best, and takes no longer than the own pair beside it.
FOREIGN = Pair("foreign", 2, None, "drafter-foreign", Recipe(target_steps=700, drafter_steps=400, own_text_rows=1024))


@dataclass(frozen=True)
class Trained:
    """What a pair reaches on the held-out prompts, each drafter with its own target."""

    name: str
    seed: int
    recipe: Recipe
    accept_length: float
    position0: float


@dataclass(frozen=True)
class Training:
    """Content of training.json."""

    versions: dict[str, str]
    pairs: tuple[Trained, ...]


def learn(texts: list[str]) -> tuple[Tokenizer, Stream]:
    tokenizer = train_tokenizer(texts[:TOKENIZER_DOCUMENTS])
    return tokenizer, Stream(tokenizer, texts)


@torch.no_grad()
def held_out_tally(target: Target, drafter: Drafter, tokenizer: Tokenizer) -> Tally:
    prompts = [tokenizer.encode(p.prompt).ids for p in make_prompts(tokenizer, PROMPTS, grammar.HELD_OUT)]
    texts = greedy_texts(target, prompts, NEW_TOKENS)
    return replay(Wiring(target, drafter, CAPTURE), texts, [len(prompt) for prompt in prompts], DRAFT_LENGTH)


def train_pair(pair: Pair, out: Path) -> Trained:
    torch.set_num_threads(1)
    tokenizer, stream = learn(documents(TRAIN_SEED, TRAIN_CHARACTERS))
    target = train_target(stream, pair.recipe, pair.seed, f"{pair.name} target")
    drafter = train_drafter(target, stream, pair.recipe, pair.seed, f"{pair.name} drafter")
    if pair.target_folder:
        save(target, out / pair.target_folder)
        write_tokenizer(tokenizer, out / pair.target_folder)
    save(drafter, out / pair.drafter_folder)
    write_tokenizer(tokenizer, out / pair.drafter_folder)
    tally = held_out_tally(target, drafter, tokenizer)
    return Trained(pair.name, pair.seed, pair.recipe, round(tally.accept_length, 4), round(tally.rates[0], 4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(train_pair, pair, args.out) for pair in (OWN, FOREIGN)]
        pairs = tuple(job.result() for job in jobs)
    tokenizer = Tokenizer.from_file(str(args.out / "target" / "tokenizer.json"))
    write_prompts(make_prompts(tokenizer, PROMPTS, grammar.HELD_OUT), args.out / "prompts.jsonl")
    versions = {"python": platform.python_version()} | {name: version(name) for name in ("torch", "tokenizers")}
    training = Training(versions, pairs)
    (args.out / "training.json").write_text(TypeAdapter(Training).dump_json(training, indent=2).decode() + "\n")
    for trained in pairs:
        print(asdict(trained))


if __name__ == "__main__":
    main()
