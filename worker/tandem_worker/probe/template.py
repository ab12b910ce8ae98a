"""Chat templates of strangers, rendered where they can do no harm.

A template is a program that came with the weights. It runs in jinja2's immutable sandbox, which keeps it from the
interpreter's insides, and in a process of its own (`template_process`) with a limit of time and memory, which ends one
that loops or grows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tandem_worker.checkpoint import Checkpoint, CheckpointError, strict_json
from tandem_worker.checkpoint.errors import error, printable
from tandem_worker.checkpoint.files import read_bytes
from tandem_worker.probe import template_process
from tandem_worker.probe.template_process import MEMORY_LIMIT_BYTES

TIME_LIMIT_SECONDS = 10
LARGEST_TEMPLATE_BYTES = 1024 * 1024
LARGEST_OUTPUT_BYTES = 16 * 1024 * 1024
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class Message(NamedTuple):
    role: str
    content: str


class Template(NamedTuple):
    source: str
    file: Path
    tokens: dict[str, str]  # special tokens by their names


def read_template(target: Checkpoint) -> Template | None:
    """From chat_template.jinja or tokenizer_config.json; None: the target has none. Raises CheckpointError."""
    config_file, file = target.path / "tokenizer_config.json", target.path / "chat_template.jinja"
    config: dict[str, Any] = {}
    if config_file.exists():
        try:
            value = strict_json.parse(read_bytes(config_file, LARGEST_OUTPUT_BYTES))
        except strict_json.JsonError as failure:
            raise _failed(config_file, f"it is not JSON ({failure})") from None
        config = dict(value) if isinstance(value, dict) else {}
    tokens = {name: _text(config.get(name)) for name in SPECIAL_TOKENS}
    if file.exists():
        return Template(read_bytes(file, LARGEST_TEMPLATE_BYTES).decode("utf-8", "replace"), file, tokens)
    source = config.get("chat_template")
    if isinstance(source, list):  # several by name
        named = (item for item in source if isinstance(item, dict) and item.get("name") == "default")
        source = next(named, {}).get("template")
    return Template(source, config_file, tokens) if isinstance(source, str) and source else None


def render(template: Template, talks: Sequence[Sequence[Message]]) -> list[str]:
    """Each conversation as text. Raises CheckpointError (CouldNotCheck) for a template that fails or is stopped."""
    with closing(Sandbox()) as sandbox:
        return sandbox.render(template, [[message._asdict() for message in talk] for talk in talks])


class Sandbox:
    """The process for templates. One that had to be stopped is followed by another. For any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(
        self, template: Template, talks: Sequence[Sequence[Mapping[str, Any]]], add_generation_prompt: bool = False
    ) -> list[str]:
        """Raises CheckpointError (CouldNotCheck) for a template that fails or is stopped."""
        asked = {
            "source": template.source,
            "tokens": template.tokens,
            "talks": talks,
            "add_generation_prompt": add_generation_prompt,
            "seconds": TIME_LIMIT_SECONDS,
        }
        with self._lock:
            answer = self._ask(json.dumps(asked).encode() + b"\n", template.file)
        if "failed" in answer:
            raise _failed(template.file, printable(answer["failed"] or "it failed", 200))
        texts: list[str] = answer["texts"]
        return texts

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _ask(self, line: bytes, file: Path) -> dict[str, Any]:
        command = [sys.executable, "-m", template_process.__name__]
        process = self._process = self._process or subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdin
        assert process.stdout
        # The process has a limit of CPU time; this one is for a process that is stopped.
        timer = threading.Timer(TIME_LIMIT_SECONDS + 5, process.kill)
        timer.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            written = process.stdout.readline(LARGEST_OUTPUT_BYTES + 1)
        except BrokenPipeError:
            written = b""
        finally:
            timer.cancel()
        if not written.endswith(b"\n"):
            self._stop()
            if len(written) > LARGEST_OUTPUT_BYTES:
                raise _failed(file, f"it wrote more than {LARGEST_OUTPUT_BYTES >> 20} MiB")
            limit = f"{TIME_LIMIT_SECONDS} seconds or {MEMORY_LIMIT_BYTES >> 20} MiB"
            raise _failed(file, f"it was stopped at the limit of {limit}")
        answer: dict[str, Any] = json.loads(written)
        return answer

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.communicate()


def _failed(file: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        error(
            "TDM-CHAT-TEMPLATE",
            f"The target's chat template could not be rendered: {reason}.",
            file=file,
            where="chat_template",
            action='Correct the template, or give prompts as text: {"prompt": "..."}.',
        )
    )


def _text(token: object) -> str:
    """A special token as tokenizer_config.json writes it: text, or an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""
