"""Held-out prompts: beginnings of documents that training has not seen."""

import json
import random
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from tokenizers import Tokenizer

from tiny_pair.corpus import Templates, documents

HELD_OUT_SEED = 2


class Prompt(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int
    prompt: str


def make_prompts(tokenizer: Tokenizer, count: int, templates: Templates) -> list[Prompt]:
    """Documents of a seed of their own, cut after 48 to 111 tokens."""
    rng = random.Random(HELD_OUT_SEED)
    prompts: list[Prompt] = []
    for text in documents(HELD_OUT_SEED, 4000 * count, templates)[:count]:
        ids = tokenizer.encode(text).ids[: 48 + int(rng.random() * 64)]
        prompts.append(Prompt(id=len(prompts), prompt=tokenizer.decode(ids)))
    return prompts


def write_prompts(prompts: list[Prompt], path: Path) -> None:
    path.write_text("".join(json.dumps(prompt.model_dump()) + "\n" for prompt in prompts))


def read_prompts(path: Path) -> list[Prompt]:
    return [Prompt.model_validate_json(line) for line in path.read_text().splitlines()]
