"""Calibration prompts: short generic beginnings of many kinds of text, or those of a file.

They only start the target off; what is measured is the target's own greedy continuation, in whatever it writes best.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from tandem_worker.checkpoint import Checkpoint, CheckpointError, strict_json
from tandem_worker.checkpoint.errors import error
from tandem_worker.checkpoint.files import read_bytes

BUILT_IN = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Q: What is the largest planet?\nA:",
    "To make a good soup you need",
    '{"name": "Anna", "age": 31, ',
    "1, 2, 3, 4, 5, ",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three most important things about travel are",
    "import os\nimport sys\n\ndef main():",
    "In the year 1850 the railway",
    "Water boils when",
    "A letter to my younger self:",
    "SELECT name, city FROM",
    "The doctor looked at the chart and said",
    "Steps to plant a tree:\n1.",
)
LARGEST_FILE_BYTES = 16 * 1024 * 1024
LARGEST_TOKENIZER_BYTES = 256 * 1024 * 1024
MOST_PROMPTS = 64


def read_prompts(file: Path | None) -> tuple[str, ...]:
    """The first 64 prompts of a JSON-lines file with `prompt`, or those built in. Raises CheckpointError."""
    if file is None:
        return BUILT_IN
    prompts = []
    lines = [line for line in read_bytes(file, LARGEST_FILE_BYTES).splitlines() if line.strip()]
    for number, line in enumerate(lines[:MOST_PROMPTS], 1):
        try:
            value = strict_json.parse(line)
        except strict_json.JsonError as failure:
            raise _unusable(file, f"line {number}: {failure}") from None
        prompt = value.get("prompt") if isinstance(value, Mapping) else None
        if not isinstance(prompt, str) or not prompt:
            raise _unusable(file, f'line {number} has no "prompt" text')
        prompts.append(prompt)
    if not prompts:
        raise _unusable(file, "it is empty")
    return tuple(prompts)


def tokenize(prompts: tuple[str, ...], target: Checkpoint, vocab_size: int, longest: int) -> list[list[int]]:
    """Token ids by the target's own tokenizer, of each prompt the last `longest`. Raises CheckpointError."""
    file = target.path / "tokenizer.json"
    text = read_bytes(file, LARGEST_TOKENIZER_BYTES)
    try:
        tokenizer = Tokenizer.from_buffer(text)
    except Exception as failure:  # the library raises plain Exception
        action = "Restore the file from where the target was published."
        message = f"{file.name} is not a tokenizer that the tokenizers library reads: {failure}."
        raise CheckpointError(error("TDM-TOKENIZER-MALFORMED", message, file=file, action=action)) from None
    rows = [encoding.ids[-longest:] for encoding in tokenizer.encode_batch(list(prompts))]
    largest = max((token for row in rows for token in row), default=0)
    if largest >= vocab_size:
        message = f"The tokenizer makes token id {largest}; the target's vocabulary has {vocab_size}."
        action = "Use the tokenizer that belongs to this target."
        raise CheckpointError(error("TDM-TOKENIZER-VOCABULARY", message, file=file, found=largest, action=action))
    return [row for row in rows if row]


def _unusable(file: Path, reason: str) -> CheckpointError:
    action = 'Write one JSON object a line, such as {"prompt": "Once upon a time"}.'
    return CheckpointError(
        error("TDM-PROMPTS-UNUSABLE", f"The prompts in {file.name} are not usable: {reason}.", file=file, action=action)
    )
