"""What a streamed forward has reached, on disk: a killed probe goes on at the layer it was at.

One file for each stream that is still needed: those that were asked for, and the newest. Each appears whole or not at
all. Files of another target, other tokens or another question are not this run's, and are removed.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tandem_worker.checkpoint import Checkpoint, CheckpointError, fingerprint
from tandem_worker.checkpoint.errors import error

log = logging.getLogger(__name__)


class StreamState:
    """Streams by capture index, [T, H] each, under `folder`."""

    def __init__(self, folder: Path, identity: str, wanted: Collection[int]) -> None:
        """Raises CheckpointError when there can be no such folder."""
        self.folder, self.identity, self.wanted, self.keeps = folder, identity, wanted, True
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            message = f"{folder} can not be made to keep the probe's state in: {failure.strerror}."
            action = "Name a folder on a volume that may be written to, or none."
            raise CheckpointError(error("TDM-STATE-FOLDER", message, file=folder, action=action)) from None

    def load(self) -> dict[int, Tensor]:
        """Every stream that an earlier run has left; empty when there is none to go on from."""
        found: dict[int, Tensor] = {}
        for partial in self.folder.glob("stream-*.partial"):  # it was killed while it wrote
            _remove(partial)
        for file in sorted(self.folder.glob("stream-*.safetensors")):
            stream = self._read(file)
            if stream is None:
                _remove(file)
            else:
                found[int(file.stem.removeprefix("stream-"))] = stream
        newest = max(found, default=-1)
        return found if all(i in found for i in self.wanted if i <= newest) else {}

    def save(self, index: int, stream: Tensor) -> None:
        """A disk that is full ends the keeping, not the run."""
        if not self.keeps:
            return
        file = self._file(index)
        partial = file.with_suffix(".partial")
        try:
            # Not by save_file: killed, it would leave a file of a name that nobody knows.
            partial.write_bytes(save({"stream": stream.contiguous()}, {"identity": self.identity}))
            os.replace(partial, file)
            if index - 1 not in self.wanted:
                self._file(index - 1).unlink(missing_ok=True)
        except (OSError, SafetensorError) as failure:
            self.keeps = False
            _remove(partial)
            log.warning("The probe's state is no longer kept in %s: %s", self.folder, failure)

    def _file(self, index: int) -> Path:
        return self.folder / f"stream-{index:04d}.safetensors"

    def _read(self, file: Path) -> Tensor | None:
        try:
            with safe_open(file, framework="pt") as opened:
                mine = (opened.metadata() or {}).get("identity") == self.identity
                return opened.get_tensor("stream") if mine else None
        except (SafetensorError, OSError):
            return None


def _remove(file: Path) -> None:
    """What can not be removed is no worse than what is kept: the next run does not take it either."""
    with suppress(OSError):
        file.unlink()


def identity_of(
    checkpoint: Checkpoint, tokens: Tensor, lengths: Sequence[int], wanted: Collection[int], dtype: torch.dtype
) -> str:
    digest = hashlib.sha256(fingerprint(checkpoint).encode())
    digest.update(repr((tokens.tolist(), list(lengths), sorted(wanted), str(dtype))).encode())
    return digest.hexdigest()
