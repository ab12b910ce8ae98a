"""Operators as processes that start at once: forked from one that has imported everything, and killed by SIGKILL."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tandem_operator.run import run
from tandem_operator.settings import Settings

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["crashtest.operator"])


class Operator:
    """Of one namespace, behind one kubeconfig."""

    def __init__(self, kubeconfig: Path, log: Path, settings: Settings) -> None:
        self._kubeconfig, self._log, self._settings = kubeconfig, log, settings
        self._process: ForkServerProcess | None = None
        self.starts = 0

    def start(self) -> None:
        arguments = (str(self._kubeconfig), str(self._log), self._settings)
        self._process = _context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        self.starts += 1

    def kill(self) -> None:
        """As the kernel does: nothing is said, nothing is finished."""
        if self._process is not None:
            self._process.kill()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    async def keep_running(self) -> None:
        """As the kubelet does, but at once. Until cancelled."""
        while True:
            if not self.alive:
                self.start()
            await asyncio.sleep(0.05)


def _run(kubeconfig: str, log: str, settings: Settings) -> None:
    os.environ["KUBECONFIG"] = kubeconfig
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    asyncio.run(run(settings))
