"""Tokens to text, piece by piece, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
CONTEXT_TOKENS = 8


class TextStream:
    """Decodes tokens as they come, and holds back a character whose bytes have not all arrived.

    A tokenizer may decode a token differently at the start of a text, so each piece is what decoding adds to the few
    tokens before it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-CONTEXT_TOKENS:])
        self._start, self._read = 0, len(self._tokens)

    def push(self, tokens: Sequence[int], last: bool) -> str:
        self._tokens += tokens
        before = self._tokenizer.decode(self._tokens[self._start : self._read])
        text = self._tokenizer.decode(self._tokens[self._start :])
        if text.endswith(INCOMPLETE) and not last:
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return text[len(before) :]


class StopStrings:
    """Passes text on until a stop string appears, which it leaves out; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str, last: bool) -> tuple[str, bool]:
        """Returns the text that is safe to show and whether a stop string was met."""
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        held = 0 if last else max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
