"""Measure the tiny pair: acceptance when wired rightly, and under every common wiring mistake.

    python -m tiny_pair.measure --pair examples/tiny-pair

Greedy chain drafts in float32 on the held-out prompts. Writes measured.json and measured.md into the pair's folder.
"""

import argparse
import hashlib
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tiny_pair import grammar
from tiny_pair.bigram import bigram_table, bigram_tally
from tiny_pair.corpus import documents
from tiny_pair.evidence import distinct_share
from tiny_pair.learning import Stream
from tiny_pair.model import Drafter, Target, load_drafter, load_target
from tiny_pair.prompts import Prompt, make_prompts, read_prompts
from tiny_pair.replay import Wiring, chain_decode, greedy_texts, replay
from tiny_pair.results import Measured, PromptSet, Row, Text
from tiny_pair.train import DRAFT_LENGTH, NEW_TOKENS, TRAIN_CHARACTERS, TRAIN_SEED
from tiny_pair.wirings import FOREIGN, RIGHT, right_wiring, wirings

BIGRAM = "bigram drafter"
MEASURED_FILES = (
    "target/model.safetensors",
    "target/tokenizer.json",
    "drafter/model.safetensors",
    "drafter-foreign/model.safetensors",
    "prompts.jsonl",
)


@dataclass(frozen=True)
class Pair:
    """The trained files, loaded."""

    target: Target
    drafter: Drafter
    foreign: Drafter
    tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: Path) -> "Pair":
        return cls(
            load_target(folder / "target"),
            load_drafter(folder / "drafter"),
            load_drafter(folder / "drafter-foreign"),
            Tokenizer.from_file(str(folder / "target" / "tokenizer.json")),
        )


def fingerprints(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in MEASURED_FILES}


def train_bigram(tokenizer: Tokenizer, vocabulary: int, characters: int = TRAIN_CHARACTERS) -> Tensor:
    return bigram_table(Stream(tokenizer, documents(TRAIN_SEED, characters)).tokens, vocabulary)


def check_replay(right: Wiring, text: list[int], start: int) -> None:
    """Decoding draft by draft must give the text and the counts of the replay.

    Raises RuntimeError where it does not: then none of the figures can be believed.
    """
    decoded, counted = chain_decode(right, text[:start], len(text) - start, DRAFT_LENGTH)
    if decoded != text[: len(decoded)]:
        raise RuntimeError(f"speculation changed the text: {decoded} instead of {text}")
    (replayed,) = replay(right, [text], [start], DRAFT_LENGTH).prompts
    if counted != replayed:
        raise RuntimeError(f"decoding counted {counted}, the replay {replayed}")


@torch.no_grad()
def measure_set(
    pair: Pair, prompts: list[Prompt], templates: str, names: set[str] | None, bigram: Tensor, checks: int
) -> PromptSet:
    """`names`: of the wirings to measure; None: all."""
    encoded = [pair.tokenizer.encode(prompt.prompt).ids for prompt in prompts]
    starts = [len(ids) for ids in encoded]
    texts = greedy_texts(pair.target, encoded, NEW_TOKENS)
    table = wirings(right_wiring(pair.target, pair.drafter), pair.foreign)
    for text, start in list(zip(texts, starts, strict=True))[:checks]:
        check_replay(table[RIGHT], text, start)
    tallies = {
        name: replay(wiring, texts, starts, DRAFT_LENGTH)
        for name, wiring in table.items()
        if names is None or name in names
    }
    tallies[BIGRAM] = bigram_tally(bigram, texts, starts, DRAFT_LENGTH)
    continuations = [text[start:] for text, start in zip(texts, starts, strict=True)]
    return PromptSet(
        templates=templates,
        text=Text(
            prompts=len(prompts),
            new_tokens=NEW_TOKENS,
            decoded_round_by_round=min(checks, len(prompts)),
            distinct_4grams=round(distinct_share(continuations), 4),
            distinct_4grams_worst=round(min(distinct_share([text]) for text in continuations), 4),
        ),
        rows=tuple(Row.of(name, tally, tallies[RIGHT]) for name, tally in tallies.items()),
    )


def show(pair: Pair, prompts: list[Prompt]) -> None:
    for prompt in prompts:
        ids = pair.tokenizer.encode(prompt.prompt).ids
        (text,) = greedy_texts(pair.target, [ids], NEW_TOKENS)
        print(f"prompt        {prompt.prompt!r}\ncontinuation  {pair.tokenizer.decode(text[len(ids) :])!r}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True, help="folder that tiny_pair.train wrote")
    parser.add_argument("--check", type=int, default=64, help="prompts that are also decoded round by round")
    parser.add_argument("--show", type=int, default=3, help="continuations to print")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    pair = Pair.load(args.pair)
    prompts = read_prompts(args.pair / "prompts.jsonl")
    show(pair, prompts[: args.show])
    bigram = train_bigram(pair.tokenizer, pair.target.config.vocab_size)
    same = make_prompts(pair.tokenizer, len(prompts), grammar.TRAINING)
    measured = Measured(
        versions={"python": platform.python_version()} | {name: version(name) for name in ("torch", "tokenizers")},
        sha256=fingerprints(args.pair),
        draft_length=DRAFT_LENGTH,
        held_out=measure_set(pair, prompts, "held-out templates", None, bigram, args.check),
        same_templates=measure_set(pair, same, "the templates of training", {RIGHT, FOREIGN}, bigram, args.check),
    )
    (args.pair / "measured.json").write_text(measured.model_dump_json(indent=2) + "\n")
    (args.pair / "measured.md").write_text(measured.markdown())
    print(measured.markdown())


if __name__ == "__main__":
    main()
