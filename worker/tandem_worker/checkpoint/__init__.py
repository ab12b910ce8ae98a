"""Checkpoints on disk: whole or damaged, what they say they are, and who they are."""

from tandem_worker.checkpoint.describe import read_target
from tandem_worker.checkpoint.describe_drafter import read_drafter
from tandem_worker.checkpoint.description import Drafter, Target
from tandem_worker.checkpoint.errors import CheckpointError
from tandem_worker.checkpoint.fingerprint import fingerprint
from tandem_worker.checkpoint.folder import Checkpoint, open_checkpoint
from tandem_worker.checkpoint.header import TensorInfo

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Drafter",
    "Target",
    "TensorInfo",
    "fingerprint",
    "open_checkpoint",
    "read_drafter",
    "read_target",
]
