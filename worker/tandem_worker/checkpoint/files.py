"""Files of a checkpoint folder: every operating-system error becomes a finding that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem_worker.checkpoint.errors import CheckpointError, error


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns OSError into CheckpointError."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(
            error(
                "TDM-FILE-MISSING",
                f"{path} does not exist.",
                file=path,
                expected="a file",
                action="Check the path and that the download was complete.",
            )
        ) from None
    except PermissionError:
        raise CheckpointError(
            error(
                "TDM-PERMISSION-DENIED",
                f"{path} may not be read by this process.",
                file=path,
                action="Give the pod's user read access (fsGroup, or chmod a+rX on the volume).",
            )
        ) from None
    except (OSError, ValueError) as failure:  # ValueError: a NUL byte in a path
        reason = getattr(failure, "strerror", None) or str(failure)
        raise CheckpointError(
            error(
                "TDM-FILE-UNREADABLE",
                f"{path} could not be read: {reason}.",
                file=path,
                found=reason,
                action="Check the volume or the disk it lies on.",
            )
        ) from None


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """The whole of a small file. Raises CheckpointError when it can not be read or is larger than the limit."""
    with readable(path), path.open("rb") as stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        finding = error(
            "TDM-FILE-TOO-LARGE",
            f"{path.name} is larger than {limit_bytes} bytes, which no such file is.",
            file=path,
            expected=f"at most {limit_bytes} bytes",
            action="Restore the file from where the checkpoint was published.",
        )
        raise CheckpointError(finding)
    return data
