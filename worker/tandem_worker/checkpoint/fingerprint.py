"""Content identity of a checkpoint, cheap enough for a trillion parameters.

Hashed: every file that changes what runs (configs, tokenizer, index), each shard's header and size, the draft
vocabulary's two small tensors in full, and of every file evenly spaced blocks; small files whole. The places of the
blocks depend on the size alone, so the same content gives the same fingerprint anywhere. It detects files that were
replaced or mixed; it is no defence against someone who edits single weights between the blocks.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tandem_worker.checkpoint.files import readable
from tandem_worker.checkpoint.folder import INDEX, Checkpoint

WHOLE_BYTES = 8 * 1024 * 1024
SMALL_BYTES = 256 * 1024 * 1024  # of a map in full; a header may claim anything
BLOCK_BYTES = 4096
BLOCKS = 64

SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    INDEX,
    "added_tokens.json",
    "chat_template.json",
    "hf_quant_config.json",
    "merges.txt",
    "params.json",
    "preprocessor_config.json",
    "tekken.json",
    "vocab.json",
)
"""Those that are there. New ones stand at the end: a folder without them keeps its fingerprint."""

SMALL_TENSORS = ("d2t", "t2d", "model.d2t", "model.t2d")


def fingerprint(checkpoint: Checkpoint) -> str:
    """`sha256:` and 64 hex digits. Raises CheckpointError when a file can not be read."""
    digest = hashlib.sha256()
    for name in SIDE_FILES:
        file = checkpoint.path / name
        with readable(file):
            present = file.is_file()
        if present:
            _add_file(digest, file)
    for shard in checkpoint.shards:
        digest.update(f"{shard.file.name}\0{shard.header_sha256}\0".encode())
        _add_file(digest, shard.file)
    for name in SMALL_TENSORS:
        tensor = checkpoint.tensors.get(name)
        if tensor is not None:
            digest.update(f"{name}\0".encode())
            with readable(tensor.file), tensor.file.open("rb") as stream:
                stream.seek(tensor.start)
                left = min(tensor.end - tensor.start, SMALL_BYTES)
                while part := stream.read(min(left, WHOLE_BYTES)):
                    digest.update(part)
                    left -= len(part)
    return f"sha256:{digest.hexdigest()}"


def _add_file(digest: hashlib._Hash, file: Path) -> None:
    with readable(file), file.open("rb") as stream:
        size = stream.seek(0, 2)
        digest.update(f"{file.name}\0{size}\0".encode())
        for start, length in sampled_blocks(size):
            stream.seek(start)
            digest.update(stream.read(length))


def sampled_blocks(size_bytes: int) -> list[tuple[int, int]]:
    """(start, length) of what is read of a file of this size: the whole, or first, last and evenly spaced blocks."""
    if size_bytes <= WHOLE_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - BLOCK_BYTES
    return [(last * i // (BLOCKS - 1), BLOCK_BYTES) for i in range(BLOCKS)]
