"""Text to tokens, and tokens as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer, decoders

from tandem_worker.server.api import ApiError

MAX_PROMPTS = 128


@dataclass(frozen=True)
class Vocabulary:
    tokenizer: Tokenizer
    size: int

    def encode(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        """Raises ApiError for too many prompts, an empty one, and a token that is none."""
        if len(prompts) > MAX_PROMPTS:
            raise ApiError(400, f"A request may hold {MAX_PROMPTS} prompts, this one holds {len(prompts)}.", "prompt")
        encoded = [self.tokenizer.encode(one).ids if isinstance(one, str) else one for one in prompts]
        for tokens in encoded:
            if not tokens:
                raise ApiError(400, "The prompt is empty.", "prompt")
            self.check(tokens, "prompt")
        return encoded

    def check(self, tokens: Sequence[int], param: str) -> None:
        """Raises ApiError for a token that is none."""
        if max(tokens, default=0) >= self.size:
            raise ApiError(400, f"Token {max(tokens)} is not in the vocabulary of {self.size}.", param)

    def encode_rendered(self, text: str) -> list[int]:
        """What a chat template wrote: its special tokens are its own."""
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        if not tokens:
            raise ApiError(400, "The chat template made no text of the messages.", "messages")
        return tokens

    def text(self, token: int) -> str:
        return self.tokenizer.decode([token], skip_special_tokens=False)

    def bytes(self, token: int) -> bytes:
        """Of a piece of a character, too, where the tokenizer works on bytes."""
        name = self.tokenizer.id_to_token(token) or ""
        if isinstance(self.tokenizer.decoder, decoders.ByteLevel) and all(c in self._of_characters for c in name):
            return bytes(self._of_characters[c] for c in name)
        return self.text(token).encode()

    @cached_property
    def _of_characters(self) -> dict[str, int]:
        """The character that stands for each byte in a byte-level vocabulary (GPT-2's): its own where it can be seen,
        the next free one from 256 up where not."""
        seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
        hidden = [byte for byte in range(256) if byte not in seen]
        return {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
