"""Calibration text: what ships with Tandem, or a file's. The target reads it; the drafter is measured on every token.

A file holds one JSON object a line: {"prompt": "..."} is text as it stands, {"messages": [{"role": ..., "content":
...}]} is a conversation, which the target's own chat template writes down.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tandem_worker.checkpoint import Checkpoint, CheckpointError, strict_json
from tandem_worker.checkpoint.errors import error
from tandem_worker.checkpoint.files import read_bytes
from tandem_worker.checkpoint.tokenizer import read_tokenizer
from tandem_worker.probe.template import Message, read_template, render

SHIPPED = Path(__file__).parent / "calibration.toml"
LARGEST_FILE_BYTES = 16 * 1024 * 1024
MOST_PROMPTS = 64
LONG_KINDS = ("chat", "prose", "maths")
LONGEST_TOKENS, LONG_TOKENS = 192, 1024  # of an ordinary text, of one that is there for its length


@dataclass(frozen=True)
class Prompt:
    """`messages` are empty for text that stands as it is."""

    text: str
    messages: tuple[Message, ...] = ()
    long: bool = False


def read_prompts(file: Path | None) -> tuple[Prompt, ...]:
    """The first 64 of a file, or those that ship with the worker. Raises CheckpointError."""
    if file is None:
        return shipped()
    lines = [line for line in read_bytes(file, LARGEST_FILE_BYTES).splitlines() if line.strip()]
    prompts = [_prompt(line, number, file) for number, line in enumerate(lines[:MOST_PROMPTS], 1)]
    if not prompts:
        raise _unusable(file, "it is empty")
    return tuple(prompts)


def shipped() -> tuple[Prompt, ...]:
    """Short texts of many kinds, and one long one that is made of them."""
    texts = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))["text"]
    prompts = [_turns(text.get("question", ""), text["answer"].strip()) for text in texts]
    long = "\n\n".join(text["answer"].strip() for text in texts if text["kind"] in LONG_KINDS)
    return (*prompts, replace(_turns("Write several short texts on different subjects.", long), long=True))


def tokenize(prompts: Sequence[Prompt], target: Checkpoint, vocab_size: int, longest: int) -> list[list[int]]:
    """Token ids by the target's own tokenizer, of each text at most the first `longest`. Raises CheckpointError."""
    tokenizer = read_tokenizer(target.path)
    rows = []
    for prompt, (whole, templated) in zip(prompts, _written(prompts, target), strict=True):
        # A template writes special tokens of its own; the tokenizer would put them in front a second time.
        ids = tokenizer.encode(whole, add_special_tokens=not templated).ids
        rows.append(ids[: min(longest, LONG_TOKENS if prompt.long else LONGEST_TOKENS)])
    largest = max((token for row in rows for token in row), default=0)
    if largest >= vocab_size:
        message = f"The tokenizer makes token id {largest}; the target's vocabulary has {vocab_size}."
        action = "Use the tokenizer that belongs to this target."
        file = target.path / "tokenizer.json"
        raise CheckpointError(error("TDM-TOKENIZER-VOCABULARY", message, file=file, found=largest, action=action))
    return [row for row in rows if row]


def _written(prompts: Sequence[Prompt], target: Checkpoint) -> list[tuple[str, bool]]:
    """(text, whether the chat template wrote it)."""
    template = read_template(target)
    talks = [prompt.messages for prompt in prompts if prompt.messages]
    written = iter(render(template, talks) if template and talks else [])
    return [(next(written), True) if template and prompt.messages else (prompt.text, False) for prompt in prompts]


def _turns(question: str, answer: str) -> Prompt:
    if not question:
        return Prompt(answer)
    messages = (Message("user", question), Message("assistant", answer))
    return Prompt(f"{question}\n\n{answer}", messages)


def _prompt(line: bytes, number: int, file: Path) -> Prompt:
    try:
        value = strict_json.parse(line)
    except strict_json.JsonError as failure:
        raise _unusable(file, f"line {number}: {failure}") from None
    if isinstance(value, Mapping):
        text, talk = value.get("prompt"), value.get("messages")
        if isinstance(text, str) and text:
            return Prompt(text)
        messages = [_message(item) for item in talk] if isinstance(talk, list) else []
        if messages and all(messages):
            told = tuple(message for message in messages if message)
            return Prompt("\n\n".join(message.content for message in told), told)
    raise _unusable(file, f'line {number} has neither a "prompt" text nor "messages" with role and content')


def _message(item: object) -> Message | None:
    if not isinstance(item, Mapping):
        return None
    role, content = item.get("role"), item.get("content")
    return Message(role, content) if isinstance(role, str) and isinstance(content, str) and content else None


def _unusable(file: Path, reason: str) -> CheckpointError:
    action = 'Write one JSON object a line, such as {"prompt": "Once upon a time"}.'
    return CheckpointError(
        error("TDM-PROMPTS-UNUSABLE", f"The prompts in {file.name} are not usable: {reason}.", file=file, action=action)
    )
