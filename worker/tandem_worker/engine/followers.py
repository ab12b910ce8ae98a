"""The processes of ranks 1, 2, ... (see `ranks`): how they start and end, and what is told of one that dies.

They live as long as rank 0: an end of the pipe that it holds is what keeps them. A signal that is meant for the worker
does not reach them, so what runs is drained with all ranks. When one of them dies, nothing that runs can be finished:
requests fail, the worker is not ready, and ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory

from tandem_worker.contract import ExitCode, WorkerFailure
from tandem_worker.engine.gpu import GpuProblem
from tandem_worker.engine.ranks import Ranks

log = logging.getLogger(__name__)

LOADED = b"loaded"
LAST_WORDS_SECONDS = 2.0
"""So long a rank may take to end after another one was told that it is gone."""

CLOSING_SECONDS = 5.0
STUCK_SECONDS = 90.0
"""After a rank is lost the worker ends by itself, unless it waits for a GPU that never answers."""

Run = Callable[[int, Connection, Path], None]
"""Of a follower: its rank, the pipe to the leader, the folder in which all ranks meet. Picklable."""


class Followers:
    def __init__(self, run: Run, size: int) -> None:
        """size: of all ranks."""
        self.size = size
        self._kept = TemporaryDirectory(prefix="tandem-ranks-")
        self.folder = Path(self._kept.name)
        self._ending, self._closed = threading.Lock(), threading.Event()
        self._why: GpuProblem | None = None
        self._ranks: Ranks | None = None
        context = get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_live, args=(run, rank, theirs, self.folder), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        atexit.register(self.close)

    def wait_until_loaded(self) -> None:
        """Raises GpuProblem."""
        for pipe in self.pipes:
            try:
                said = pipe.recv_bytes()
            except EOFError as failure:
                raise self.explained(failure) from None
            if problem := _told(said):
                raise problem

    def watch(self, ranks: Ranks) -> None:
        """From now on a rank that ends is lost to this one."""
        self._ranks = ranks
        threading.Thread(target=self._watch, args=(ranks,), name="ranks", daemon=True).start()

    def explained(self, failure: Exception) -> Exception:
        """The end of a rank that is behind a failure of this one, or this failure."""
        return self._end_of_one(LAST_WORDS_SECONDS) or failure

    def close(self) -> None:
        """They end when nobody holds the other end of their pipes."""
        self._closed.set()
        if self._ranks and not self._ranks.lost:
            self._ranks.leave()
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(CLOSING_SECONDS)
            process.kill()
            process.join()
        self._kept.cleanup()
        atexit.unregister(self.close)

    def _watch(self, ranks: Ranks) -> None:
        problem = self._end_of_one()
        if problem is None or self._closed.is_set():
            return
        log.error("%s: %s", problem.reason, problem)
        ranks.lose(problem)
        if not self._closed.wait(STUCK_SECONDS):
            log.error("The engine does not come back from its GPU.")
            os._exit(ExitCode.CANNOT_LOAD)

    def _end_of_one(self, patience_seconds: float | None = None) -> GpuProblem | None:
        """None: none has ended in that time. Without a time it waits."""
        sentinels = [process.sentinel for process in self.processes]
        ended = wait(sentinels, patience_seconds)
        if not ended:
            return None
        with self._ending:
            if self._why is None:
                at = sentinels.index(ended[0])  # type: ignore[arg-type]
                self.processes[at].join(LAST_WORDS_SECONDS)  # its last file is closed a moment before it is gone
                said = _last_message(self.pipes[at])
                self._why = _told(said) or self._silent(at + 1, self.processes[at].exitcode)
            return self._why

    def _silent(self, rank: int, code: int | None) -> GpuProblem:
        how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        return GpuProblem("RankLost", f"Rank {rank} of {self.size} {how}; what it computed with the others is lost.")


def _told(said: bytes) -> GpuProblem | None:
    if not said.startswith(b"{"):
        return None
    words = WorkerFailure.model_validate_json(said)
    return GpuProblem(words.reason, words.message)


def _last_message(pipe: Connection) -> bytes:
    said = b""
    try:
        while pipe.poll():
            said = pipe.recv_bytes()
    except (EOFError, OSError):
        pass
    return said


def _live(run: Run, rank: int, pipe: Connection, folder: Path) -> None:
    """The process of a follower."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s rank {rank}: %(message)s")
    threading.Thread(target=_die_with_leader, daemon=True).start()
    code = int(ExitCode.CANNOT_LOAD)
    try:
        run(rank, pipe, folder)
        code = 0
    except SystemExit:  # it has said why
        pass
    except BaseException:
        log.exception("It failed")
    finally:
        sys.stderr.flush()
        os._exit(code)  # communicators that are taken down in order would wait for each other


def _die_with_leader() -> None:
    """Also where the follower waits for it on a GPU."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    threading.Event().wait(CLOSING_SECONDS)
    os._exit(ExitCode.CANNOT_LOAD)
