"""The target's tokenizer. Not among what this package exports: static checks start without its library."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from tandem_worker.checkpoint.errors import CheckpointError, error
from tandem_worker.checkpoint.files import read_bytes

LARGEST_TOKENIZER_BYTES = 256 * 1024 * 1024


def read_tokenizer(folder: Path) -> Tokenizer:
    """It takes texts whole and adds nothing to them: libraries save the cutting and padding of their last call into the
    file, and transformers takes both out again. Raises CheckpointError."""
    file = folder / "tokenizer.json"
    text = read_bytes(file, LARGEST_TOKENIZER_BYTES)
    try:
        tokenizer = Tokenizer.from_buffer(text)
    except Exception as failure:  # the library raises plain Exception
        action = "Restore the file from where the target was published."
        message = f"{file} is not a tokenizer that the tokenizers library reads: {failure}."
        raise CheckpointError(error("TDM-TOKENIZER-MALFORMED", message, file=file, action=action)) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
